"""The clock of a private server, which can be set and given another rate; libfaketime stands between the two."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tenure.errors import StoreUnavailable
from tenure.store import Store
from tenure.testing._postgres_server import PostgresServer
from tenure.testing.servers import REDIS_KINDS, RedisServer, ServerMissing, find_program

T = TypeVar("T")
HONEST = 1.05
"""Up to this rate of the store's clock a holder's margin is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """What a clock shows: the true time and `ahead_s`, running at a rate of its own since the server was started."""

    ahead_s: int = 0
    rate: float = 1


@dataclass(slots=True, kw_only=True)
class Hands:
    """Sets the clock of one server, and knows when it ran ahead of what a lease allows."""

    file: Path
    store: Store | None = None
    """Tells the server's time."""
    shown: Time = Time()
    fast: list[tuple[float, float]] = field(default_factory=list)
    """From when until when, by this process's clock, leases may have ended before their time."""

    async def set(self, wanted: Time) -> None:
        """Set the clock, and wait until the server goes by it."""
        begun_s, before_us = time.monotonic(), await self._now_us()
        # In one go: the server reads the file at each look at its clock, and an empty one shows everybody's time.
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{wanted.ahead_s:+d} x{wanted.rate}")
        fresh.chmod(0o644)
        fresh.replace(self.file)
        await self._moved(wanted)
        taken_us, after_us = (time.monotonic() - begun_s) * 1e6, await self._now_us()
        ended_s = time.monotonic()
        if self.shown.rate > HONEST:
            self.fast[-1] = (self.fast[-1][0], ended_s)
        if wanted.rate > HONEST:
            self.fast.append((begun_s, float("inf")))
        elif after_us > before_us + taken_us:
            self.fast.append((begun_s, ended_s))
        self.shown = wanted

    async def _moved(self, wanted: Time) -> None:
        # The file is read at each look at the clock, so the next answer goes by it; a rate is shown by going on.
        if wanted.ahead_s != self.shown.ahead_s:
            async with asyncio.timeout(20):
                while abs(await self._now_us() / 1e6 - time.time() - wanted.ahead_s) > 1_000:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    async def _now_us(self) -> int:
        if self.store is None:
            message = "the hands have no store that tells the time; give them one"
            raise RuntimeError(message)
        return (await asked_for(self.store.facts)).now_us

    def ran_ahead(self, from_s: float, until_s: float) -> bool:
        """Return whether a lease of this time may have ended early."""
        return any(begun_s <= until_s and ended_s >= from_s for begun_s, ended_s in self.fast)


async def asked_for(read: Callable[[], Awaitable[T]]) -> T:
    """Return what a read returns, asked until there is an answer: a clock that jumps may end the driver's patience."""
    while True:
        try:
            return await read()
        except StoreUnavailable:
            await asyncio.sleep(0.02)


def library() -> Path:
    """Return where libfaketime is; ServerMissing with how to get it."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        message = "no libfaketime, which sets a server's clock: apt-get install libfaketime"
        raise ServerMissing(message)
    return found[0]


@contextlib.asynccontextmanager
async def clocked(name: str) -> AsyncIterator[tuple[RedisServer | PostgresServer, Hands]]:
    """Start a server of a kind whose clock can be set; gone at the end of the block."""
    preload = library()
    server: RedisServer | PostgresServer
    if name == "postgres":
        server = PostgresServer()
    else:
        kind = next(kind for kind in REDIS_KINDS if kind.name == name)
        program = find_program(kind)
        if program is None:
            message = f"no local {kind.product} {kind.major}: {kind.hint}"
            raise ServerMissing(message)
        server = RedisServer(program)
    hands = Hands(file=server.folder / "clock")
    hands.file.write_text("+0 x1")
    hands.file.chmod(0o644)
    settings = {
        "LD_PRELOAD": preload, "FAKETIME_TIMESTAMP_FILE": hands.file, "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1, "FAKETIME_DISABLE_SHM": 1,
    }  # fmt: skip
    server.wrapper = ("env", *(f"{key}={value}" for key, value in settings.items()))
    try:
        await asyncio.to_thread(server.start)
        yield server, hands
    finally:
        await asyncio.to_thread(server.close)
