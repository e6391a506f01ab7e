"""The road to one primary: a line for changes and one for reads, what was found out about it, the level it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from redis.asyncio.connection import AbstractConnection

from tenure.store import Durability
from tenure.stores import _redis_check as check
from tenure.stores._redis_address import Address, Setup
from tenure.stores._redis_cluster import ClusterLine, Nodes
from tenure.stores._redis_connect import connect, drop, told, translated
from tenure.stores._redis_line import Line, LineBroken
from tenure.stores._redis_reader import Reply
from tenure.stores._redis_sentinel import connect_primary


class AnyLine(Protocol):
    """The face of a line, whichever way its connection is found."""

    async def ask(self, packed: Sequence[bytes], /, *, wait: bool = False) -> list[Reply]:
        """Return a reply for each command, and one more for the wait if that is asked for."""
        ...

    async def aclose(self) -> None:
        """Close."""
        ...

    def drop(self) -> None:
        """Make the next request connect anew."""
        ...


class Lines:
    """Makes the connections and lines to the primary that holds a key."""

    def __init__(self, where: Address, /) -> None:
        self.where = where
        self._nodes = Nodes(where)

    async def connection(self, key: str, /) -> AbstractConnection:
        """Return a connection to the primary that holds a key."""
        if self.where.setup is Setup.SENTINEL:
            return await connect_primary(self.where)
        if self.where.setup is Setup.CLUSTER:
            return (await self._nodes.holder(key, None))[1]
        return await connect(self.where)

    def line(self, key: str, /, *, kept: Callable[[], check.Kept | None], wait: bytes = b"") -> AnyLine:
        """Return a line; `kept` says what every server that it is led to has to keep to."""

        async def ready(connection: AbstractConnection) -> AbstractConnection:
            return await _looked_at(connection, self.where, kept())

        if self.where.setup is Setup.CLUSTER:
            return ClusterLine(self._nodes, key, ready=ready, wait=wait)

        async def connected() -> AbstractConnection:
            return await ready(await self.connection(key))

        return Line(connected, wait=wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """The lines to one primary; reads share the line of changes where no change waits for replicas."""

    line: AnyLine
    read_line: AnyLine
    level: Durability
    replicas: int
    safe: str
    is_replica: bool

    @classmethod
    async def open(
        cls, lines: Lines, key: str, /, *, durability: Durability | None, allow: tuple[str, ...], first: bool = True
    ) -> Self:
        """Connect, refuse an unsafe server, and settle the level."""
        where, settled = lines.where, list[check.Kept]()

        def kept() -> check.Kept | None:
            return settled[0] if settled else None

        reading = lines.line(key, kept=kept)
        try:
            server = check.server_of(await asked(reading, check.QUESTIONS, where), where)
            check.refuse_unsafe(server, where, allow)
            level = check.level_of(server, durability, where, allow, say=first)
            wait, replicas = check.wait_command(level, server, where)
            settled.append(check.Kept(level=level, allow=allow))
        except BaseException:
            await reading.aclose()
            raise
        return cls(
            line=lines.line(key, kept=kept, wait=wait) if wait else reading,
            read_line=reading,
            level=level,
            replicas=replicas,
            safe=check.safe(level, server, replicas),
            is_replica=server["role"] == "slave",
        )

    def drop(self) -> None:
        """Make the next requests find the primary anew."""
        self.line.drop()
        self.read_line.drop()

    async def aclose(self) -> None:
        """Close both lines."""
        await self.line.aclose()
        await self.read_line.aclose()


async def asked(line: AnyLine, packed: Sequence[bytes], where: Address, /) -> list[Reply]:
    """Return the replies to reads; what the server refused stands among them, a broken line is raised."""
    try:
        replies = await line.ask(packed)
    except LineBroken as broken:
        raise translated(broken, where) from None
    if lost := next((reply for reply in replies if isinstance(reply, LineBroken)), None):
        raise translated(lost, where)
    return replies


async def _looked_at(connection: AbstractConnection, where: Address, kept: check.Kept | None, /) -> AbstractConnection:
    """Return the connection if its server keeps to what was settled, and is a primary where one is looked for."""
    if kept is None and where.setup is Setup.ONE:
        return connection
    try:
        server = check.server_of(await told(connection, *check.QUESTIONS), where, say=False)
        check.refuse_demoted(server, where)
        if kept is not None:
            check.refuse_less(server, kept, where)
    except BaseException:
        await drop(connection)
        raise
    return connection
