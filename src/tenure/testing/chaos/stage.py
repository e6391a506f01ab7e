"""The asker's end of the forks: processes of one's own, in milliseconds each, with how they stop and end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

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
        return self._errors.read_text(errors="replace")[-2000:] if self._errors.exists() else ""

    def tell(self, said: Mapping[str, Any]) -> None:
        """Take in what became of it."""
        if "code" in said:
            self.code = said["code"]
            self._over.set()
        if "pid" not in said:
            self._still.set()


class Stage:
    """A process that forks others: `async with Stage("module") as stage: process = await stage.fork(...)`."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._stack = AsyncExitStack()
        self._process: Process | None = None
        self._forked: dict[int, Forked] = {}
        self._many = 0

    async def __aenter__(self) -> Self:
        """Start it."""
        command = [sys.executable, "-m", "tenure.testing.chaos.forks", *self._modules]
        self._process = await self._stack.enter_async_context(
            await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)
        )
        self._saying = anyio.Lock()
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self._listen)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Kill it, and with it all that it has forked."""
        if self._process is not None:
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    async def fork(self, play: str, order: Mapping[str, Any], /, *, errors: Path) -> Forked:
        """Fork a process that plays an order: `module:function`, an async function that returns its exit code."""
        self._many += 1
        forked = self._forked[self._many] = Forked(self, self._many, errors)
        await self.say(id=self._many, play=play, order=order, errors=str(errors))
        return forked

    async def say(self, **said: Any) -> None:
        """Send it one line."""
        if self._process is None or self._process.stdin is None:
            message = "the stage is not open; use `async with Stage() as stage:`"
            raise RuntimeError(message)
        async with self._saying:
            await self._process.stdin.send(json.dumps(said).encode() + b"\n")

    async def _listen(self) -> None:
        assert self._process is not None
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
