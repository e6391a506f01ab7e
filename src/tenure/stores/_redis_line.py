"""One connection that many callers share: what one turn of the loop asks leaves together, replies come in order.

The connection is redis-py's (TLS, authentication, protocol) until it is ready; then its transport is taken over: a
client object that hands a connection to one caller at a time cannot reach half of what the server can do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, ResponseError, TimeoutError  # noqa: A004

from tenure.store import SLOW_BYTES_S
from tenure.stores._redis_reader import NOTHING, Reply, reader

Part: TypeAlias = bytes | str | int

IDLE_S = 0.01
LARGE_BYTES = 64 * 1024
"""From here on a copy costs more than a call."""

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
    return _PACK(parts) if _PACK is not None else pack_large(*parts)


def pack_large(*parts: Part) -> bytes:
    """Return the bytes of one command with large parts, of which hiredis makes one copy more."""
    packed = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        packed += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(packed)


@dataclass(slots=True)
class _Asked:
    """What one caller asked; who is cancelled drops the future, and the slot still takes its replies."""

    packed: Sequence[bytes]
    future: asyncio.Future[list[Reply]]
    wait: bool = False
    replies: list[Reply] = field(default_factory=list)
    group: list[_Asked] = field(default_factory=list)


class _Wire(asyncio.Protocol):
    """The transport of one connection: what comes over it goes to its line for as long as that keeps it."""

    def __init__(self, line: Line, connection: AbstractConnection) -> None:
        # redis-py has no way to give a connection away; without its streams it has nothing left to read or to close.
        writer = cast("asyncio.StreamWriter", connection._writer)  # noqa: SLF001
        stream = cast("Any", connection._reader)  # noqa: SLF001
        parser = connection._parser  # noqa: SLF001
        connection._writer = connection._reader = None  # noqa: SLF001
        self._line = line
        self._reader = reader(parser.parse_error)
        self.timeout_s: float | None = connection.socket_timeout
        self.transport = cast("asyncio.Transport", writer.transport)
        self._writer = writer  # kept, because it closes the transport when it is collected
        self.transport.set_protocol(self)
        # A stream that has read the end keeps the transport half open, and nobody would be told of the end again.
        self.ended = bool(stream is None or stream._eof or stream._buffer) or self.transport.is_closing()  # noqa: SLF001

    def write(self, commands: Sequence[bytes]) -> None:
        """Send commands in one piece; a large one goes by itself, because joining it would copy it once more."""
        if max(map(len, commands)) <= LARGE_BYTES:
            self.transport.write(b"".join(commands))
            return
        for command in commands:
            self.transport.write(command)

    def data_received(self, data: bytes) -> None:
        """Hand on each reply that is whole."""
        line, gets = self._line, self._reader.gets
        line.heard = asyncio.get_running_loop().time()  # a large reply comes in many pieces
        try:
            self._reader.feed(data)
            while line.wire is self and (reply := gets()) is not NOTHING:
                line.take(reply)
        except RedisError as error:
            line.lost(self, error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the line, if it still has this connection."""
        self._line.lost(self, exc or ConnectionError("the server closed the connection"))


class Line:
    """A connection for one event loop, made when it is needed and made anew when it broke.

    `wait` is the packed command (WAIT or WAITAOF) that ends a group of requests which asked for it. While one is
    under way no other request leaves, so that a replica which lags holds everybody up once and not once each.
    """

    def __init__(self, connect: Callable[[], Awaitable[AbstractConnection]], /, *, wait: bytes = b"") -> None:
        self._connect = connect
        self._wait = wait
        self.wire: _Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._queue: list[_Asked] = []
        self._sent: deque[_Asked] = deque()
        self._scheduled = False
        self._held = False
        self._together = 1
        self.heard = 0.0
        self._watch: asyncio.TimerHandle | None = None

    async def ask(self, packed: Sequence[bytes], /, *, wait: bool = False) -> list[Reply]:
        """Return a reply for each command, and one more for the wait if that is asked for.

        LineBroken is raised when nothing was sent; when the connection broke later it stands for each missing reply.
        """
        loop = asyncio.get_running_loop()
        if not self._sent:
            if loop.time() > self.heard + IDLE_S:
                # An idle connection may have been closed: two turns of the loop, and the transport knows.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if self.wire is not None and self.wire.transport.is_closing() and not self._sent:
                self._break(LineBroken("the server closed the connection", sent=False))
        if self.wire is None:
            await self._open()
        asked = _Asked(packed, loop.create_future(), wait and self._wait != b"")
        self._queue.append(asked)
        if not self._scheduled and not self._held:
            if self._together == 1 and not self._sent:
                self._flush()  # nobody else asks: a turn of the loop would bring nobody
            else:
                self._scheduled = True
                loop.call_soon(self._flush)
        return await asked.future

    async def aclose(self) -> None:
        """Close; whoever still waits gets LineBroken."""
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        self._break(LineBroken("the store was closed", sent=True))
        await asyncio.sleep(0)  # the transport lets go of its socket in the next turn

    def drop(self) -> None:
        """Make the next request connect anew: this server is no longer the one to ask."""
        if self.wire is not None:
            self._break(LineBroken("the server is no longer the primary", sent=True))

    @property
    def idle(self) -> bool:
        """Return whether nobody waits for an answer."""
        return not self._sent and not self._queue and self._opening is None

    async def _open(self) -> None:
        # One attempt for all who wait: a server that does not answer costs everybody one time-out together.
        if self._opening is None:
            self._opening = asyncio.create_task(self._make(), name="tenure-redis-connect")
            self._opening.add_done_callback(_look_at)
        opening = self._opening
        await asyncio.wait([opening])  # who waits is not cancelled with it, nor it with who waits
        if opening.cancelled():
            raise LineBroken("the store was closed", sent=False)
        opening.result()

    async def _make(self) -> None:
        try:
            wire = _Wire(self, await self._connect())
            if wire.ended:
                wire.transport.abort()
                raise LineBroken("the server closed the connection", sent=False)
            self.wire = wire
        finally:
            self._opening = None

    def _flush(self) -> None:
        self._scheduled = False
        asked, self._queue = [one for one in self._queue if not one.future.done()], []
        if not asked:
            return
        wire, loop = self.wire, asyncio.get_running_loop()
        if wire is None:
            for one in asked:
                one.future.set_exception(LineBroken("the connection broke", sent=False))
            return
        if not self._sent:
            self.heard = loop.time()
        self._together = len(asked)
        self._sent.extend(asked)
        data = [command for one in asked for command in one.packed]
        if self._wait and (group := [one for one in asked if one.wait]):
            self._held = True
            data.append(self._wait)
            nobody: asyncio.Future[list[Reply]] = loop.create_future()
            self._sent.append(_Asked([self._wait], nobody, group=group))
        if self._watch is None and wire.timeout_s is not None:
            self._watch = loop.call_later(wire.timeout_s, self._look)
        wire.write(data)

    def take(self, reply: Reply, /) -> None:
        """Give the next reply to whom it belongs."""
        if not self._sent or (
            isinstance(reply, RedisError) and not isinstance(reply, ResponseError | BusyLoadingError)
        ):
            self._break(LineBroken(reply if isinstance(reply, RedisError) else "a reply to nothing", sent=True))
            return
        asked = self._sent[0]
        asked.replies.append(reply)
        if len(asked.replies) == len(asked.packed):
            self._sent.popleft()
            self._answer(asked)

    def lost(self, wire: _Wire, cause: Exception, /) -> None:
        """Give up a connection that broke."""
        if self.wire is wire:
            self._break(LineBroken(cause, sent=True))

    def _look(self) -> None:
        """Break a connection on which a reply is missing and nothing comes for too long.

        What a large request needs to get there is not known here: much of it waits in buffers of others. Only the first
        that waits counts: nothing behind it holds it up, and whoever asks again would keep a dead connection.
        """
        self._watch = None
        if self.wire is None or self.wire.timeout_s is None or not self._sent:
            return
        patience_s = self.wire.timeout_s + sum(map(len, self._sent[0].packed)) / SLOW_BYTES_S
        loop = asyncio.get_running_loop()
        now, late_at = loop.time(), self.heard + patience_s
        if now < late_at:
            self._watch = loop.call_at(min(late_at, now + self.wire.timeout_s), self._look)
        else:
            self._break(LineBroken(TimeoutError(f"no answer within {patience_s:.3g} s"), sent=True))

    def _answer(self, asked: _Asked) -> None:
        if asked.group:
            for one in asked.group:
                _resolve(one, [*one.replies, *asked.replies])
            self._held = False
            self._flush()
        elif not asked.wait:
            _resolve(asked, asked.replies)

    def _break(self, broken: LineBroken) -> None:
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.transport.abort()  # to close would wait for a server that hangs to take what was not sent
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
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


def _look_at(opening: asyncio.Task[None]) -> None:
    # Everybody who waited may have been cancelled; then nobody else looks at what came of it.
    if not opening.cancelled():
        opening.exception()
