"""The store in one SQLite file, for all processes of one machine: the pure rules inside BEGIN IMMEDIATE.

A store object has one writing thread with group commit and one reading thread, each with a connection of its own;
neither waits for the other. `sqlite:///relative.db`, `sqlite:////absolute.db`; missing folders are made. Options
of the URL: `busy_timeout_ms`, how long a write waits for another process (5000); `create=off` makes no file.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

from tenure.clock import Clock, SystemClock
from tenure.core.run import Answer, Change, Facts, Item, Row, Run, Verdict
from tenure.errors import CorruptRecord, InvalidUrl, NotAllowed, StoreUnavailable, StoreUnsafe, TenureError
from tenure.store import ALL, Beat, Durability, Finding, Hint, Page, Refused, Where
from tenure.stores import _sqlite_read as read
from tenure.stores._bell import Bell
from tenure.stores._group import perform
from tenure.stores._index import REFUSED_LENGTH
from tenure.stores._sqlite_desk import Desk, Tell
from tenure.stores._sqlite_diagnosis import findings
from tenure.stores._sqlite_host import Host, this_host
from tenure.stores._sqlite_open import FILE, Known, Place, known, open_reader, open_writer, settings
from tenure.stores._sqlite_record import Records, hint_text
from tenure.stores._sqlite_sql import statements, translated
from tenure.stores._sqlite_transact import Work, transact
from tenure.stores._sqlite_write import Transaction

_LOG = logging.getLogger("tenure.stores.sqlite")
_HINTS = statements("hints.sql")
_BELLS: dict[tuple[str, str], Bell] = {}
if hasattr(os, "register_at_fork"):
    # A child begins without the bells of its parent, whose waiters are not there.
    os.register_at_fork(after_in_child=_BELLS.clear)
T = TypeVar("T")
Look = Callable[[sqlite3.Connection], Any]


def open_url(
    url: str,
    *,
    namespace: str,
    durability: Durability | None,
    allow: tuple[str, ...],
    clock: Clock | None,
    options: dict[str, str],
    host: Host | None = None,
) -> SqliteStore:
    """Return the store of a URL; `host` is for tests, which say what another machine would."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or path in ("", "/") or path.startswith(":memory:"):
        message = "use sqlite:///relative.db or sqlite:////absolute.db (three or four slashes), or memory://"
        raise InvalidUrl(message)
    if durability not in (None, Durability.LOCAL, Durability.DISK):
        message = f"one SQLite file reaches local and disk, not {durability}; use one of these, or a server"
        raise StoreUnsafe(message)
    busy_ms, creates = settings(options)
    place = Place(
        path=str(Path(path).absolute()),
        namespace=namespace,
        durability=durability,
        allow=allow,
        busy_ms=busy_ms,
        clock=clock or SystemClock(),
        host=host,
        creates=creates,
    )
    return SqliteStore(place, url=url)


class SqliteStore:
    """A store in one file."""

    def __init__(self, place: Place, *, url: str) -> None:
        self.url = url
        self.namespace = place.namespace
        self._place = place
        self._pid = os.getpid()
        self._open: tuple[Desk, Desk] | None = None
        self._records = Records()
        self._bell = Bell()
        self._heard = self._bell.heard()
        self._landed = False  # whether something landed that other processes will notice by itself

    @property
    def level(self) -> Durability:
        """Return the durability level of acknowledgements: disk, unless local is asked for or all there is."""
        return self._place.level

    async def __aenter__(self) -> Self:
        """Open the file with its checks, made if there is none."""
        if self._open is not None:
            self._check_process()
            message = "the store is open already; use `beside()` for another one"
            raise NotAllowed(message)
        place = self._place = replace(self._place, host=self._place.host or this_host())
        self._bell = _BELLS.setdefault((place.path, place.namespace), self._bell)
        self._pid = os.getpid()
        name = f"tenure {Path(place.path).name}"
        writer = Desk(
            f"{name} writer", connect=lambda: open_writer(place), perform=self._write, changed=self._bell.ring
        )
        reader = Desk(f"{name} reader", connect=lambda: open_reader(place), perform=self._read, limit=1)
        await writer.start()
        try:
            await reader.start()
        except BaseException:
            await writer.stop()
            raise
        self._heard = self._bell.heard()
        self._open = writer, reader
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Let what was asked for end, then close."""
        if self._open is None or os.getpid() != self._pid:
            return
        (writer, reader), self._open = self._open, None
        await reader.stop()
        await writer.stop()

    def beside(self, *, busy_timeout_ms: int | None = None) -> SqliteStore:
        """Return another store object over the same file, which may wait for other processes less long."""
        place = self._place if busy_timeout_ms is None else replace(self._place, busy_ms=busy_timeout_ms)
        return SqliteStore(place, url=self.url)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            message = (
                "this store was opened before a fork; start the process by spawn, or fork before a store is opened"
            )
            raise NotAllowed(message)

    def _desks(self) -> tuple[Desk, Desk]:
        self._check_process()
        if self._open is None:
            message = "the store is not open; use `async with store:`"
            raise NotAllowed(message)
        return self._open

    def _write(self, connection: sqlite3.Connection, works: Sequence[Work], tell: Tell) -> list[Any]:
        return perform(works, lambda some: transact(connection, self._place, self._records, some, tell))

    def _read(self, connection: sqlite3.Connection, works: Sequence[Look], tell: Tell) -> list[Any]:
        tell()
        try:
            return [work(connection) for work in works]
        except sqlite3.Error as error:
            return [translated(error, self._place.path)]

    async def _written(self, work: Callable[[Transaction], T], /) -> T:
        (answer,) = await self._desks()[0].ask([work])
        if isinstance(answer, Exception):
            raise answer
        found: T = answer
        return found

    async def _hinted(self, work: Callable[[Transaction], Any], /) -> None:
        try:
            await self._written(work)
        except (StoreUnavailable, CorruptRecord):  # what a change did stands, also if nobody could be woken
            _LOG.debug("a hint was not written", exc_info=True)

    async def _asked(self, work: Callable[[sqlite3.Connection, Known], T], /) -> T:
        place = self._place
        (answer,) = await self._desks()[1].ask([lambda connection: work(connection, known(connection, place))])
        if isinstance(answer, Exception):
            raise answer
        found: T = answer
        return found

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change and apply it, in one transaction with what else waits."""
        (answer,) = await self.commit_many([change])
        if isinstance(answer, Answer):
            return answer
        raise answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids."""
        order = sorted(range(len(changes)), key=lambda index: changes[index].run)
        answers: list[Any] = [None] * len(changes)
        asked = await self._desks()[0].ask([changes[index] for index in order])
        for index, answer in zip(order, asked, strict=True):
            answers[index] = answer
            if isinstance(answer, Exception) and not isinstance(answer, TenureError):
                raise answer
            self._landed |= isinstance(answer, Answer) and answer.verdict is Verdict.LANDED
        return answers

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make `max_ttl_ms` at least this."""
        await self._written(lambda transaction: transaction.raise_ttl(ttl_ms))

    async def facts(self) -> Facts:
        """Return what the store knows now."""
        return await self._asked(lambda _, known: known.facts)

    async def new_history(self) -> None:
        """Begin another history of the file, in all its namespaces."""
        await self._written(lambda transaction: transaction.new_history(secrets.token_hex(8)))

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record."""
        return await self._asked(lambda connection, known: read.load(connection, known.space, run_id))

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record's fields unread; what is no JSON object stands under `record`."""
        return await self._asked(lambda connection, known: read.raw(connection, known.space, run_id))

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return rows in order."""
        return await self._asked(lambda connection, known: read.tail(connection, known.space, run_id, after, limit))

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return items in order."""
        return await self._asked(lambda connection, known: read.inbox(connection, known.space, run_id, after))

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob."""
        return await self._asked(lambda connection, known: read.blob(connection, known.space, run_id, digest))

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return what the index says is due."""
        return await self._asked(
            lambda connection, known: read.due(connection, known.space, kinds, known.facts.now_ms, limit)
        )

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return the earliest entry of the index."""
        return await self._asked(lambda connection, known: read.next_due_ms(connection, known.space, kinds))

    async def kinds(self) -> list[str]:
        """Return the kinds in the index."""
        return await self._asked(lambda connection, known: read.kinds(connection, known.space))

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of the index, the earliest entries first."""
        return await self._asked(lambda connection, known: read.entries(connection, known.space, kind, cursor, limit))

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first; a page may be short and have a cursor all the same."""
        return await self._asked(lambda connection, known: read.find(connection, known.space, where, cursor, limit))

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Write a worker's row."""

        def work(transaction: Transaction) -> None:
            now_ms = transaction.facts().now_ms
            data = hint_text(replace(row, at_ms=now_ms))
            transaction.connection.execute(_HINTS["drop_beats"], (transaction.space, now_ms))
            transaction.connection.execute(_HINTS["put_beat"], (transaction.space, row.name, now_ms + ttl_ms, data))

        await self._hinted(work)

    async def beats(self) -> list[Beat]:
        """Return the rows that have not expired."""
        return await self._asked(lambda connection, known: read.beats(connection, known.space, known.facts.now_ms))

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the refused list."""

        def work(transaction: Transaction) -> None:
            data = hint_text(replace(line, at_ms=transaction.facts().now_ms))
            transaction.connection.execute(_HINTS["tell_refused"], (transaction.space, data))
            transaction.connection.execute(_HINTS["drop_refused"], (transaction.space, REFUSED_LENGTH))

        await self._hinted(work)

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes."""
        return await self._asked(lambda connection, known: read.refused(connection, known.space, limit))

    async def diagnose(self) -> list[Finding]:
        """Return how the file is set, as findings."""
        return await self._asked(lambda connection, _: findings(connection, self._place))

    async def wake(self, topic: str, /) -> None:
        """Wake who waits in this process; other processes wake by the change that this follows."""
        self._desks()
        self._bell.ring(topic)
        landed, self._landed = self._landed, False
        if not landed:
            await self._hinted(lambda transaction: transaction.connection.execute(FILE["ring_bell"]))

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics; any change of the file by another connection wakes too, a little later."""
        with self._desks()[0].watching():
            return await self._bell.woken(self._heard, topics, timeout=timeout)
