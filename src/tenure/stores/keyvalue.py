"""A run store over any store of values with versions: get, and put if nobody was quicker.

One run is one value (record, journal, inbox, blobs), so a change is one step and the fence holds. What such a store
cannot promise, `GIVEN_UP` says by invariant; docs/keyvalue.md says what follows. For one process, unless the store of
values declares that its versions hold between processes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import anyio.lowlevel

from tenure.clock import Clock, SystemClock
from tenure.codec import pack_run
from tenure.core import rules
from tenure.core.run import Answer, Change, Delete, Facts, Import, Item, Row, Run, Verdict
from tenure.errors import CorruptRecord, NotAllowed, StoreTooNew, StoreUnavailable, TenureError
from tenure.store import ALL, Beat, Hint, Page, Refused, Where
from tenure.stores._bell import Bell
from tenure.stores._index import REFUSED_LENGTH, after_cursor, cursor_of, matches
from tenure.stores._keyvalue_codec import Grave, Ground, pack_ground, pack_shelf, unpack_ground, unpack_shelf
from tenure.stores._keyvalue_port import GIVEN_UP, KeyValue
from tenure.stores.memory import Shelf, Space, found_in, newest, write_in

__all__ = ["GIVEN_UP", "KeyValue", "KeyValueStore"]

TRIES = 1000
TOO_BUSY = f"{TRIES} times somebody else was quicker; try again, with fewer writers"
GROUND = "ground"


class KeyValueStore:
    """The port of a run store over a store of values."""

    def __init__(self, kv: KeyValue, *, namespace: str = "default", clock: Clock | None = None) -> None:
        self.url = kv.url
        self.namespace = namespace
        self.level = kv.level
        self._kv = kv
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        self._open = False
        self._bell = Bell()
        self._heard = self._bell.heard()
        self._beats: dict[str, tuple[Beat, int]] = {}
        self._refused: list[Refused] = []

    async def __aenter__(self) -> Self:
        """Open the store of values."""
        self._enter(opening=True)
        await self._kv.open()
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the store of values."""
        self._open = False
        await self._kv.aclose()

    def beside(self) -> KeyValueStore:
        """Return another store object over the same values, with the same hints."""
        store = KeyValueStore(self._kv, namespace=self.namespace, clock=self._clock)
        store._bell, store._heard = self._bell, self._bell.heard()
        store._beats, store._refused = self._beats, self._refused
        return store

    def _enter(self, *, opening: bool = False) -> None:
        if os.getpid() != self._pid and self._kv.atomicity == "process":
            message = (
                "this store compares versions inside one process only; use values that are 'cross-process' for more"
            )
            raise NotAllowed(message)
        if not self._open and not opening:
            message = "the store is not open; use `async with store:`"
            raise NotAllowed(message)

    def _key(self, run_id: str) -> str:
        return f"{self.namespace}/{run_id}"

    async def _ground(self) -> tuple[Ground, int]:
        found = await self._kv.get(self._key(GROUND + "/"))
        return (unpack_ground(found[0]), found[1]) if found is not None else (Ground(), 0)

    async def _change_ground(self, *, ttl_ms: int = 0, floor: int = 0, salt: str | None = None) -> Ground:
        for _ in range(TRIES):
            ground, version = await self._ground()
            wanted = Ground(
                max_ttl_ms=max(ground.max_ttl_ms, ttl_ms),
                floor=max(ground.floor, floor),
                salt=ground.salt if salt is None else salt,
            )
            if wanted == ground:
                return ground
            if await self._kv.put(self._key(GROUND + "/"), pack_ground(wanted), version=version):
                return wanted
        raise StoreUnavailable(TOO_BUSY)

    async def _shelf(self, run_id: str) -> tuple[Shelf | Grave | None, int]:
        found = await self._kv.get(self._key(run_id))
        return (unpack_shelf(run_id, found[0]), found[1]) if found is not None else (None, 0)

    def _facts(self, ground: Ground, floor: int = 0) -> Facts:
        now_us = self._clock.now_ms() * 1000
        return Facts(now_us=now_us, epoch=ground.salt, max_ttl_ms=ground.max_ttl_ms, floor=max(ground.floor, floor))

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change, and write it if nobody was quicker; else decide it again."""
        self._enter()
        ground, _ = await self._ground()
        if isinstance(change, Import) and not isinstance((await self._shelf(change.run))[0], Shelf):
            # First: whoever dies in between has begun another history for nothing, and left no run half brought in.
            await self._change_ground(salt=change.salt)
        for _ in range(TRIES):
            answer = await self._tried(change, ground)
            if answer is not None:
                await anyio.lowlevel.checkpoint()
                return answer
        raise StoreUnavailable(TOO_BUSY)

    async def _tried(self, change: Change, ground: Ground) -> Answer | None:
        found, version = await self._shelf(change.run)
        shelf = found if isinstance(found, Shelf) else None
        facts = self._facts(ground, found.floor if isinstance(found, Grave) else 0)
        space = Space(floor=facts.floor, salt=ground.salt)
        if shelf is not None:
            space.shelves[change.run] = shelf
            if (due_ms := rules.due_index(shelf.run)) is not None:
                space.due[change.run] = (shelf.run.kind, due_ms)
        answer = rules.decide(change, found_in(space, shelf, change), facts)
        after: Shelf | Grave | None = None
        if answer.verdict is Verdict.LANDED:
            write_in(space, shelf, change, answer)
            after = Grave(floor=space.floor) if isinstance(change, Delete) else space.shelves.get(change.run)
        elif answer.verdict is Verdict.ALREADY and shelf is not None and answer.run is not None:
            shelf.run = answer.run
            after = shelf
        if after is None:
            return answer
        if not await self._kv.put(self._key(change.run), pack_shelf(after), version=version):
            return None
        if space.floor > facts.floor:
            # Afterwards: what is left of the run keeps its own floor, whoever dies in between.
            await self._change_ground(floor=space.floor)
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids."""
        answers: dict[int, Answer | TenureError] = {}
        for index in sorted(range(len(changes)), key=lambda i: changes[i].run):
            try:
                answers[index] = await self.commit(changes[index])
            except (CorruptRecord, StoreTooNew, StoreUnavailable) as error:
                answers[index] = error
        return [answers[index] for index in range(len(changes))]

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make `max_ttl_ms` at least this."""
        self._enter()
        await self._change_ground(ttl_ms=ttl_ms)

    async def new_history(self) -> None:
        """Begin another history."""
        self._enter()
        await self._change_ground(salt=secrets.token_hex(8))

    async def facts(self) -> Facts:
        """Return what the store knows now."""
        self._enter()
        return self._facts((await self._ground())[0])

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record."""
        shelf = await self._read(run_id)
        return shelf.run if shelf is not None else None

    async def _read(self, run_id: str) -> Shelf | None:
        self._enter()
        shelf, _ = await self._shelf(run_id)
        return shelf if isinstance(shelf, Shelf) else None

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record as text fields; a value that cannot be read as one field."""
        self._enter()
        found = await self._kv.get(self._key(run_id))
        if found is None:
            return {}
        try:
            shelf = unpack_shelf(run_id, found[0])
        except (CorruptRecord, StoreTooNew):
            return {"value": found[0].decode("utf-8", "backslashreplace")}
        return pack_run(shelf.run) if isinstance(shelf, Shelf) else {}

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return rows in order."""
        shelf = await self._read(run_id)
        return shelf.rows[after : after + limit] if shelf is not None else []

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return items in order."""
        shelf = await self._read(run_id)
        items = shelf.items.values() if shelf is not None else ()
        return sorted((item for item in items if item.seq > after), key=lambda item: item.seq)

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob."""
        shelf = await self._read(run_id)
        return shelf.blobs.get(digest) if shelf is not None else None

    async def _all(self) -> tuple[list[Run], list[str]]:
        """Return every record, and the ids of those that cannot be read: there is no index but the records."""
        self._enter()
        runs: list[Run] = []
        corrupt: list[str] = []
        for key in await self._kv.keys():
            space, _, run_id = key.partition("/")
            if space != self.namespace or run_id == GROUND + "/":
                continue
            try:
                shelf, _ = await self._shelf(run_id)
            except (CorruptRecord, StoreTooNew):
                corrupt.append(run_id)
                continue
            if isinstance(shelf, Shelf):
                runs.append(shelf.run)
        return runs, sorted(corrupt)

    async def _index(self) -> list[tuple[int, Run]]:
        runs, _ = await self._all()
        found = [(ms, run) for run in runs if (ms := rules.due_index(run)) is not None]
        return sorted(found, key=lambda entry: (entry[0], entry[1].id))

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return what is due, by reading every record."""
        now_ms = self._clock.now_ms()
        found = [(ms, run) for ms, run in await self._index() if run.kind in kinds and ms <= now_ms]
        return [
            Hint(run=run.id, kind=run.kind, due_ms=ms, token=run.token, priority=run.priority)
            for ms, run in found[:limit]
        ]

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return when the next run is due."""
        return min((ms for ms, run in await self._index() if run.kind in kinds), default=None)

    async def kinds(self) -> list[str]:
        """Return the kinds of what is due some time."""
        return sorted({run.kind for _, run in await self._index()})

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of what is due some time; it is made from the records, so it never differs from them."""
        found = sorted(run.id for _, run in await self._index() if run.kind == kind and run.id > cursor)
        page = found[:limit]
        return [(run_id, run_id) for run_id in page], page[-1] if len(found) > limit else ""

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first."""
        runs, corrupt = await self._all()
        runs = sorted((run for run in runs if matches(run, where)), key=newest, reverse=True)
        if cursor is not None:
            before = after_cursor(cursor)
            runs = [run for run in runs if newest(run) < before]
        last = cursor_of(*newest(runs[limit - 1])) if len(runs) > limit else None
        return Page(runs=tuple(runs[:limit]), cursor=last, corrupt=tuple(corrupt) if cursor is None else ())

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Note a worker's row, in this process."""
        now_ms = self._clock.now_ms()
        self._beats[row.name] = (replace(row, at_ms=now_ms), now_ms + ttl_ms)

    async def beats(self) -> list[Beat]:
        """Return the rows of this process's workers."""
        now_ms = self._clock.now_ms()
        return sorted((row for row, until in self._beats.values() if until > now_ms), key=lambda row: row.name)

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the refused list of this process."""
        self._refused.append(replace(line, at_ms=self._clock.now_ms()))
        del self._refused[:-REFUSED_LENGTH]

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes of this process."""
        return self._refused[::-1][:limit]

    async def wake(self, topic: str, /) -> None:
        """Wake who waits for the topic in this process."""
        self._enter()
        self._bell.ring(topic)

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics."""
        self._enter()
        return await self._bell.woken(self._heard, topics, timeout=timeout)
