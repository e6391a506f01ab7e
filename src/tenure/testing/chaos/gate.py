"""A place at which a process stands until it is let through: two pipes in a folder, one to say so, one to wait on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import anyio

from tenure.testing.chaos.stage import Forked


class Stand(StrEnum):
    """How a process stands at a gate: only this task waits, or its loop, or every thread of its interpreter."""

    TASK = "task"
    LOOP = "loop"
    INTERPRETER = "interpreter"


@contextmanager
def gate(folder: Path) -> Iterator[Gate]:
    """Make a gate in a folder."""
    for name in ("there", "go"):
        os.mkfifo(folder / name)
    there, go = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in ("there", "go"))
    try:
        yield Gate(there, go)
    finally:
        os.close(there)
        os.close(go)


class Gate:
    """The keeper's side."""

    def __init__(self, there: int, go: int) -> None:
        self._there = there
        self._go = go

    async def stood_at(self) -> None:
        """Wait until a process stands here, whichever it is."""
        await anyio.wait_readable(self._there)

    async def reached(self, process: Forked) -> bool:
        """Wait until a process stands here; False if it ended before."""
        found = False
        async with anyio.create_task_group() as tasks:

            async def ended() -> None:
                await process.ended()
                tasks.cancel_scope.cancel()

            tasks.start_soon(ended)
            await anyio.wait_readable(self._there)
            found = bool(os.read(self._there, 1))
            tasks.cancel_scope.cancel()
        return found

    def open(self) -> None:
        """Let it through."""
        os.write(self._go, b".")


async def stand(folder: Path, how: Stand) -> None:
    """Stand at the gate of a folder until it is opened."""
    if how is not Stand.TASK:
        stand_still(folder, how)
        return
    there, go = (os.open(folder / name, os.O_RDWR) for name in ("there", "go"))
    try:
        os.write(there, b".")
        await anyio.wait_readable(go)
    finally:
        os.close(there)
        os.close(go)


def stand_still(folder: Path, how: Stand) -> None:
    """Stand at the gate of a folder, and let nothing else of this loop, or of this interpreter, go on."""
    there, go = (os.open(folder / name, os.O_RDWR) for name in ("there", "go"))
    try:
        os.write(there, b".")
        if how is Stand.LOOP:
            os.read(go, 1)
        else:
            # A call into C that does not give the interpreter back: no other thread runs, the heartbeat's neither.
            ctypes.PyDLL(None).read(go, ctypes.create_string_buffer(1), 1)
    finally:
        os.close(there)
        os.close(go)
