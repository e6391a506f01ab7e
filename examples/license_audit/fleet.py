"""Worker processes, and what is done to them: one is killed or frozen every second, drawn from a seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

ROOT = Path(__file__).parents[2]
STOP_S = 5.0


class Fleet:
    """Workers in numbered places; one that died is started again by `tend`."""

    def __init__(self, url: str, count: int, /, *, ttl_s: float, environment: Mapping[str, str], folder: Path) -> None:
        self._command = [sys.executable, "-m", "examples.license_audit.worker", url, str(ttl_s)]
        self._environment = {**os.environ, **environment}
        self._output = folder / "workers.txt"
        self._places: list[subprocess.Popen[bytes]] = []
        self._count = count
        self.frozen: set[int] = set()

    def __enter__(self) -> Self:
        """Start the workers."""
        self._places = [self._start() for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Thaw and stop the workers; none is left."""
        for place in list(self.frozen):
            self.thaw(place)
        for process in self._places:
            process.terminate()
        for process in self._places:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def awake(self) -> list[int]:
        """Return the places whose worker is alive and not frozen."""
        places = enumerate(self._places)
        return [place for place, process in places if place not in self.frozen and process.poll() is None]

    @property
    def output(self) -> str:
        """Return what the workers have printed."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def tend(self) -> None:
        """Start again who died."""
        for place, process in enumerate(self._places):
            if process.poll() is not None:
                self._places[place] = self._start()

    def kill(self, place: int, /) -> int:
        """Kill a worker for good and return its pid; it had no chance to say or write anything."""
        process = self._places[place]
        process.kill()
        process.wait()
        return process.pid

    def freeze(self, place: int, /) -> int:
        """Stop a worker where it stands and return its pid."""
        process = self._places[place]
        process.send_signal(signal.SIGSTOP)
        self.frozen.add(place)
        return process.pid

    def thaw(self, place: int, /) -> None:
        """Let a frozen worker go on, as if no time had passed."""
        self._places[place].send_signal(signal.SIGCONT)
        self.frozen.discard(place)


@dataclass(slots=True, kw_only=True)
class Chaos:
    """What was done to the workers so far."""

    seed: int
    every_s: float
    frozen_s: float
    kills: int = 0
    freezes: int = 0
    thaws: list[tuple[float, int]] = field(default_factory=list)

    async def rage(self, fleet: Fleet, tell: Callable[[str], None], /) -> None:
        """Disturb one worker after the other, until cancelled; one is always left alone."""
        draw = random.Random(self.seed)
        began = anyio.current_time()
        while True:
            await self._wait(fleet, anyio.current_time() + self.every_s)
            awake = fleet.awake
            if len(awake) < 2:
                continue
            place = draw.choice(awake)
            at = f"{anyio.current_time() - began:5.1f} s"
            if draw.random() < 0.5:
                tell(f"{at}: killed worker {place + 1} (pid {fleet.kill(place)})")
                self.kills += 1
            else:
                pid = fleet.freeze(place)
                tell(f"{at}: froze worker {place + 1} (pid {pid}) for {self.frozen_s:g} s")
                self.freezes += 1
                self.thaws.append((anyio.current_time() + self.frozen_s, place))

    async def _wait(self, fleet: Fleet, until: float) -> None:
        while anyio.current_time() < until:
            for due, place in [one for one in self.thaws if one[0] <= anyio.current_time()]:
                fleet.thaw(place)
                self.thaws.remove((due, place))
            fleet.tend()
            await anyio.sleep(0.02)
