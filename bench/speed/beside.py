"""The other side, in a process of its own: neither side runs beside the threads or in the memory of the other."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path

from speed.bars import Repeat, Setting

PROGRAM = Path(__file__).parents[1] / "peer.py"
END_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that makes steps when it is asked to."""

    name: str
    process: Process

    async def steps(self, times: int, runs: int = 1) -> list[float]:
        """Have so many steps made of each of so many runs at once, and return the seconds of each of the first."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{times} {runs}\n".encode())
        found: list[float] = json.loads(await self.line())
        return found

    def at_once(self, runs: int) -> Repeat:
        """Return what makes so many steps of each of so many runs, all runs at once."""

        async def work(times: int) -> None:
            await self.steps(times, runs)

        return work

    async def line(self) -> bytes:
        """Return what it says next; RuntimeError if it has ended."""
        said = await self.process.stdout.readline() if self.process.stdout is not None else b""
        if not said:
            raise RuntimeError(f"{self.name} ended before it was told to")
        return said

    async def end(self) -> None:
        """Let it come to its end, and end it where it does not."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), END_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def beside(setting: Setting, name: str, where: str, runs: int = 1) -> Peer:
    """Start a peer of `bench/peer.py`, which ends with the setting."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), name, where, str(runs), stdin=PIPE, stdout=PIPE
    )
    peer = Peer(name, process)
    setting.stack.push_async_callback(peer.end)
    await peer.line()
    return peer
