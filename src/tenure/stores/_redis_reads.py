"""What is read from Redis: journals, blobs, the due index, listings. Nothing here decides anything."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from tenure.codec import unpack_item, unpack_row, unpack_run
from tenure.core.run import Item, Row, Run, Status
from tenure.errors import CorruptRecord, StoreTooNew, StoreUnsafe
from tenure.store import Beat, Hint, Refused, Where
from tenure.stores._index import after_cursor, matches
from tenure.stores._redis_answer import text_fields
from tenure.stores._redis_connect import FOREIGN
from tenure.stores._redis_keys import STATUSES, Keys
from tenure.stores._redis_line import pack
from tenure.stores._redis_reader import Reply

Ask = Callable[..., Awaitable[list[Reply]]]
"""Sends packed commands and returns their replies; a refusal of the server is raised."""

PAGE = 200

Place: TypeAlias = tuple[int, str]
"""Where a run stands in a listing: when it was created, and its id."""


async def load(ask: Ask, keys: Keys, run_id: str, /) -> Run | None:
    """Return a record, None if there is none."""
    (flat,) = await ask(pack("HGETALL", keys.run(run_id)))
    return _record(run_id, flat)


def _record(run_id: str, flat: Sequence[bytes]) -> Run | None:
    if not flat:
        return None
    try:
        run = unpack_run(text_fields(flat))
    except (CorruptRecord, StoreTooNew) as error:
        error.run_id = run_id
        raise
    if run.id != run_id:
        message = f"the record of run {run_id} names another run; see `tenure show --raw`"
        raise CorruptRecord(message, run_id=run_id)
    return run


async def tail(ask: Ask, keys: Keys, run_id: str, /, *, after: int, limit: int) -> list[Row]:
    """Return rows in order; the bodies of large ones are fetched by their own keys."""
    if limit < 1:
        return []
    (stored,) = await ask(pack("LRANGE", keys.log(run_id), after, after + limit - 1))
    heads = [data.partition(b"\n")[0].split(b" ") for data in stored]
    large = [after + 1 + i for i, head in enumerate(heads) if head[4:] == [b"big"]]
    bodies = dict(zip(large, await ask(*(pack("GET", keys.large(run_id, str(seq))) for seq in large)), strict=True))
    rows = []
    for seq, data in enumerate(stored, after + 1):
        if seq not in bodies:
            rows.append(unpack_row(seq, data))
            continue
        if bodies[seq] is None:
            message = f"the body of commit {seq} of run {run_id} is gone; restore the store, or cancel the run"
            raise CorruptRecord(message, run_id=run_id)
        rows.append(unpack_row(seq, data.rstrip(b"\n").removesuffix(b" big") + b"\n" + bodies[seq]))
    return rows


async def inbox(ask: Ask, keys: Keys, run_id: str, /, *, after: int) -> list[Item]:
    """Return inbox items in order; where all of them were seen, their number alone is read."""
    if after and (await ask(pack("HLEN", keys.inbox(run_id))))[0] <= after:
        return []
    (flat,) = await ask(pack("HGETALL", keys.inbox(run_id)))
    items = (unpack_item(name.decode(), data) for name, data in zip(flat[::2], flat[1::2], strict=True))
    return sorted((item for item in items if item.seq > after), key=lambda item: item.seq)


async def blob(ask: Ask, keys: Keys, run_id: str, digest: str, /) -> bytes | None:
    """Return a blob, wherever its size put it."""
    small, large = await ask(pack("HGET", keys.blobs(run_id), digest), pack("GET", keys.large(run_id, digest)))
    found: bytes | None = small if small is not None else large
    return found


async def due(
    ask: Ask, keys: Keys, kinds: Sequence[str], now_ms: int | None, /, *, limit: int
) -> tuple[list[Hint], int]:
    """Return what the indexes of these kinds say is due, the longest due first, and the store's now.

    One round trip, because an idle leader asks four times a second: the server tells its time along with the first
    entries of each index, and those that are not due yet are left out here. `now_ms` is a test's own time.
    """
    wanted = list(dict.fromkeys(kinds))
    (seconds, us), *replies = await ask(
        pack("TIME"),
        *(pack("ZRANGE", keys.due(k), "-inf", "+inf", "BYSCORE", "LIMIT", 0, limit, "WITHSCORES") for k in wanted),
    )
    now = int(seconds) * 1000 + int(us) // 1000 if now_ms is None else now_ms
    hints: list[Hint] = []
    for kind, flat in zip(wanted, replies, strict=True):
        for member, score in zip(flat[::2], flat[1::2], strict=True):
            if (due_ms := int(float(score))) > now:
                break  # they come the earliest first
            parts = member.decode(errors="replace").split(" ")
            if len(parts) == 3 and parts[1].isdecimal() and parts[2].removeprefix("-").isdecimal():
                hints.append(Hint(run=parts[0], kind=kind, due_ms=due_ms, token=int(parts[1]), priority=int(parts[2])))
    hints.sort(key=_due)
    return hints[:limit], now


def _due(hint: Hint) -> tuple[int, str]:
    return hint.due_ms, hint.run


async def next_due_ms(ask: Ask, keys: Keys, kinds: Sequence[str], /) -> int | None:
    """Return the earliest entry of the indexes of these kinds."""
    replies = await ask(*(pack("ZRANGE", keys.due(kind), 0, 0, "WITHSCORES") for kind in kinds))
    return min((int(float(flat[1])) for flat in replies if flat), default=None)


async def kinds_in_use(ask: Ask, keys: Keys, /) -> list[str]:
    """Return the kinds whose index has an entry."""
    (known,) = await ask(pack("SMEMBERS", keys.kinds))
    names = sorted(name.decode() for name in known)
    counts = await ask(*(pack("ZCARD", keys.due(name)) for name in names))
    return [name for name, count in zip(names, counts, strict=True) if count]


async def entries(ask: Ask, keys: Keys, kind: str, /, *, cursor: str, limit: int) -> tuple[list[tuple[str, str]], str]:
    """Return a page of a due index: run id, and the entry with its kind behind it."""
    (reply,) = await ask(pack("ZSCAN", keys.due(kind), cursor or "0", "COUNT", limit))
    members = [member.decode(errors="replace") for member in reply[1][::2]]
    after = reply[0].decode()
    return [(member.partition(" ")[0], f"{member} {kind}") for member in members], "" if after == "0" else after


async def find(
    ask: Ask, keys: Keys, where: Where, /, *, cursor: str | None, limit: int
) -> tuple[list[Run], list[Place], bool]:
    """Return runs, newest first, those that cannot be read, and whether there are more below the last run.

    The status indexes are merged, the records decide.
    """
    runs: list[Run] = []
    corrupt: list[Place] = []
    seen: set[str] = set()
    place = after_cursor(cursor) if cursor is not None else None
    statuses = where.status or STATUSES
    while len(runs) <= limit:
        found, place = await _next(ask, keys, where, statuses, place)
        flats = await _records(ask, [pack("HGETALL", keys.run(run_id)) for _, run_id in found])
        for at, flat in zip(found, flats, strict=True):
            if at[1] in seen:  # it changed its status between two pages
                continue
            seen.add(at[1])
            try:
                run = _record(at[1], flat)
            except (CorruptRecord, StoreTooNew):
                corrupt.append(at)
                continue
            if run is not None and matches(run, where):
                runs.append(run)
        if place is None:
            break
    return runs[:limit], corrupt, len(runs) > limit


async def _records(ask: Ask, commands: Sequence[bytes]) -> list[Reply]:
    """Return what stands in each record; a key that is none is a record that cannot be read, and hides no other."""
    try:
        return await ask(*commands)
    except StoreUnsafe as error:
        if FOREIGN not in error.message:
            raise
        if len(commands) == 1:
            return [[b"", b""]]
    return [record for command in commands for record in await _records(ask, [command])]


async def _next(
    ask: Ask, keys: Keys, where: Where, statuses: Sequence[Status], place: Place | None
) -> tuple[list[Place], Place | None]:
    """Return the next names below a place, newest first, and the place to go on from; None at the end."""
    newest: int | str = place[0] if place is not None else "+inf"
    if where.created_until_ms is not None and (place is None or place[0] >= where.created_until_ms):
        newest = f"({where.created_until_ms}"

    def command(status: Status, offset: int) -> bytes:
        limits = ("BYSCORE", "REV", "LIMIT", offset, PAGE, "WITHSCORES")
        return pack("ZRANGE", keys.status(status), newest, where.created_from_ms, *limits)

    merged: list[Place] = []
    floor: Place | None = None
    for status, flat in zip(statuses, await ask(*(command(status, 0) for status in statuses)), strict=True):
        found, offset = _places(flat), 0
        part = [at for at in found if place is None or at < place]
        while len(found) == PAGE and not part:  # more runs than a page were made in that millisecond
            offset += PAGE
            (more,) = await ask(command(status, offset))
            found = _places(more)
            part = [at for at in found if place is None or at < place]
        merged += part
        if len(found) == PAGE:  # this index has more: what lies below its last name is the next page's
            floor = part[-1] if floor is None else max(floor, part[-1])
    merged.sort(reverse=True)
    return (merged, None) if floor is None else ([at for at in merged if at >= floor], floor)


def _places(flat: Sequence[bytes]) -> list[Place]:
    names = zip(flat[::2], flat[1::2], strict=True)
    return [(int(float(score)), name.decode(errors="replace")) for name, score in names]


def pack_beat(row: Beat, until_ms: int, /) -> bytes:
    """Return a worker's row with the time it expires."""
    return json.dumps({**asdict(row), "until_ms": until_ms}).encode()


def unpack_beats(flat: Sequence[bytes], now_ms: int, /) -> tuple[list[Beat], list[bytes]]:
    """Return the rows that have not expired, and the names of those that have or cannot be read."""
    rows, over = [], []
    for name, data in zip(flat[::2], flat[1::2], strict=True):
        found = _object(data)
        try:
            until_ms = found.pop("until_ms")
            row = Beat(**{**found, "kinds": tuple(found["kinds"])})
        except (KeyError, TypeError):
            until_ms, row = 0, None
        if row is not None and until_ms > now_ms:
            rows.append(row)
        else:
            over.append(name)
    return sorted(rows, key=lambda row: row.name), over


def unpack_refused(lines: Iterable[bytes], /) -> list[Refused]:
    """Return the lines of the refused list that can be read."""
    found = []
    for data in lines:
        try:
            found.append(Refused(**_object(data)))
        except TypeError:
            continue
    return found


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
