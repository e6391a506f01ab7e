"""A fleet of worker processes, and what is done to them: one is killed or frozen every second, drawn from a seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

APP = "examples.license_audit.app:app"
ROOT = Path(__file__).parents[2]
SLOTS = 4
STOP_S = 15.0


class Fleet:
    """`tenure worker` with its child processes; a child that died is followed by another, started by the supervisor."""

    def __init__(self, url: str, count: int, /, *, ttl_s: float, environment: Mapping[str, str], folder: Path) -> None:
        options = ("--processes", str(count), "--concurrency", str(SLOTS), "--drain", "1")
        self._command = [sys.executable, "-m", "tenure", "worker", APP, *options]
        self._environment = {**os.environ, **environment, "TENURE_STORE": url, "TENURE_TTL": str(ttl_s)}
        self._output = folder / "workers.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.frozen: set[int] = set()

    def __enter__(self) -> Self:
        """Start the supervisor."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=output, stderr=output
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Thaw the workers and drain them; none is left."""
        for pid in list(self.frozen):
            self.thaw(pid)
        children = self._children()
        self._supervisor.terminate()
        try:
            self._supervisor.wait(STOP_S)
        except subprocess.TimeoutExpired:
            for pid in children:
                self._send(pid, signal.SIGKILL)
            self._supervisor.kill()
            self._supervisor.wait()

    @property
    def _supervisor(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            message = "the fleet was not started; use `with Fleet(...)`"
            raise RuntimeError(message)
        return self._process

    @property
    def output(self) -> str:
        """Return what the fleet has printed."""
        return self._output.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """Return whether the supervisor is gone, which nobody asked it to."""
        return self._supervisor.poll() is not None

    @property
    def awake(self) -> list[int]:
        """Return the pids of the workers that are not frozen, the oldest first."""
        children = self._children()
        self.frozen &= set(children)
        return [pid for pid in children if pid not in self.frozen]

    def _children(self) -> list[int]:
        pid = self._supervisor.pid
        try:
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(child) for child in listed.split()]

    def _send(self, pid: int, number: signal.Signals) -> bool:
        """Signal a child; False if it is gone. A pid that now names somebody else's process is not signalled."""
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                if pid in self._children():
                    signal.pidfd_send_signal(process, number)
                    return True
            finally:
                os.close(process)
        return False

    def kill(self, pid: int, /) -> bool:
        """Kill a worker for good: it has no chance to say or write anything."""
        return self._send(pid, signal.SIGKILL)

    def freeze(self, pid: int, /) -> bool:
        """Stop a worker where it stands."""
        if stopped := self._send(pid, signal.SIGSTOP):
            self.frozen.add(pid)
        return stopped

    def thaw(self, pid: int, /) -> None:
        """Let a frozen worker go on, as if no time had passed."""
        self._send(pid, signal.SIGCONT)
        self.frozen.discard(pid)


@dataclass(slots=True, kw_only=True)
class Chaos:
    """What was done to the workers so far; after `strikes` of it they are left alone."""

    seed: int
    every_s: float
    frozen_s: float
    strikes: int | None = None
    kills: int = 0
    freezes: int = 0
    _thaws: list[tuple[float, int]] = field(default_factory=list)

    async def rage(self, fleet: Fleet, begun: Callable[[], bool], tell: Callable[[str], None], /) -> None:
        """Disturb one worker after the other, once they have begun and until cancelled; one is always left alone."""
        while not begun():  # noqa: ASYNC110 - it is other processes that begin
            await anyio.sleep(0.02)
        draw = random.Random(self.seed)
        began = anyio.current_time()
        while True:
            await self._wait(fleet, anyio.current_time() + self.every_s)
            place, killed = draw.random(), draw.random() < 0.5
            if len(awake := fleet.awake) < 2 or self.strikes == self.kills + self.freezes:
                continue
            pid = awake[int(place * len(awake))]
            at = f"{anyio.current_time() - began:5.1f} s"
            if killed and fleet.kill(pid):
                tell(f"{at}: killed worker {pid}")
                self.kills += 1
            elif not killed and fleet.freeze(pid):
                tell(f"{at}: froze worker {pid} for {self.frozen_s:g} s")
                self.freezes += 1
                self._thaws.append((anyio.current_time() + self.frozen_s, pid))

    async def _wait(self, fleet: Fleet, until: float) -> None:
        while anyio.current_time() < until:
            for due, pid in [one for one in self._thaws if one[0] <= anyio.current_time()]:
                fleet.thaw(pid)
                self._thaws.remove((due, pid))
            await anyio.sleep(0.02)
