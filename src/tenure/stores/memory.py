"""The store of one process: the pure rules over dictionaries, under a thread lock because heartbeats run in a thread.

`memory://` is private to the object that opened it (and what stands beside it); `memory://name` is shared in the
process.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import urlsplit

import anyio

from tenure.clock import Clock, SystemClock
from tenure.core import rules
from tenure.core.run import (
    Answer,
    Change,
    Commit,
    Create,
    Delete,
    Facts,
    Found,
    Import,
    Item,
    Post,
    Row,
    Run,
    Verdict,
    Why,
)
from tenure.errors import InvalidUrl, NotAllowed, StoreUnsafe, TenureError
from tenure.store import ALL, Beat, Durability, Hint, Page, Refused, Where
from tenure.stores import refuse_options
from tenure.stores._bell import Bell
from tenure.stores._index import REFUSED_LENGTH, after_cursor, cursor_of, matches, moves_index


@dataclass(slots=True)
class Shelf:
    """All that one run has."""

    run: Run
    rows: list[Row] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Space:
    """One namespace's contents, shared by the stores beside each other."""

    shelves: dict[str, Shelf] = field(default_factory=dict)
    due: dict[str, tuple[str, int]] = field(default_factory=dict)
    salt: str = ""
    floor: int = 0
    max_ttl_ms: int = 0
    last_us: int = 0
    offset_us: int | None = None
    beats: dict[str, tuple[Beat, int]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    bell: Bell = field(default_factory=Bell)
    guard: threading.Lock = field(default_factory=threading.Lock)


_SHARED: dict[tuple[str, str], Space] = {}
_SHARED_GUARD = threading.Lock()


def open_url(
    url: str,
    *,
    namespace: str,
    durability: Durability | None,
    allow: tuple[str, ...],  # noqa: ARG001 - there is nothing to allow here
    clock: Clock | None,
    options: dict[str, str],
) -> MemoryStore:
    """Return the memory store of a URL; a named one is the same for the whole process."""
    refuse_options(options, "memory")
    parts = urlsplit(url)
    if parts.path not in ("", "/"):
        message = "memory:// takes a name and no path; use memory://name"
        raise InvalidUrl(message)
    if durability not in (None, Durability.MEMORY):
        message = f"memory:// survives nothing, so {durability} cannot be reached; use sqlite:/// or a server"
        raise StoreUnsafe(message)
    if not parts.netloc:
        return MemoryStore(namespace=namespace, clock=clock)
    with _SHARED_GUARD:
        alone = (parts.netloc, namespace) not in _SHARED
        space = _SHARED.setdefault((parts.netloc, namespace), Space())
    store = MemoryStore(namespace=namespace, clock=clock, space=space, url=f"memory://{parts.netloc}")
    store.alone = alone
    return store


class MemoryStore:
    """A store that survives nothing: for tests, and for the shape of things."""

    level = Durability.MEMORY

    def __init__(
        self, *, namespace: str = "default", clock: Clock | None = None, space: Space | None = None, url: str = ""
    ) -> None:
        self.url = url or "memory://"
        self.namespace = namespace
        self._clock = clock or SystemClock()
        self._space = space if space is not None else Space()
        with self._space.guard:
            if self._space.offset_us is None:
                # Wall time is read once, by who is first; after that only boot time counts, so a wall clock that is set
                # moves no lease.
                self._space.offset_us = self._clock.now_ms() * 1000 - self._clock.boot_ns() // 1000
            self._offset_us = self._space.offset_us
        self.alone = space is None
        """Whether nothing in this process had these contents before: then they end with whoever opened it."""
        self._pid = os.getpid()
        self._open = False
        self._heard = self._space.bell.heard()

    async def __aenter__(self) -> Self:
        """Open; there is nothing to connect to."""
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; the contents stay for the stores beside."""
        self._open = False

    def beside(self) -> MemoryStore:
        """Return another store object over the same contents."""
        return MemoryStore(namespace=self.namespace, clock=self._clock, space=self._space, url=self.url)

    @property
    def space(self) -> Space:
        """Return the contents, for who stores or damages them by other means."""
        return self._space

    def _enter(self) -> Space:
        if os.getpid() != self._pid:
            message = "this memory store was opened before a fork; open a store in the child process"
            raise NotAllowed(message)
        if not self._open:
            message = "the store is not open; use `async with store:`"
            raise NotAllowed(message)
        return self._space

    def _facts(self, space: Space) -> Facts:
        now_us = max(space.last_us, self._clock.boot_ns() // 1000 + self._offset_us)
        space.last_us = now_us
        return Facts(now_us=now_us, epoch=space.salt, max_ttl_ms=space.max_ttl_ms, floor=space.floor)

    def decide(self, change: Change, /) -> Answer:
        """Decide one change and apply it under the lock, without waiting."""
        space = self._enter()
        with space.guard:
            return self._decide(space, change)

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change and apply it under the lock."""
        answer = self.decide(change)
        await anyio.lowlevel.checkpoint()
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids."""
        space = self._enter()
        answers: dict[int, Answer | TenureError] = {}
        with space.guard:
            for index in sorted(range(len(changes)), key=lambda i: changes[i].run):
                answers[index] = self._decide(space, changes[index])
        await anyio.lowlevel.checkpoint()
        return [answers[index] for index in range(len(changes))]

    def _decide(self, space: Space, change: Change) -> Answer:
        shelf = space.shelves.get(change.run)
        answer = rules.decide(change, found_in(space, shelf, change), self._facts(space))
        if answer.verdict is Verdict.ALREADY and shelf is not None and answer.run is not None:
            shelf.run = answer.run
        if answer.verdict is Verdict.LANDED:
            write_in(space, shelf, change, answer)
        elif answer.why is Why.HELD and answer.run is not None:
            # The entry was early (renewals do not move it): move it to the lease's end, or every look finds it again.
            place(space.due, answer.run)
        return answer

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make `max_ttl_ms` at least this."""
        space = self._enter()
        with space.guard:
            space.max_ttl_ms = max(space.max_ttl_ms, ttl_ms)

    async def facts(self) -> Facts:
        """Return what the store knows now."""
        space = self._enter()
        with space.guard:
            return self._facts(space)

    async def new_history(self) -> None:
        """Begin another history."""
        space = self._enter()
        with space.guard:
            space.salt = secrets.token_hex(8)

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record."""
        shelf = self._enter().shelves.get(run_id)
        return shelf.run if shelf is not None else None

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record as text fields."""
        from tenure.codec import pack_run

        run = await self.load(run_id)
        return pack_run(run) if run is not None else {}

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return rows in order."""
        shelf = self._enter().shelves.get(run_id)
        return shelf.rows[after : after + limit] if shelf is not None else []

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return items in order."""
        space = self._enter()
        with space.guard:
            shelf = space.shelves.get(run_id)
            return sorted(
                (i for i in shelf.items.values() if i.seq > after) if shelf is not None else (), key=lambda i: i.seq
            )

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob."""
        shelf = self._enter().shelves.get(run_id)
        return shelf.blobs.get(digest) if shelf is not None else None

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return what the index says is due."""
        space = self._enter()
        with space.guard:
            now_ms = self._facts(space).now_ms
            found = sorted(
                (ms, run_id, kind) for run_id, (kind, ms) in space.due.items() if kind in kinds and ms <= now_ms
            )
            hints = []
            for ms, run_id, kind in found[:limit]:
                run = space.shelves[run_id].run
                hints.append(Hint(run=run_id, kind=kind, due_ms=ms, token=run.token, priority=run.priority))
            return hints

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return the earliest entry of the index."""
        space = self._enter()
        with space.guard:
            return min((ms for kind, ms in space.due.values() if kind in kinds), default=None)

    async def kinds(self) -> list[str]:
        """Return the kinds in the index."""
        space = self._enter()
        with space.guard:
            return sorted({kind for kind, _ in space.due.values()})

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of the index."""
        space = self._enter()
        with space.guard:
            found = sorted(run_id for run_id, (k, _) in space.due.items() if k == kind and run_id > cursor)
        page = found[:limit]
        return [(run_id, run_id) for run_id in page], page[-1] if len(found) > limit else ""

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first."""
        space = self._enter()
        with space.guard:
            runs = [shelf.run for shelf in space.shelves.values()]
        runs = sorted((r for r in runs if matches(r, where)), key=newest, reverse=True)
        if cursor is not None:
            runs = [r for r in runs if newest(r) < after_cursor(cursor)]
        page = tuple(runs[:limit])
        last = cursor_of(*newest(page[-1])) if len(runs) > limit else None
        return Page(runs=page, cursor=last)

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Write a worker's row."""
        space = self._enter()
        with space.guard:
            now_ms = self._facts(space).now_ms
            space.beats[row.name] = (replace(row, at_ms=now_ms), now_ms + ttl_ms)

    async def beats(self) -> list[Beat]:
        """Return the rows that have not expired."""
        space = self._enter()
        with space.guard:
            now_ms = self._facts(space).now_ms
            return sorted((row for row, until in space.beats.values() if until > now_ms), key=lambda row: row.name)

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the refused list."""
        space = self._enter()
        with space.guard:
            space.refused.append(replace(line, at_ms=self._facts(space).now_ms))
            del space.refused[:-REFUSED_LENGTH]

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes."""
        space = self._enter()
        with space.guard:
            return space.refused[::-1][:limit]

    async def wake(self, topic: str, /) -> None:
        """Wake who waits for the topic."""
        self._enter().bell.ring(topic)

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics."""
        return await self._enter().bell.woken(self._heard, topics, timeout=timeout)


def newest(run: Run) -> tuple[int, str]:
    """Return what listings go by."""
    return run.created_ms, run.id


def found_in(space: Space, shelf: Shelf | None, change: Change) -> Found:
    """Return what a change names, as the rules want it."""
    if shelf is None:
        return Found()
    row, item = "", None
    if isinstance(change, Commit) and 0 < change.row.seq <= len(shelf.rows):
        row = shelf.rows[change.row.seq - 1].digest
    if isinstance(change, Post):
        item = shelf.items.get(change.item)
    entry = space.due.get(change.run)
    return Found(run=shelf.run, row=row, item=item, due=entry[1] if entry is not None else None)


def write_in(space: Space, shelf: Shelf | None, change: Change, answer: Answer) -> None:
    """Write what a landed change does."""
    run, now_ms = answer.run, answer.now_us // 1000
    if run is None:
        if isinstance(change, Delete) and shelf is not None:
            space.floor = max(space.floor, shelf.run.token)
        space.shelves.pop(change.run, None)
        space.due.pop(change.run, None)
        return
    shelf = space.shelves.setdefault(run.id, Shelf(run=run))
    before, shelf.run = shelf.run, run
    match change:
        case Create() if change.row is not None:
            shelf.rows.append(replace(change.row, at_ms=now_ms))
            shelf.blobs.update(change.blobs)
        case Commit():
            shelf.rows.append(replace(change.row, at_ms=now_ms))
            shelf.blobs.update(change.blobs)
            for item_id in change.consume:
                if item_id in shelf.items:
                    shelf.items[item_id] = replace(shelf.items[item_id], body=b"", consumed=True)
        case Import():
            shelf.rows, shelf.blobs = list(change.rows), dict(change.blobs)
            shelf.items = {item.id: item for item in change.items}
            space.floor, space.salt = max(space.floor, run.token), change.salt
        case Post():
            shelf.items[change.item] = Item(
                seq=run.inbox_seq,
                id=change.item,
                name=change.name,
                ask=change.ask,
                digest=change.digest,
                body=change.body,
                at_ms=now_ms,
            )
        case _:
            pass
    if moves_index(change, before, run):
        place(space.due, run)


def place(due: dict[str, tuple[str, int]], run: Run) -> None:
    """Put the run's entry where its record says."""
    due_ms = rules.due_index(run)
    if due_ms is None:
        due.pop(run.id, None)
    else:
        due[run.id] = (run.kind, due_ms)
