"""Wake-ups by LISTEN and NOTIFY: hints that make waiting short, and a plain wait where they cannot come."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import psycopg

from tenure.errors import TenureError
from tenure.stores._bell import Bell, end
from tenure.stores._postgres_connect import Connection

_LOG = logging.getLogger("tenure.stores.postgres")

RETRY_S = 0.5
RETRY_MOST_S = 30.0
ALIVE_S = 60.0
"""How often a silent connection is asked whether it still lives, and how long an answer is awaited."""


def channel(schema: str, namespace: str, /) -> str:
    """Return the channel of a namespace: a name of PostgreSQL has at most 63 bytes."""
    return f"tenure_{hashlib.sha256(f'{schema}/{namespace}'.encode()).hexdigest()[:32]}"


class Listener:
    """One subscription of one store object, on a connection of its own to the server itself; it rings a bell."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], name: str, /) -> None:
        self._connect = connect
        self._name = name
        self._bell = Bell()
        self._heard = self._bell.heard()
        self._task: asyncio.Task[None] | None = None
        self._deaf = True

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics; the first wait subscribes, because many store objects never wait."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="tenure-postgres-listener")
        return await self._bell.woken(self._heard, topics, timeout=timeout)

    async def aclose(self) -> None:
        """End the subscription."""
        if self._task is not None:
            await end(self._task)
            self._task = None

    async def _listen(self) -> None:
        pause = RETRY_S
        while True:
            try:
                connection = await self._connect()
                try:
                    async with asyncio.timeout(ALIVE_S):
                        if not await _is_direct(connection):
                            _LOG.info("wake-ups cannot come through a pooler; name the server itself as `direct`")
                            return
                        await connection.execute(f'LISTEN "{self._name}"'.encode())
                    pause = RETRY_S
                    if self._deaf:
                        self._bell.ring()  # what was said while nobody listened is unknown: everybody looks once
                        self._deaf = False
                    await self._hear(connection)
                finally:
                    connection.pgconn.finish()
            except (psycopg.Error, TenureError, OSError) as error:
                _LOG.debug("no wake-ups: %s", type(error).__name__)
            self._deaf = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MOST_S)

    async def _hear(self, connection: Connection) -> None:
        while True:
            async for said in connection.notifies(timeout=ALIVE_S):
                self._bell.ring(said.payload)
            async with asyncio.timeout(ALIVE_S):
                await connection.execute("SELECT 1")


async def _is_direct(connection: Connection) -> bool:
    # A pooler gives out process ids of its own, and a subscription would stay with whichever session it lent us.
    found = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return found is not None and found[0] == connection.pgconn.backend_pid
