"""Verifying a run where it is stored: its journal, its result and where it was forked from. Nothing is written."""

from __future__ import annotations

from tenure.core import canonical
from tenure.core.run import Row, Run
from tenure.core.verify import ORIGIN, RESULT, Audit, Verification
from tenure.errors import CorruptRecord
from tenure.refusals import not_found
from tenure.store import Store

PAGE = 100
TRIES = 3


async def verified(store: Store, run_id: str, /) -> Verification:
    """Return what verifying the run found; RunNotFound if there is none.

    A run that goes on meanwhile is no failure, nor is one whose last commits a failover took while they were read: a
    fault counts if the record is after it was found what it was before the first row, or if it was found each time.
    """
    for _ in range(TRIES - 1):
        first, found = await _verified(store, run_id)
        if found.ok or await _loaded(store, run_id) == first:
            return found
    return (await _verified(store, run_id))[1]


async def _verified(store: Store, run_id: str) -> tuple[Run, Verification]:
    """Return what verifying the run once found, and its record as it was before that."""
    audit, last = Audit(run_id), 0
    run = first = await _loaded(store, run_id)
    while True:
        last = await _read(store, run_id, audit, last)
        # The record and the rows are two reads: a holder may have written between them.
        before, run = run, await _loaded(store, run_id)
        if run.last_seq == last or run.version == before.version:
            break
    await _result(store, run, audit)
    await _origin(store, audit)
    return first, audit.end(run)


async def _loaded(store: Store, run_id: str) -> Run:
    run = await store.load(run_id)
    if run is None:
        raise not_found(run_id)
    return run


async def _read(store: Store, run_id: str, audit: Audit, last: int) -> int:
    """Read on from a commit to the end; a row whose head cannot be read is taken note of and passed over."""
    size = PAGE
    while True:
        try:
            page: list[Row] = await store.tail(run_id, after=last, limit=size)
        except CorruptRecord as error:
            if size == 1:
                last += 1
                audit.unreadable(last, error.message)
            size = 1
            continue
        if not page:
            return last
        for row in page:
            audit.add(row)
        last = page[-1].seq


async def _result(store: Store, run: Run, audit: Audit) -> None:
    digest = run.outcome.result if run.outcome is not None else ""
    if digest:
        data = await store.blob(run.id, digest)
        if data is None or canonical.digest(data) != digest:
            what = "missing" if data is None else "not what its digest says"
            audit.fail(RESULT, run.last_seq, detail=f"the result is {what}")


async def _origin(store: Store, audit: Audit) -> None:
    if not audit.origin:
        return
    parent, seq, head = (audit.origin.get(name) for name in ("run", "seq", "head"))
    rows = await store.tail(str(parent), after=int(seq or 1) - 1, limit=1)
    if not rows or rows[0].seq != seq:
        audit.doubt(ORIGIN, 1, detail=f"run {parent}, which it was forked from, is gone")
    elif rows[0].digest != head:
        audit.fail(ORIGIN, 1, detail=f"commit {seq} of run {parent} is not the one that it was forked from")
