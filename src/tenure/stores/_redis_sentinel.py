"""The primary that sentinels name, asked for with every new connection: they know of a failover, a client does not."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import quote

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, NoPermissionError

from tenure.errors import StoreUnavailable, StoreUnsafe, TenureError
from tenure.stores._redis_address import Address, Node, Setup, host_port
from tenure.stores._redis_connect import connect, drop, told, untrusted
from tenure.stores._redis_line import LineBroken, pack

_LOG = logging.getLogger("tenure.stores.redis")

ASK_S = 1.0
"""How long a sentinel may take to answer; the others are asked at the same time."""

_Named: TypeAlias = tuple[int, Node]
"""A configuration epoch, and the primary since then."""


async def connect_primary(where: Address, /) -> AbstractConnection:
    """Return a connection to the primary; StoreUnavailable or StoreUnsafe names the sentinels that did not tell it."""
    return await connect(where, await _primary(where))


async def _primary(where: Address) -> Node:
    """Return the primary by the latest configuration that most of the sentinels, or all that answer, know of."""
    asking = [asyncio.create_task(_ask(where, sentinel)) for sentinel in where.nodes]
    named: list[_Named] = []
    refused: list[str] = []
    silent: list[str] = []
    try:
        for next_answer in asyncio.as_completed(asking):
            answer = await next_answer
            if isinstance(answer, LineBroken):
                silent.append(str(answer))
            elif isinstance(answer, str):
                refused.append(answer)
            else:
                named.append(answer)
            if 2 * len(named) > len(where.nodes):
                break
    finally:
        for task in asking:
            task.cancel()
    if named:
        return max(named)[1]
    raise _nobody(where, refused, silent)


def _nobody(where: Address, refused: list[str], silent: list[str]) -> TenureError:
    if refused:
        message = f"no sentinel of {where.shown} names the primary of {where.service!r} ({refused[0]})"
        return StoreUnsafe(f"{message}; correct the service, sentinel_password or ssl_ca_certs in the URL")
    message = f"none of the sentinels of {where.shown} can be reached ({'; '.join(silent)[:400]})"
    return StoreUnavailable(f"{message}; start them or correct the URL, then try again")


async def _ask(where: Address, sentinel: Node) -> _Named | str | LineBroken:
    """Return what a sentinel names, what it said instead, or why it said nothing."""
    name, password = where.sentinel_user
    user = f"{quote(name, safe='')}:{quote(password, safe='')}" if password else ""
    at = replace(where, setup=Setup.ONE, user=user, db=None, timeout=min(where.timeout, ASK_S))
    try:
        connection = await connect(at, sentinel)
    except LineBroken as broken:
        if isinstance(broken.cause, AuthenticationError):
            return f"{host_port(sentinel)} refused the name or password"
        if untrusted(broken.cause):
            return f"{host_port(sentinel)}: {broken}"
        return LineBroken(f"{host_port(sentinel)}: {broken}", sent=False)
    try:
        (answer,) = await told(connection, pack("SENTINEL", "MASTER", where.service))
    except LineBroken as broken:
        return LineBroken(f"{host_port(sentinel)}: {broken}", sent=False)
    finally:
        await drop(connection)
    if isinstance(answer, NoPermissionError):
        return f"{host_port(sentinel)} needs +sentinel|master for this user"
    if isinstance(answer, BaseException):
        return f"{host_port(sentinel)} said {str(answer)[:100]}"
    said = dict(zip(answer[::2], answer[1::2], strict=True))
    return int(said[b"config-epoch"]), (said[b"ip"].decode(), int(said[b"port"]))
