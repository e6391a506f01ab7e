"""What the PostgreSQL store reads; nothing here decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tenure.core.run import Item, Row, Run
from tenure.errors import CorruptRecord, StoreTooNew
from tenure.store import Beat, Hint, Page, Refused, Where
from tenure.stores._index import after_cursor, cursor_of, matches
from tenure.stores._postgres_answer import item_of, row_of, run_of, texts_of
from tenure.stores._postgres_change import escaped
from tenure.stores._postgres_session import Session

_FOREVER_MS = 1 << 62
_LOOKED_AT = 1_000
"""How many records one page of a search looks at, where what it filters by is in no column."""


async def load(session: Session, run_id: str) -> Run | None:
    """Return the record; CorruptRecord, StoreTooNew."""
    found = await session.read("load", id=run_id)
    return run_of(json.loads(found[0][0])) if found else None


async def raw(session: Session, run_id: str) -> dict[str, str]:
    """Return the record's columns as they are."""
    found = await session.read("load", id=run_id)
    return texts_of(json.loads(found[0][0])) if found else {}


async def tail(session: Session, run_id: str, after: int, limit: int) -> list[Row]:
    """Return commits in order."""
    return [row_of(row) for row in await session.read("tail", id=run_id, after=after, limit=limit)]


async def inbox(session: Session, run_id: str, after: int) -> list[Item]:
    """Return inbox items in order."""
    found = await session.read("inbox", id=run_id, after=after)
    return [item_of(json.loads(record), bytes(body)) for record, body in found]


async def blob(session: Session, run_id: str, digest: str) -> bytes | None:
    """Return a blob."""
    found = await session.read("blob", id=run_id, digest=digest)
    return bytes(found[0][0]) if found else None


async def due(session: Session, kinds: Sequence[str], limit: int) -> list[Hint]:
    """Return what is due, the longest due first."""
    return [
        Hint(run=run_id, kind=kind, due_ms=entry_ms, token=token, priority=priority)
        for entry_ms, run_id, kind, token, priority in await session.read("due", kinds=sorted(set(kinds)), limit=limit)
    ]


async def next_due_ms(session: Session, kinds: Sequence[str]) -> int | None:
    """Return the earliest entry of these kinds."""
    ((entry_ms,),) = await session.read("next_due", kinds=sorted(set(kinds)))
    found: int | None = entry_ms
    return found


async def kinds(session: Session) -> list[str]:
    """Return the kinds in the due index, sorted."""
    return [kind for (kind,) in await session.read("kinds")]


async def entries(session: Session, kind: str, cursor: str, limit: int) -> tuple[list[tuple[str, str]], str]:
    """Return a page of a kind's due index; an entry is a column of the run, so its raw form is the id."""
    after_ms, after_id = after_cursor(cursor) if cursor else (-_FOREVER_MS, "")
    found = await session.read("entries", kind=kind, after_ms=after_ms, after_id=after_id, limit=limit + 1)
    page = found[:limit]
    return [(run_id, run_id) for _, run_id in page], cursor_of(*page[-1]) if len(found) > limit else ""


async def find(session: Session, where: Where, cursor: str | None, limit: int) -> Page:
    """Return a page of runs, newest first; one whose filter finds little is short and has a cursor all the same."""
    before_ms, before_id = after_cursor(cursor) if cursor is not None else (_FOREVER_MS, "")
    values: dict[str, Any] = {
        "before_ms": before_ms,
        "before_id": before_id,
        "from_ms": where.created_from_ms,
        "until_ms": _FOREVER_MS if where.created_until_ms is None else where.created_until_ms,
        "kind": where.kind,
        "owner": escaped(where.owner),
        "limit": (_LOOKED_AT if where.tags or where.wants else limit) + 1,
    }
    if where.parent:
        found = await session.read("find_parent", **values, parent=where.parent)
    elif where.status:
        statuses = sorted({status.value for status in where.status})
        found = await session.read("find_status", statuses=statuses, **values)
    else:
        found = await session.read("find", **values)
    return _page(found, where, limit, more=len(found) == values["limit"])


def _page(found: Sequence[Any], where: Where, limit: int, *, more: bool) -> Page:
    runs: list[Run] = []
    corrupt: list[str] = []
    place: tuple[int, str] | None = None
    for number, (created_ms, run_id, record) in enumerate(found):
        if len(runs) == limit or (more and number == len(found) - 1):
            return Page(runs=tuple(runs), cursor=cursor_of(*place) if place else None, corrupt=tuple(corrupt))
        place = created_ms, run_id
        try:
            run = run_of(json.loads(record))
        except (CorruptRecord, StoreTooNew):
            corrupt.append(run_id)
            continue
        if matches(run, where):
            runs.append(run)
    return Page(runs=tuple(runs), corrupt=tuple(corrupt))


def pack_hint(value: Beat | Refused, /) -> str:
    """Return a row of a worker or a refused write as JSON, without its time, which is the store's."""
    return json.dumps({name: part for name, part in asdict(value).items() if name != "at_ms"})


def named(name: str, /) -> str:
    """Return a worker's name as a key."""
    return escaped(name)


async def beats(session: Session) -> list[Beat]:
    """Return the rows of workers seen lately."""
    found = [(at_ms, json.loads(data)) for at_ms, data in await session.read("beats")]
    return [Beat(**{**fields, "kinds": tuple(fields["kinds"])}, at_ms=at_ms) for at_ms, fields in found]


async def refused(session: Session, limit: int) -> list[Refused]:
    """Return the latest refused writes, newest first."""
    return [Refused(**json.loads(data), at_ms=at_ms) for at_ms, data in await session.read("refused", limit=limit)]
