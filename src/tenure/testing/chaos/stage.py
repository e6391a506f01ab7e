"""The asker's end of the forks: processes of one's own, in milliseconds each, with how they stop and end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

LINE_BYTES = 1 << 16


class Forked:
    """One process; it is there until `ended` says how it ended."""

    def __init__(self, stage: Stage, number: int, errors: Path) -> None:
        self._stage = stage
        self._number = number
        self._errors = errors
        self._over = anyio.Event()
        self._still = anyio.Event()
        self.code: int | None = None

    async def ended(self) -> int:
        """Wait for its end; return its exit code, a signal as a negative one."""
        await self._over.wait()
        return self.code if self.code is not None else 1

    async def still(self) -> bool:
        """Wait until it is frozen or has ended; return whether it is frozen."""
        await self._still.wait()
        return self.code is None

    async def send(self, number: signal.Signals, /) -> None:
        """Send it a signal, if it is there."""
        if number is signal.SIGCONT and not self._over.is_set():
            self._still = anyio.Event()
        await self._stage.say(id=self._number, signal=int(number))

    @property
    def errors(self) -> str:
        """What it said in the end."""
        return self._errors.read_text(errors="replace")[-8000:] if self._errors.exists() else ""

    def tell(self, said: Mapping[str, Any]) -> None:
        """Take in what became of it."""
        if "code" in said:
            self.code = said["code"]
            self._over.set()
        if "pid" not in said:
            self._still.set()


class Stage:
    """The process that forks; `stage` starts one."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._forked: dict[int, Forked] = {}
        self._many = 0
        self._saying = anyio.Lock()
        self.room = anyio.Semaphore(3)
        """For those who have to get somewhere while their lease lasts; who stands still is not one of them."""

    async def fork(self, play: str, order: Mapping[str, Any], /, *, errors: Path) -> Forked:
        """Fork a process that plays an order: `module:function`, an async function that returns its exit code."""
        self._many += 1
        forked = self._forked[self._many] = Forked(self, self._many, errors)
        await self.say(id=self._many, play=play, order=order, errors=str(errors))
        return forked

    async def say(self, **said: Any) -> None:
        """Send it one line."""
        assert self._process.stdin is not None
        async with self._saying:
            await self._process.stdin.send(json.dumps(said).encode() + b"\n")

    async def listen(self) -> None:
        """Take in what it tells, until it is gone."""
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        while True:
            try:
                said = json.loads(await lines.receive_until(b"\n", LINE_BYTES))
            except (anyio.EndOfStream, anyio.IncompleteRead):
                break
            self._forked[said["id"]].tell(said)
            if "code" in said:
                del self._forked[said["id"]]
        # It is gone, and with it whatever was left of them.
        for forked in self._forked.values():
            forked.tell({"code": -signal.SIGKILL})


@asynccontextmanager
async def stage(*modules: str) -> AsyncIterator[Stage]:
    """Start a process that has imported these modules; at the end it is killed, and with it all that it has forked."""
    command = [sys.executable, "-m", "tenure.testing.chaos.forks", *modules]
    process = await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)
    async with process, anyio.create_task_group() as tasks:
        found = Stage(process)
        tasks.start_soon(found.listen)
        try:
            yield found
        finally:
            process.kill()
            tasks.cancel_scope.cancel()
