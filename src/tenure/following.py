"""Reading a journal event by event: what is there, and what lands from now on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio

from tenure.core import journal
from tenure.core.rules import TERMINAL
from tenure.core.run import Row, Run, Status
from tenure.errors import NotAllowed, StoreUnavailable
from tenure.refusals import not_found
from tenure.store import Store

PAGE = 100
FIRST_S = 0.05
LONGEST_S = 1.0

Found = tuple[Row, int, dict[str, Any]]
"""An event with the commit that carries it and its place in there."""


async def rows_after(store: Store, run_id: str, after: str | int = 0, /) -> AsyncIterator[Found]:
    """Yield the events after an address `seq.index` or a number of commits, read in pages; RunNotFound for no run."""
    last, skip = _place(run_id, after)
    start = last if skip is None else max(0, last - 1)
    rows = await store.tail(run_id, after=start, limit=PAGE)
    if not rows and await store.load(run_id) is None:
        raise not_found(run_id)
    while rows:
        for row in rows:
            for index, event in enumerate(journal.events_of(row)):
                if skip is None or (row.seq, index) > (last, skip):
                    yield row, index, event
        rows = await store.tail(run_id, after=rows[-1].seq, limit=PAGE)


async def followed(store: Store, run_id: str, after: str | int = 0, /) -> AsyncIterator[Found]:
    """Yield the events after a place, and those that land, until the run has ended or is set aside."""
    pause = FIRST_S
    while True:
        try:
            # First the record, then the rows: what a run that has ended wrote is all there.
            run = await _loaded(store, run_id)
            async for found in rows_after(store, run_id, after):
                after, pause = f"{found[0].seq}.{found[1]}", FIRST_S
                yield found
            if run.status in TERMINAL or run.status is Status.QUARANTINED:
                return
            await store.woken([f"run:{run_id}"], timeout=pause)
        except StoreUnavailable:
            await anyio.sleep(pause)
        pause = min(LONGEST_S, pause * 1.5)


async def _loaded(store: Store, run_id: str) -> Run:
    run = await store.load(run_id)
    if run is None:
        raise not_found(run_id)
    return run


def _place(run_id: str, after: str | int) -> tuple[int, int | None]:
    seq, dot, index = str(after).partition(".")
    if not seq.isdecimal() or (dot and not index.isdecimal()):
        message = f"{str(after)[:40]!r} is no place in a journal; pass an address like 12.0, a number of commits, or 0"
        raise NotAllowed(message, run_id=run_id)
    return int(seq), int(index) if dot else None


async def pages(store: Store, run_id: str, after: str | int = 0) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield (address, event) after a place."""
    async for row, index, event in rows_after(store, run_id, after):
        yield f"{row.seq}.{index}", event
