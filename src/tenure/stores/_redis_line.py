"""One connection that many callers share: what one turn of the loop asks leaves together, one reader answers in order.

The connection is redis-py's (TLS, authentication, protocol); only its queueing is ours, because a client object that
hands a connection to one caller at a time cannot reach half of what the server can do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import BusyLoadingError, RedisError, ResponseError

Reply: TypeAlias = Any
"""What the server answered to one command: bytes, int, None, a list of these, or the exception that says why not."""

Part: TypeAlias = bytes | str | int

IDLE_S = 0.01

try:
    from hiredis import pack_command as _hiredis_pack
except ImportError:
    _PACK: Callable[[tuple[Part, ...]], bytes] | None = None
else:
    _PACK = cast("Callable[[tuple[Part, ...]], bytes]", _hiredis_pack)


class LineBroken(Exception):
    """The connection broke; `sent` tells whether the server may have seen the request, `cause` why."""

    def __init__(self, cause: BaseException | str, *, sent: bool) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}" if isinstance(cause, BaseException) else cause)
        self.cause = cause
        self.sent = sent


def pack(*parts: Part) -> bytes:
    """Return the bytes of one command."""
    if _PACK is not None:
        return _PACK(parts)
    packed = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(packed)


@dataclass(slots=True)
class _Asked:
    """What one caller asked; who is cancelled drops the future, and the slot still takes its replies."""

    packed: Sequence[bytes]
    future: asyncio.Future[list[Reply]]
    wait: bool = False
    replies: list[Reply] = field(default_factory=list)
    group: list[_Asked] = field(default_factory=list)


class Line:
    """A connection for one event loop, made when it is needed and made anew when it broke.

    `wait` is the packed command (WAIT or WAITAOF) that ends a group of requests which asked for it. While one is
    under way no other request leaves, so that a replica which lags holds everybody up once and not once each.
    """

    def __init__(self, connect: Callable[[], Awaitable[AbstractConnection]], /, *, wait: bytes = b"") -> None:
        self._connect = connect
        self._wait = wait
        self._connection: AbstractConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._queue: list[_Asked] = []
        self._sent: deque[_Asked] = deque()
        self._more = asyncio.Event()
        self._scheduled = False
        self._held = False
        self._heard = 0.0

    async def ask(self, packed: Sequence[bytes], /, *, wait: bool = False) -> list[Reply]:
        """Return a reply for each command, and one more for the wait if that is asked for.

        LineBroken is raised when nothing was sent; when the connection broke later it stands for each missing reply.
        Cancelled before the end of this turn of the loop, nothing is sent.
        """
        loop = asyncio.get_running_loop()
        if loop.time() > self._heard + IDLE_S:
            # An idle connection may have been closed: two turns of the loop, and the stream knows.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if not self._usable():
            await self._open()
        asked = _Asked(packed, loop.create_future(), wait=wait and self._wait != b"")
        self._queue.append(asked)
        if not self._scheduled and not self._held:
            self._scheduled = True
            loop.call_soon(self._flush)
        return await asked.future

    async def aclose(self) -> None:
        """Close; whoever still waits gets LineBroken."""
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        reader = self._reader
        self._break(LineBroken("the store was closed", sent=True))
        if reader is not None:
            await asyncio.wait([reader])

    def drop(self) -> None:
        """Make the next request connect anew: this server is no longer the one to ask."""
        if self._connection is not None:
            self._break(LineBroken("the server is no longer the primary", sent=True))

    @property
    def idle(self) -> bool:
        """Return whether nobody waits for an answer."""
        return not self._sent and not self._queue and self._opening is None

    def _usable(self) -> bool:
        connection = self._connection
        if connection is None:
            return False
        # One that the server closed shows it here, before anything is sent over it in vain.
        stream = connection._reader  # noqa: SLF001 - redis-py shows this only by reading from it
        if not self._sent and not self._queue and (stream is None or stream.at_eof()):
            self._break(LineBroken("the server closed the connection", sent=False))
            return False
        return True

    async def _open(self) -> None:
        # One attempt for all who wait: a server that does not answer costs everybody one time-out together.
        if self._opening is None:
            self._opening = asyncio.create_task(self._make(), name="tenure-redis-connect")
            self._opening.add_done_callback(_look_at)
        await asyncio.shield(self._opening)

    async def _make(self) -> None:
        try:
            connection = await self._connect()
            self._connection = connection
            self._reader = asyncio.create_task(self._read(connection), name="tenure-redis-line")
        finally:
            self._opening = None

    def _flush(self) -> None:
        self._scheduled = False
        asked = [one for one in self._queue if not one.future.done()]
        self._queue.clear()
        writer = self._connection._writer if self._connection is not None else None  # noqa: SLF001 - see below
        if not asked:
            return
        if writer is None:
            for one in asked:
                one.future.set_exception(LineBroken("the connection broke", sent=False))
            return
        self._sent.extend(asked)
        data = [command for one in asked for command in one.packed]
        if group := [one for one in asked if one.wait]:
            self._held = True
            data.append(self._wait)
            nobody: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
            self._sent.append(_Asked([self._wait], nobody, group=group))
        # redis-py's own way to send awaits between callers; the stream is written to directly, in one piece.
        writer.write(b"".join(data))
        self._more.set()

    async def _read(self, connection: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                while not self._sent:
                    self._more.clear()
                    await self._more.wait()
                asked = self._sent[0]
                asked.replies.append(await reply(connection))
                if len(asked.replies) == len(asked.packed):
                    self._sent.popleft()
                    if not self._sent:
                        self._heard = loop.time()
                    self._answer(asked)
        except (RedisError, OSError) as error:
            if self._connection is connection:
                self._break(LineBroken(error, sent=True))
        finally:
            await _disconnect(connection)

    def _answer(self, asked: _Asked) -> None:
        if asked.group:
            for one in asked.group:
                _resolve(one, [*one.replies, *asked.replies])
            self._held = False
            self._flush()
        elif not asked.wait:
            _resolve(asked, asked.replies)

    def _break(self, broken: LineBroken) -> None:
        self._connection = None
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        self._reader = None
        self._held = False
        sent, queue = list(self._sent), self._queue
        self._sent.clear()
        self._queue = []
        # A member of a group whose wait has not been answered has all its replies but that one.
        for one in [*(member for asked in sent for member in asked.group), *sent]:
            missing = len(one.packed) + one.wait - len(one.replies)
            _resolve(one, [*one.replies, *[LineBroken(broken.cause, sent=True)] * missing])
        for one in queue:
            if not one.future.done():
                one.future.set_exception(LineBroken(broken.cause, sent=False))


def _resolve(asked: _Asked, replies: list[Reply]) -> None:
    if not asked.future.done():
        asked.future.set_result(replies)


async def reply(connection: AbstractConnection, /) -> Reply:
    """Return the next reply; a refusal of the server is returned, not raised."""
    try:
        return await connection.read_response(disable_decoding=True, disconnect_on_error=False)
    except (ResponseError, BusyLoadingError) as error:
        return error


async def _disconnect(connection: AbstractConnection) -> None:
    try:
        await connection.disconnect(nowait=True)
    except (RedisError, OSError):
        return  # it is gone, one way or another


def _look_at(opening: asyncio.Task[None]) -> None:
    # Everybody who waited may have been cancelled; then nobody else looks at what came of it.
    if not opening.cancelled():
        opening.exception()
