"""What the SQLite store reads, each on a connection that no writer blocks; nothing here decides."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tenure.codec import unpack_item, unpack_row
from tenure.core import canonical
from tenure.core.run import Item, Row, Run
from tenure.errors import CorruptRecord, InvalidContent, StoreTooNew
from tenure.store import Beat, Hint, Page, Refused, Where
from tenure.stores._index import after_cursor, cursor_of, matches
from tenure.stores._sqlite_record import read_record
from tenure.stores._sqlite_sql import statements

_SQL = statements("read.sql")
_FOREVER_MS = 1 << 62
_LOOKED_AT = 2_000
"""How many records one page of a search looks at, at most: a read that lasts keeps the log from being trimmed."""


def load(connection: sqlite3.Connection, space: int, run_id: str) -> Run | None:
    """Return the record; CorruptRecord, StoreTooNew."""
    found = connection.execute(_SQL["load"], (space, run_id)).fetchone()
    return read_record(run_id, found[0]) if found is not None else None


def raw(connection: sqlite3.Connection, space: int, run_id: str) -> dict[str, str]:
    """Return the record's fields as they are, or its whole text as `record` if it has none."""
    found = connection.execute(_SQL["load"], (space, run_id)).fetchone()
    if found is None:
        return {}
    text = found[0].decode(errors="backslashreplace")
    try:
        fields = canonical.decode(found[0])
    except InvalidContent:
        return {"record": text}
    return {k: str(v) for k, v in fields.items()} if isinstance(fields, dict) else {"record": text}


def tail(connection: sqlite3.Connection, space: int, run_id: str, after: int, limit: int) -> list[Row]:
    """Return commits in order."""
    return [unpack_row(seq, data) for seq, data in connection.execute(_SQL["tail"], (space, run_id, after, limit))]


def inbox(connection: sqlite3.Connection, space: int, run_id: str, after: int) -> list[Item]:
    """Return inbox items in order."""
    found = connection.execute(_SQL["inbox"], (space, run_id, after))
    return [unpack_item(item_id, data) for item_id, data in found]


def blob(connection: sqlite3.Connection, space: int, run_id: str, digest: str) -> bytes | None:
    """Return a blob."""
    found = connection.execute(_SQL["blob"], (space, run_id, digest)).fetchone()
    return found[0] if found is not None else None


def due(connection: sqlite3.Connection, space: int, kinds: Sequence[str], now_ms: int, limit: int) -> list[Hint]:
    """Return what is due, the longest due first: one look into the index a kind."""
    found = [connection.execute(_SQL["due"], (space, kind, now_ms, limit)) for kind in sorted(set(kinds))]
    return [
        Hint(run=run_id, kind=kind, due_ms=entry_ms, token=token, priority=priority)
        for entry_ms, run_id, kind, token, priority in islice(heapq.merge(*found), limit)
    ]


def next_due_ms(connection: sqlite3.Connection, space: int, kinds: Sequence[str]) -> int | None:
    """Return the earliest entry of these kinds."""
    found = [connection.execute(_SQL["next_due"], (space, kind)).fetchone()[0] for kind in set(kinds)]
    return min((entry_ms for entry_ms in found if entry_ms is not None), default=None)


def kinds(connection: sqlite3.Connection, space: int) -> list[str]:
    """Return the kinds in the due index, sorted."""
    return [kind for (kind,) in connection.execute(_SQL["kinds"], (space,))]


def entries(
    connection: sqlite3.Connection, space: int, kind: str, cursor: str, limit: int
) -> tuple[list[tuple[str, str]], str]:
    """Return a page of a kind's due index in its order; an entry is a column of the run, so its raw form is the id."""
    after = after_cursor(cursor) if cursor else (-_FOREVER_MS, "")
    found = connection.execute(_SQL["entries"], (space, kind, *after, limit + 1)).fetchall()
    page = found[:limit]
    return [(run_id, run_id) for _, run_id in page], cursor_of(*page[-1]) if len(found) > limit else ""


def find(connection: sqlite3.Connection, space: int, where: Where, cursor: str | None, limit: int) -> Page:
    """Return a page of runs, newest first; one that looked at very many ends early, with a cursor to go on."""
    runs: list[Run] = []
    corrupt: list[str] = []
    place = None
    for looked_at, (created_ms, run_id, data) in enumerate(_candidates(connection, space, where, cursor)):
        if len(runs) == limit or looked_at == _LOOKED_AT:
            return Page(runs=tuple(runs), cursor=cursor_of(*place) if place else None, corrupt=tuple(corrupt))
        place = created_ms, run_id
        try:
            run = read_record(run_id, data)
        except (CorruptRecord, StoreTooNew):
            corrupt.append(run_id)
            continue
        if matches(run, where):
            runs.append(run)
    return Page(runs=tuple(runs), corrupt=tuple(corrupt))


def _candidates(
    connection: sqlite3.Connection, space: int, where: Where, cursor: str | None
) -> Iterator[tuple[int, str, bytes]]:
    before = after_cursor(cursor) if cursor is not None else (_FOREVER_MS, "")
    until = _FOREVER_MS if where.created_until_ms is None else where.created_until_ms
    rest = (space, *before, where.created_from_ms, until, where.kind, where.owner)
    if where.parent:
        return iter(connection.execute(_SQL["find_parent"], (*rest, where.parent)))
    if not where.status:
        return iter(connection.execute(_SQL["find_all"], rest))
    found = [connection.execute(_SQL["find_status"], (*rest, status.value)) for status in sorted(set(where.status))]
    return heapq.merge(*found, key=lambda row: row[:2], reverse=True)


def beats(connection: sqlite3.Connection, space: int, now_ms: int) -> list[Beat]:
    """Return the rows of workers seen lately."""
    found = connection.execute(_SQL["beats"], (space, now_ms))
    return [Beat(**{**fields, "kinds": tuple(fields["kinds"])}) for fields in _decoded(found)]


def refused(connection: sqlite3.Connection, space: int, limit: int) -> list[Refused]:
    """Return the latest refused writes, newest first."""
    return [Refused(**fields) for fields in _decoded(connection.execute(_SQL["refused"], (space, limit)))]


def _decoded(found: Iterator[tuple[str]]) -> list[dict[str, Any]]:
    return [canonical.decode(text.encode()) for (text,) in found]
