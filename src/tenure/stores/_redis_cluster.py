"""One shard of a Cluster: its commands go to the node that holds its tag, and follow it when it moves.

Any node that is asked for a key it does not hold names the one that does, and has executed nothing: that is all the
routing there is. Nothing whose reply is missing is ever sent again here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AskError, AuthenticationError, MovedError, NoPermissionError

from tenure.stores._redis_address import Address, Node, host_port
from tenure.stores._redis_connect import connect, drop, told
from tenure.stores._redis_line import Line, LineBroken, pack
from tenure.stores._redis_reader import Reply

REDIRECTS = 5
_LOAD = pack("SCRIPT", "LOAD", "")[:16]


class Nodes:
    """The nodes of a Cluster that are known by now; all shards of a store share them."""

    def __init__(self, where: Address, /) -> None:
        self.where = where
        self.known = list(where.nodes)

    def learn(self, moved: AskError, asked: Node, /) -> Node:
        """Return the node that an answer names; an empty host means the one that was asked."""
        node = (str(moved.host) or asked[0], int(moved.port))
        if node not in self.known:
            self.known.append(node)
        return node

    async def holder(self, key: str, first: Node | None, /) -> tuple[Node, AbstractConnection]:
        """Return a connection to the node that holds a key; LineBroken (nothing sent) says why there is none."""
        waiting = [*([first] if first else []), *(node for node in self.known if node != first)]
        tried: set[Node] = set()
        silent: list[str] = []
        while waiting:
            node = waiting.pop(0)
            tried.add(node)
            try:
                connection = await connect(self.where, node)
            except LineBroken as broken:
                if isinstance(broken.cause, AuthenticationError):
                    raise
                silent.append(f"{host_port(node)}: {broken}")
                continue
            try:
                (answer,) = await told(connection, pack("EXISTS", key))
            except LineBroken as broken:
                answer = broken
            if isinstance(answer, int | NoPermissionError):
                return node, connection
            await drop(connection)
            if isinstance(answer, MovedError):
                if (named := self.learn(answer, node)) not in tried:
                    waiting = [named, *(other for other in waiting if other != named)]
            else:
                silent.append(f"{host_port(node)}: {answer}")
        raise LineBroken(f"no node serves the slot of {key!r} ({'; '.join(silent)[:400]})", sent=False)


class ClusterLine:
    """A line to whichever node holds a key: it has the face of `Line`."""

    def __init__(
        self,
        nodes: Nodes,
        key: str,
        /,
        *,
        ready: Callable[[AbstractConnection], Awaitable[AbstractConnection]],
        wait: bytes = b"",
    ) -> None:
        self._nodes = nodes
        self._key = key
        self._ready = ready
        self._wait = wait
        self._at: Node | None = None
        self._left: list[Line] = []
        self._line = self._new()

    async def ask(self, packed: Sequence[bytes], /, *, wait: bool = False) -> list[Reply]:
        """Return a reply for each command, and one more for the wait.

        What a node did not hold goes to the one it named.
        """
        wait = wait and self._wait != b""
        replies: list[Reply] = [None] * len(packed)
        waits: list[Reply] = []
        todo = list(range(len(packed)))
        for _ in range(REDIRECTS):
            line = self._line
            got = await line.ask([packed[index] for index in todo], wait=wait)
            if wait:
                waits.append(got.pop())
            for index, one in zip(todo, got, strict=True):
                replies[index] = one
            todo = [index for index in todo if isinstance(replies[index], MovedError)]
            if not todo:
                break
            self._follow(replies[todo[0]], line)
        asks = [index for index, one in enumerate(replies) if type(one) is AskError]
        if asks:
            waits += await self._asking(replies, asks, packed, wait=wait)
        await self._forget()
        return [*replies, _least(waits)] if wait else replies

    async def aclose(self) -> None:
        """Close; whoever still waits gets LineBroken."""
        for line in (self._line, *self._left):
            await line.aclose()

    def drop(self) -> None:
        """Make the next request look for the node anew."""
        self._at = None
        self._line.drop()

    def _new(self) -> Line:
        return Line(self._connect, wait=self._wait)

    async def _connect(self) -> AbstractConnection:
        first, self._at = self._at, None  # who fails is asked last the next time
        self._at, connection = await self._nodes.holder(self._key, first)
        return await self._ready(connection)

    def _follow(self, moved: MovedError, line: Line) -> None:
        """Go to the node that was named; others may still wait for answers on the line to the former one."""
        if self._line is line:
            former = self._at or self._nodes.known[0]
            self._at = self._nodes.learn(moved, former)
            self._left.append(line)
            self._line = self._new()

    async def _forget(self) -> None:
        for line in [line for line in self._left if line.idle]:
            self._left.remove(line)
            await line.aclose()

    async def _asking(
        self, replies: list[Reply], asks: list[int], packed: Sequence[bytes], *, wait: bool
    ) -> list[Reply]:
        """Ask the node that a slot is being moved to for what is there already; return what its wait said."""
        node = self._nodes.learn(replies[asks[0]], self._at or self._nodes.known[0])
        # A script that is asked for here may be in the cache of the former node only.
        commands = [command for command in packed if command.startswith(_LOAD)]
        before = len(commands)
        for index in asks:
            commands += [pack("ASKING"), packed[index]]
        try:
            connection = await connect(self._nodes.where, node)
        except LineBroken:
            return []  # nothing was sent: the answers of the former node stand
        try:
            got = await told(connection, *commands, *([self._wait] if wait else []))
        except LineBroken as broken:
            got = [LineBroken(broken.cause, sent=True)] * (before + 2 * len(asks) + wait)
        finally:
            await drop(connection)
        for position, index in enumerate(asks):
            replies[index] = got[before + 2 * position + 1]
        return got[before + 2 * len(asks) :]


def _least(waits: list[Reply]) -> Reply:
    """Return the weakest of the acknowledgements: parts of a request may have gone to two nodes."""
    failed = next((one for one in waits if isinstance(one, BaseException)), None)
    if failed is not None or len(waits) == 1:
        return failed or waits[0]
    return [min(pair) for pair in zip(*waits, strict=True)] if isinstance(waits[0], list) else min(waits)
