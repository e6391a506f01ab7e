"""Wake-ups by publish and subscribe: hints that make waiting short, and a plain wait where they fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from tenure.stores._bell import Bell, end
from tenure.stores._redis_line import LineBroken, pack

_LOG = logging.getLogger("tenure.stores.redis")

PING_S = 60.0
"""Rarely, because many idle workers listen; who misses a wake-up looks by itself every quarter of a minute."""
RETRY_S = 0.5
RETRY_MOST_S = 30.0


class Listener:
    """One subscription of one store object to the channel of its namespace; it rings a bell of this process."""

    def __init__(self, connect: Callable[[], Awaitable[AbstractConnection]], channel: str, /) -> None:
        self._connect = connect
        self._channel = channel
        self._bell = Bell()
        self._heard = self._bell.heard()
        self._task: asyncio.Task[None] | None = None
        self._deaf = True

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics; what was published since this object last waited for it counts at once.

        The first wait subscribes: many store objects never wait for anything.
        """
        self._begin()
        return await self._bell.woken(self._heard, topics, timeout=timeout)

    async def aclose(self) -> None:
        """End the subscription."""
        if self._task is not None:
            await end(self._task)
            self._task = None

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="tenure-redis-listener")

    async def _listen(self) -> None:
        pause = RETRY_S
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._subscribe(connection)
                    pause = RETRY_S
                    await self._hear(connection)
                finally:
                    with contextlib.suppress(RedisError, OSError):
                        await connection.disconnect(nowait=True)
            except (LineBroken, RedisError, OSError) as error:
                _LOG.debug("no wake-ups from %s: %s", self._channel, type(error).__name__)
            self._deaf = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MOST_S)

    async def _subscribe(self, connection: AbstractConnection) -> None:
        await connection.send_packed_command([pack("SUBSCRIBE", self._channel)])
        await connection.read_response(disable_decoding=True)
        if self._deaf:
            self._bell.ring()  # what was published while nobody listened is unknown: everybody looks once

    async def _hear(self, connection: AbstractConnection) -> None:
        silent = False
        while True:
            message = await connection.read_response(disable_decoding=True, timeout=PING_S)
            if message is None:
                if silent:
                    return  # a half-open connection: not even its own ping came back
                await connection.send_packed_command([pack("PING")])
            elif message[0] == b"message":
                self._bell.ring(message[2].decode(errors="replace"))
            silent = message is None
