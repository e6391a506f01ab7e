"""The store on PostgreSQL: each change is one call of a versioned function in a schema of our own.

The functions restate `core/rules.py` in the same order: the row is locked, then the clock is read, then it is decided,
then written. `postgresql://user@host/database?schema=tenure`; docs/postgres.md lists what the URL takes. Needs the
extra `postgres`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from tenure.clock import Clock
from tenure.core.run import Answer, Change, Facts, Item, Row, Run
from tenure.errors import NotAllowed, TenureError
from tenure.store import ALL, Beat, Durability, Finding, Guarded, Hint, Page, Refused, Where
from tenure.stores import _postgres_migrate as migrations
from tenure.stores import _postgres_reads as reads
from tenure.stores._index import REFUSED_LENGTH
from tenure.stores._postgres_bell import channel
from tenure.stores._postgres_connect import address
from tenure.stores._postgres_session import Session, Wish
from tenure.stores._postgres_transaction import transaction

_LOG = logging.getLogger("tenure.stores.postgres")


def open_url(
    url: str,
    *,
    namespace: str,
    durability: Durability | None,
    allow: tuple[str, ...],
    clock: Clock | None,
    options: dict[str, str],
) -> PostgresStore:
    """Return the store of a URL; `allow` knows async-commit and unchecked."""
    where = address(url, options)
    if clock is not None and not where.testing:
        message = "the server's clock is the clock of this store; ?testing=on takes another one, in tests"
        raise NotAllowed(message)
    return PostgresStore(Wish(where=where, namespace=namespace, durability=durability, allow=allow, clock=clock))


class PostgresStore:
    """One namespace in one database, for one event loop of one process."""

    def __init__(self, wish: Wish) -> None:
        self.url = wish.where.shown
        self.namespace = wish.namespace
        self._wish = wish
        self._pid = os.getpid()
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._level = wish.durability or Durability.MEMORY

    @property
    def level(self) -> Durability:
        """Return the durability level that acknowledgements have; it is settled when the store is opened."""
        return self._level

    async def __aenter__(self) -> Self:
        """Connect, refuse an unsafe server or a schema that does not fit, and settle the level."""
        self._check_process()
        if self._session is not None:
            message = "the store is open already; use `beside()` for another one"
            raise NotAllowed(message)
        self._session = await Session.open(self._wish)
        self._level = self._session.level
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close every connection that this object made."""
        session, self._session = self._session, None
        if session is not None and os.getpid() == self._pid:  # in a fork they are the parent's
            await session.aclose()

    def beside(self) -> PostgresStore:
        """Return another, unopened store object with connections of its own."""
        return PostgresStore(self._wish)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            message = "this PostgreSQL store was made before a fork; open a store in the child process"
            raise NotAllowed(message)

    def _opened(self) -> Session:
        self._check_process()
        if self._session is None:
            message = "the store is not open; use `async with store:`"
            raise NotAllowed(message)
        if self._loop is not asyncio.get_running_loop():
            message = "this store was opened in another event loop; open one for this loop with beside()"
            raise NotAllowed(message)
        return self._session

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change and apply it in one statement."""
        (answer,) = await self._opened().commit_many([change])
        if isinstance(answer, TenureError):
            raise answer
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids, in one statement."""
        return await self._opened().commit_many(changes)

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make `max_ttl_ms` at least this."""
        await self._opened().facts(ttl_ms)

    async def facts(self) -> Facts:
        """Return what the store knows now; who looks first after a history change writes it down."""
        return await self._opened().facts()

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record."""
        return await reads.load(self._opened(), run_id)

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record's columns unread."""
        return await reads.raw(self._opened(), run_id)

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return rows in order."""
        return await reads.tail(self._opened(), run_id, after, limit)

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return items in order."""
        return await reads.inbox(self._opened(), run_id, after)

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob."""
        return await reads.blob(self._opened(), run_id, digest)

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return what the index says is due."""
        return await reads.due(self._opened(), kinds, limit)

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return the earliest entry of the index."""
        return await reads.next_due_ms(self._opened(), kinds)

    async def kinds(self) -> list[str]:
        """Return the kinds in the index."""
        return await reads.kinds(self._opened())

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of the index, the earliest entries first."""
        return await reads.entries(self._opened(), kind, cursor, limit)

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first; a page may be short and have a cursor all the same."""
        return await reads.find(self._opened(), where, cursor, limit)

    async def diagnose(self) -> list[Finding]:
        """Return version, level and settings as findings."""
        return await self._opened().diagnose()

    async def new_history(self) -> None:
        """Begin another history of the namespace, after a backup was put back."""
        await self._opened().read("set_salt", salt=secrets.token_hex(8))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Guarded]:
        """Begin a transaction in which statements of others land with one commit of ours, or not at all."""
        async with transaction(self._opened()) as found:
            yield found

    async def missing(self) -> list[str]:
        """Return the migrations that the schema is missing."""
        return [step.shown for step in await migrations.missing(self._wish.where)]

    async def migrate(self) -> list[str]:
        """Apply what the schema is missing."""
        return [step.shown for step in await migrations.migrate(self._wish.where)]

    # ---------------------------------------------------------------------------------------------- hints

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Write a worker's row."""
        await self._hint("put_beat", name=reads.named(row.name), ttl_ms=ttl_ms, data=reads.pack_hint(row))

    async def beats(self) -> list[Beat]:
        """Return the rows that have not expired."""
        return await reads.beats(self._opened())

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the refused list."""
        await self._hint("tell_refused", data=reads.pack_hint(line))
        await self._hint("drop_refused", keep=REFUSED_LENGTH)

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes."""
        return await reads.refused(self._opened(), limit)

    async def wake(self, topic: str, /) -> None:
        """Wake who waits for the topic."""
        await self._hint("wake", channel=channel(self._wish.where.schema, self.namespace), topic=topic)

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics; a plain wait where no wake-up can come."""
        return await self._opened().listener.woken(topics, timeout=timeout)

    async def _hint(self, name: str, /, **values: object) -> None:
        try:
            await self._opened().read(name, **values)
        except NotAllowed:
            raise
        except TenureError as error:
            _LOG.debug("a hint was not written: %s", error)
