"""The deciding step of the SQLite store: find, decide by the pure rules, write, inside one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tenure.codec import pack_item, pack_row, unpack_item
from tenure.core import rules
from tenure.core.run import (
    Answer,
    Change,
    Claim,
    Commit,
    Create,
    Delete,
    Facts,
    Found,
    Import,
    Item,
    Post,
    Run,
    Verdict,
    Why,
)
from tenure.errors import CorruptRecord, TenureError
from tenure.stores._group import LIMIT
from tenure.stores._index import moves_index
from tenure.stores._sqlite_open import CEILING_US, FILE, Place, epoch, known
from tenure.stores._sqlite_record import Records, write_record
from tenure.stores._sqlite_sql import statements

_SQL = statements("change.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What the tables hold of the run that a change names; `run` is None where there is none."""

    number: int = 0
    run: Run | None = None
    entry_ms: int | None = None


class Transaction:
    """One transaction of the writer: the facts it decides by, and what changes write."""

    def __init__(self, connection: sqlite3.Connection, place: Place, records: Records) -> None:
        self.connection = connection
        self._place = place
        self._records = records
        found = known(connection, place)
        self.space = found.space
        self._facts = found.facts
        self._ceiling_us = found.ceiling_us
        # Time since boot is read anew for each change, the rest of store time is in the offset.
        self._offset_us = found.facts.now_us - place.clock.boot_ns() // 1000

    def facts(self) -> Facts:
        """Return what the store knows now; the ceiling is raised before a time above it is given out."""
        now_us = max(self._facts.now_us, self._place.clock.boot_ns() // 1000 + self._offset_us)
        if now_us > self._ceiling_us:
            self._ceiling_us = now_us + CEILING_US
            self.connection.execute(FILE["raise_ceiling"], (self._ceiling_us,))
        if now_us != self._facts.now_us:
            self._facts = replace(self._facts, now_us=now_us)
        return self._facts

    def raise_ttl(self, ttl_ms: int) -> None:
        """Make the longest lease at least this."""
        self.connection.execute(FILE["raise_ttl"], (ttl_ms, self.space))
        self._facts = replace(self._facts, max_ttl_ms=max(self._facts.max_ttl_ms, ttl_ms))

    def decide(self, change: Change) -> Answer:
        """Decide a change and write what it does."""
        facts = self.facts()
        shelf = Shelf()
        if isinstance(change, Commit):
            row = self._find([change.run]).get(change.run)
        else:
            row = self.connection.execute(_SQL["find_run"], (self.space, change.run)).fetchone()
        if row is not None:
            number, data, entry_ms, *last = row
            try:
                shelf = Shelf(number=number, run=self._records.read(change.run, data), entry_ms=entry_ms)
                found = self._found(shelf, change, last)
            except CorruptRecord:
                return self._corrupt(change, number, facts)
        else:
            found = Found()
        answer = rules.decide(change, found, facts)
        if answer.verdict is Verdict.LANDED:
            self._land(change, shelf, answer)
        elif answer.verdict is Verdict.ALREADY and answer.run is not None:
            self._put(shelf, answer.run, shelf.entry_ms)
        elif answer.why is Why.HELD and answer.run is not None:
            # The entry was early (renewals do not move it): move it to the lease's end, or every look finds it again.
            self.connection.execute(_SQL["move_entry"], (rules.due_index(answer.run), shelf.number))
        return answer

    def steps(self, changes: Sequence[Commit]) -> list[Answer | TenureError]:
        """Decide plain commits of as many runs, all at one time, and write what they do; nothing of one that fails.

        One statement finds all and one statement each writes rows and records: that is half the work of one by one.
        """
        facts = self.facts()
        found = self._find([change.run for change in changes])
        rows: list[tuple[int, bytes]] = []
        records: list[tuple[str, int]] = []
        answers: list[Answer | TenureError] = []
        for change in changes:
            try:
                answers.append(self._step(change, found.get(change.run), facts, rows, records))
            except TenureError as error:
                answers.append(error)
        self.connection.executemany(_SQL["insert_row"], rows)
        self.connection.executemany(_SQL["update_record"], records)
        return answers

    def _step(
        self,
        change: Commit,
        row: Sequence[Any] | None,
        facts: Facts,
        rows: list[tuple[int, bytes]],
        records: list[tuple[str, int]],
    ) -> Answer:
        number, found = 0, Found()
        if row is not None:
            number, data, entry_ms, *last = row
            try:
                run = self._records.read(change.run, data)
                found = Found(run=run, row=self._row(number, run, change.row.seq, *last), due=entry_ms)
            except CorruptRecord:
                return self._corrupt(change, number, facts)
        answer = rules.decide(change, found, facts)
        if answer.ok and answer.run is not None:
            # A plain commit changes nothing that searches go by, and leaves the entry, early, where it is.
            record = self._written(answer.run)
            if answer.verdict is Verdict.LANDED:
                rows.append((row_keys(number)[0] + change.row.seq, pack_row(change.row, facts.now_ms)))
            records.append((record, number))
        return answer

    def _find(self, run_ids: Sequence[str]) -> dict[str, list[Any]]:
        found = self.connection.execute(_finding(len(run_ids)), (self.space, *run_ids))
        return {run_id: rest for run_id, *rest in found}

    def _corrupt(self, change: Change, number: int, facts: Facts) -> Answer:
        if isinstance(change, Claim):
            # Out of the index, or it would be found by every look and crowd out runs that can be read; when the record
            # is made good again, the repair pass finds that its entry is missing.
            self.connection.execute(_SQL["move_entry"], (None, number))
        return Answer(verdict=Verdict.REFUSED, why=Why.CORRUPT, now_us=facts.now_us)

    def _found(self, shelf: Shelf, change: Change, last: Sequence[Any]) -> Found:
        run, row, item = shelf.run, "", None
        if run is not None and isinstance(change, Commit):
            row = self._row(shelf.number, run, change.row.seq, *last)
        if isinstance(change, Post):
            item = self._item(shelf.number, change.item)
        return Found(run=run, row=row, item=item, due=shelf.entry_ms)

    def _row(self, number: int, run: Run, seq: int, key: int | None, digest: bytes | None) -> str:
        first, _ = row_keys(number)
        last = (0, b"") if key is None or digest is None else (key - first, digest)
        if (last[0], last[1].decode(errors="replace")) != (run.last_seq, run.head):
            message = f"the journal of run {run.id} does not end where its record says; see `tenure show --raw`"
            raise CorruptRecord(message, run_id=run.id)
        if not 0 < seq <= run.last_seq:
            return ""
        found = self.connection.execute(_SQL["row_digest"], (first + seq,)).fetchone()
        return found[0].decode(errors="replace") if found is not None else ""

    def _item(self, number: int, item_id: str) -> Item | None:
        found = self.connection.execute(_SQL["find_item"], (number, item_id)).fetchone()
        return unpack_item(item_id, found[0]) if found is not None else None

    def _land(self, change: Change, shelf: Shelf, answer: Answer) -> None:
        run = answer.run
        if run is None:
            if isinstance(change, Delete) and shelf.run is not None:
                self._delete(shelf.number, shelf.run)
            return
        if isinstance(change, Create):
            self._append(change, self._insert(run), answer.now_us // 1000)
            return
        if isinstance(change, Import):
            self._bring(change, run)
            return
        consumed = self._consumed(change, shelf.number) if isinstance(change, Commit) else []
        moves = shelf.run is not None and moves_index(change, shelf.run, run)
        self._put(shelf, run, rules.due_index(run) if moves else shelf.entry_ms)
        if isinstance(change, Commit):
            self._append(change, shelf.number, answer.now_us // 1000)
            for item_id, data in consumed:
                self.connection.execute(_SQL["update_item"], (data, shelf.number, item_id))
        elif isinstance(change, Post):
            item = _posted(change, run.inbox_seq, answer.now_us // 1000)
            self.connection.execute(_SQL["insert_item"], (shelf.number, item.seq, item.id, pack_item(item)))

    def _insert(self, run: Run) -> int:
        data = self._written(run)
        columns = (run.kind, run.status.value, run.owner, run.parent, run.created_ms, run.token, run.priority)
        values = (self.space, run.id, *columns, rules.due_index(run), data)
        return self.connection.execute(_SQL["insert_run"], values).lastrowid or 0

    def _bring(self, change: Import, run: Run) -> None:
        number = self._insert(run)
        first = row_keys(number)[0]
        rows = ((first + row.seq, pack_row(row, row.at_ms)) for row in change.rows)
        self.connection.executemany(_SQL["insert_row"], rows)
        items = ((number, item.seq, item.id, pack_item(item)) for item in change.items)
        self.connection.executemany(_SQL["insert_item"], items)
        blobs = ((number, name, data) for name, data in change.blobs.items())
        self.connection.executemany(_SQL["insert_blob"], blobs)
        self._raise_floor(run)
        self.new_history(change.salt)

    def new_history(self, salt: str) -> None:
        """Give the file another salt: who was granted before has to show that what it knows still stands."""
        since_ms = self._facts.now_ms
        self.connection.execute(FILE["set_salt"], (salt, since_ms))
        # What is decided next in this transaction belongs to the new history.
        self._facts = replace(self._facts, epoch=epoch(self._place.boot, salt), since_ms=since_ms)

    def _raise_floor(self, run: Run) -> None:
        self.connection.execute(FILE["raise_floor"], (run.token, self.space))
        self._facts = replace(self._facts, floor=max(self._facts.floor, run.token))

    def _append(self, change: Create | Commit, number: int, now_ms: int) -> None:
        if change.row is not None:
            key = row_keys(number)[0] + change.row.seq
            self.connection.execute(_SQL["insert_row"], (key, pack_row(change.row, now_ms)))
        for digest, data in change.blobs.items():
            self.connection.execute(_SQL["insert_blob"], (number, digest, data))

    def _put(self, shelf: Shelf, run: Run, entry_ms: int | None) -> None:
        data = self._written(run)
        columns = _columns(run)
        if shelf.run is not None and (columns, entry_ms) == (_columns(shelf.run), shelf.entry_ms):
            # The common road touches no index.
            self.connection.execute(_SQL["update_record"], (data, shelf.number))
        else:
            self.connection.execute(_SQL["update_run"], (*columns, entry_ms, data, shelf.number))

    def _written(self, run: Run) -> str:
        data = write_record(run)
        self._records.keep(run, data)
        return data.decode()

    def _consumed(self, change: Commit, number: int) -> list[tuple[str, bytes]]:
        items = [(item_id, self._item(number, item_id)) for item_id in change.consume]
        return [(k, pack_item(replace(item, body=b"", consumed=True))) for k, item in items if item is not None]

    def _delete(self, number: int, run: Run) -> None:
        self._raise_floor(run)
        self.connection.execute(_SQL["delete_rows"], row_keys(number))
        for name in ("delete_items", "delete_blobs", "delete_run"):
            self.connection.execute(_SQL[name], (number,))


def _posted(change: Post, seq: int, now_ms: int) -> Item:
    return Item(
        seq=seq,
        id=change.item,
        name=change.name,
        ask=change.ask,
        digest=change.digest,
        body=change.body,
        at_ms=now_ms,
    )


@lru_cache(maxsize=LIMIT)
def _finding(count: int) -> str:
    return _SQL["find_runs_and_rows"].replace("IN (?)", f"IN ({', '.join('?' * count)})")


def _columns(run: Run) -> tuple[str, str, str, str, int, int]:
    return run.kind, run.status.value, run.owner, run.parent, run.token, run.priority


def row_keys(number: int) -> tuple[int, int]:
    """Return the key before a run's first commit, and the last one that a commit of it can have."""
    return number << 32, (number << 32) | 0xFFFFFFFF
