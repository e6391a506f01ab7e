"""A primary and a replica whose link can be cut, and which is promoted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from tenure.testing.proxy import Proxy
from tenure.testing.server_sets import asked, until
from tenure.testing.servers import RedisServer, ServerKind, start_server

LOG = {"appendonly": "yes", "appendfsync": "everysec"}


class Served(Protocol):
    """A server, as far as a story needs to know."""

    @property
    def url(self) -> str:
        """Return where it answers."""
        ...


class Link(Protocol):
    """A primary and a replica of whichever product, as far as a story needs to know."""

    @property
    def primary(self) -> Served:
        """Return who takes writes."""
        ...

    @property
    def replica(self) -> Served:
        """Return who follows, and is promoted."""
        ...

    async def follow(self) -> None:
        """Let the replica follow the primary again, where nothing was promoted yet."""
        ...

    async def caught_up(self) -> None:
        """Wait until the replica has what the primary has."""
        ...

    async def cut(self) -> None:
        """From now on nothing reaches the replica."""
        ...

    async def promote(self, how: str) -> None:
        """Make the replica the primary; the one before is killed, frozen, or goes on cut off."""
        ...


class Pair:
    """Two servers and the link between them."""

    def __init__(self, primary: RedisServer, replica: RedisServer, link: Proxy) -> None:
        self.primary = primary
        self.replica = replica
        self._link = link

    async def follow(self) -> None:
        """Let the replica follow the primary, by the link, until it has caught up."""
        self._link.refuse = False
        self._link.lead_to(self.primary.url)
        await _off(asked, self.replica, "REPLICAOF", "127.0.0.1", self._link.port)
        await _off(until, lambda: asked(self.replica, "INFO", "replication").get("master_link_status") == "up")

    async def caught_up(self) -> None:
        """Wait until the replica has what the primary has."""

        def same() -> bool:
            at = asked(self.primary, "INFO", "replication")["master_repl_offset"]
            return bool(asked(self.replica, "INFO", "replication").get("slave_repl_offset") == at)

        await _off(until, same)

    async def cut(self) -> None:
        """From now on nothing reaches the replica."""
        self._link.refuse = True
        self._link.cut()

    async def promote(self, how: str) -> None:
        """Make the replica the primary; the one before is killed, frozen, or goes on cut off."""
        if how == "kill":
            self.primary.kill()
        elif how == "freeze":
            self.primary.freeze()
        await _off(asked, self.replica, "REPLICAOF", "NO", "ONE")


@contextlib.asynccontextmanager
async def paired(kind: ServerKind) -> AsyncIterator[Pair]:
    """Start a pair; gone at the end of the block."""
    with contextlib.ExitStack() as started:
        primary = started.enter_context(start_server(kind, options=LOG))
        replica = started.enter_context(start_server(kind, options=LOG))
        async with Proxy(primary.url) as link:
            pair = Pair(primary, replica, link)
            await pair.follow()
            yield pair


async def _off(call: object, *arguments: object) -> None:
    # The proxy lives on this loop: what blocks does so in a thread.
    await asyncio.to_thread(call, *arguments)  # type: ignore[arg-type]
