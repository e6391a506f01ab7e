"""The line to a Redis server while its connection is made, has ended, or brings a reply in pieces."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio.connection import AbstractConnection

from conftest import StartRedis
from tenure.store import SLOW_BYTES_S
from tenure.stores._redis_address import address
from tenure.stores._redis_connect import connect
from tenure.stores._redis_line import Line, LineBroken, pack
from tenure.testing.servers import REDIS8


async def test_a_connection_that_had_ended_before_it_was_taken_over_is_none(start_redis: StartRedis) -> None:
    where = address(start_redis(REDIS8).url, {})
    ended = list[AbstractConnection]()

    async def connected() -> AbstractConnection:
        connection = await connect(where)
        if not ended:
            ended.append(connection)
            await connection.send_packed_command([pack("QUIT")])
            stream = cast("Any", connection._reader)
            with anyio.fail_after(20):
                while not stream._eof:  # noqa: ASYNC110 - it is the server's
                    await anyio.sleep(0.01)
        return connection

    line = Line(connected)
    try:
        with pytest.raises(LineBroken) as broken:
            await line.ask([pack("PING")])
        assert not broken.value.sent
        assert await line.ask([pack("PING")]) == [b"PONG"]
    finally:
        await line.aclose()


async def test_who_waits_for_a_connection_is_told_when_the_line_is_closed_and_not_cancelled(
    start_redis: StartRedis,
) -> None:
    server = start_redis(REDIS8)
    server.freeze()
    line = Line(lambda: connect(address(server.url, {})))
    asking = asyncio.create_task(line.ask([pack("PING")]))
    with anyio.fail_after(20):
        while line.idle:  # noqa: ASYNC110 - it has no event
            await anyio.sleep(0.001)
    await line.aclose()
    with pytest.raises(LineBroken) as broken:
        await asking
    assert not broken.value.sent
    server.thaw()


async def test_a_large_reply_that_comes_in_pieces_is_awaited_by_a_loop_that_was_blocked(
    start_redis: StartRedis,
) -> None:
    """What waits in the socket is life, although the loop reads it only after the time-out, and in many turns."""
    where = address(start_redis(REDIS8).url, {"timeout": "2"})
    line = Line(lambda: connect(where))
    large = b"x" * 32_000_000
    try:
        assert await line.ask([pack("SET", "large", large)]) == [b"OK"]
        asking = asyncio.create_task(line.ask([pack("GET", "large")]))
        while line.idle:
            await anyio.lowlevel.checkpoint()
        time.sleep(2.5)  # noqa: ASYNC251 - the loop is blocked
        assert await asking == [large]
    finally:
        await line.aclose()


async def test_what_is_asked_later_does_not_lengthen_the_wait_on_a_connection_that_is_dead(
    start_redis: StartRedis,
) -> None:
    """Each run that writes, and each that asks again, would else keep it for seconds more, and so for ever."""
    server = start_redis(REDIS8)
    line = Line(lambda: connect(address(server.url, {"timeout": "1"})))
    try:
        assert await line.ask([pack("PING")]) == [b"PONG"]
        server.freeze()
        small = asyncio.create_task(line.ask([pack("PING")]))
        while line.idle:  # noqa: ASYNC110 - it has no event
            await anyio.sleep(0.001)
        large = asyncio.create_task(line.ask([pack("ECHO", b"x" * 100 * SLOW_BYTES_S)]))
        with anyio.fail_after(60):
            for asked in (small, large):
                (told,) = await asked
                assert isinstance(told, LineBroken)
                assert told.sent
    finally:
        server.thaw()
        await line.aclose()
