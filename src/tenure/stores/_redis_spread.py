"""What is read from all shards and put together: due runs, indexes, listings."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.core.run import Run
from tenure.store import Hint, Page, Where
from tenure.stores import _redis_reads as reads
from tenure.stores._index import cursor_of
from tenure.stores._redis_session import Session
from tenure.stores._redis_shard import Shard


async def due(session: Session, kinds: Sequence[str], now_ms: int | None, /, *, limit: int) -> tuple[list[Hint], int]:
    """Return what the indexes say is due, the longest due first, and the store's now.

    A shard that is silent is left out, and so is what could not be claimed on one that takes no claims.
    """

    async def of(shard: Shard) -> tuple[int, list[Hint], int]:
        hints, now = await reads.due(shard.asked, shard.keys, kinds, now_ms, limit=limit)
        return shard.keys.shard, hints, now

    found = await session.those(of)
    hints = session.refusing.claimable({number: some for number, some, _ in found})
    return sorted(hints, key=lambda hint: (hint.due_ms, hint.run))[:limit], max(now for *_, now in found)


async def next_due_ms(session: Session, kinds: Sequence[str], /) -> int | None:
    """Return the earliest entry of the indexes; a silent shard is left out."""
    found = await session.those(lambda shard: reads.next_due_ms(shard.asked, shard.keys, kinds))
    return min((at for at in found if at is not None), default=None)


async def kinds_in_use(session: Session, /) -> list[str]:
    """Return the kinds whose index has an entry; a silent shard is left out."""
    found = await session.those(lambda shard: reads.kinds_in_use(shard.asked, shard.keys))
    return sorted({kind for some in found for kind in some})


async def entries(session: Session, kind: str, /, *, cursor: str, limit: int) -> tuple[list[tuple[str, str]], str]:
    """Return a page of a due index; the cursor of more than one shard begins with the number of one."""
    number, _, after = cursor.rpartition(":")
    found: list[tuple[str, str]] = []
    for at in range(int(number or "0"), len(session.shards)):
        shard = session.shards[at]
        more, after = await reads.entries(shard.asked, shard.keys, kind, cursor=after, limit=limit)
        found += more
        if after:
            return found, after if len(session.shards) == 1 else f"{at}:{after}"
        if len(found) >= limit and at + 1 < len(session.shards):
            return found, f"{at + 1}:"
    return found, ""


async def find(session: Session, where: Where, /, *, cursor: str | None, limit: int) -> Page:
    """Return a page of runs, newest first. Every shard has to answer: nobody would see a hole in a listing."""
    found = await session.every(lambda shard: reads.find(shard.asked, shard.keys, where, cursor=cursor, limit=limit))
    runs = sorted((run for some, _, _ in found for run in some), key=place_of, reverse=True)
    corrupt = sorted((place for _, some, _ in found for place in some), reverse=True)
    if len(runs) <= limit and not any(more for _, _, more in found):
        return Page(runs=tuple(runs), corrupt=tuple(name for _, name in corrupt))
    last = place_of(runs[limit - 1])
    return Page(
        runs=tuple(runs[:limit]),
        cursor=cursor_of(*last),
        corrupt=tuple(name for at, name in corrupt if (at, name) > last),
    )


def place_of(run: Run, /) -> reads.Place:
    """Return where a run stands in a listing."""
    return run.created_ms, run.id
