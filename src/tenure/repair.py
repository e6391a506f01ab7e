"""The repair pass: what the due index lost, leases that a clock stretched, runs whose time of grace is over, children.

Everything here is asked of the store as an ordinary change, so it decides each case again; a pass that is late, double
or cut short does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tenure import cancelling
from tenure.core import build, rules, set_back
from tenure.core.run import Change, How, Repair, Status, Verdict
from tenure.errors import TenureError
from tenure.store import Store, Where

log = logging.getLogger("tenure.sweep")

BATCH = 200
PAGE = 500


@dataclass(slots=True, kw_only=True)
class Repaired:
    """What one pass found and did; `late` are runs whose time of grace was over or whose parent was cancelled."""

    open: int = 0
    lost: int = 0
    strays: int = 0
    stretched: int = 0
    late: int = 0
    corrupt: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seen:
    """The due index as listed, and the open runs as found after that with their parents: ids, and no records."""

    entries: dict[str, list[str]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)


async def repair_pass(store: Store, /, *, go_on: Callable[[], None] = lambda: None) -> Repaired:
    """Do one pass over all runs; `go_on` is called between pages and may raise to end it."""
    done = Repaired()
    seen = _Seen()
    for kind in await store.kinds():
        cursor = ""
        while True:
            go_on()
            page, cursor = await store.entries(kind, cursor=cursor, limit=PAGE)
            for run_id, raw in page:
                seen.entries.setdefault(run_id, []).append(raw)
            if not cursor:
                break
    # The index first, the records second: a run that was queued in between is asked about for nothing.
    await _look_at_records(store, seen, done, go_on)
    # A record that cannot be read here, of a newer schema for example, is there; whoever reads it sees to its entry.
    unread = set(done.corrupt)
    strays = [
        Repair(run=run_id, stray=raw)
        for run_id, raws in seen.entries.items()
        if (len(raws) > 1 or run_id not in seen.open) and run_id not in unread
        for raw in raws
    ]
    done.strays = await _ask(store, strays, go_on)
    await _cancel_children(store, seen, done, go_on)
    return done


async def _look_at_records(store: Store, seen: _Seen, done: Repaired, go_on: Callable[[], None]) -> None:
    where, cursor = Where(status=(*rules.OPEN, Status.QUARANTINED)), None
    while True:
        go_on()
        page = await store.find(where, cursor=cursor, limit=PAGE)
        now_ms = (await store.facts()).now_ms
        done.corrupt += page.corrupt
        stretched: list[Change] = []
        lost: list[Change] = []
        cancels: list[Change] = []
        for run in page.runs:
            seen.open[run.id] = run.parent
            done.open += run.status in rules.OPEN
            if set_back.out_of_reach(run, now_ms):
                stretched.append(Repair(run=run.id))
            elif rules.due_index(run) is not None and run.id not in seen.entries:
                lost.append(Repair(run=run.id))
            if run.cancel_by_ms is not None and run.cancel_by_ms <= now_ms:
                said = await cancelling.asked(store, run.id)
                cancels.append(build.end(run=run.id, how=How.CANCEL, reason=said.late, by=said.by))
                del seen.open[run.id]
                # The cancel takes its entry along: afterwards that is no stray.
                seen.entries.pop(run.id, None)
        done.stretched += await _ask(store, stretched, go_on)
        done.lost += await _ask(store, lost, go_on)
        done.late += await _ask(store, cancels, go_on)
        if page.cursor is None:
            return
        cursor = page.cursor


async def _cancel_children(store: Store, seen: _Seen, done: Repaired, go_on: Callable[[], None]) -> None:
    gone: set[str] = set()
    # A parent that was found open just now is not asked for: if it was cancelled since, the next pass sees it.
    for parent in sorted(set(seen.open.values()) - seen.open.keys() - {""}):
        go_on()
        run = await store.load(parent)
        if run is not None and run.status is Status.CANCELLED:
            gone.add(parent)
    while gone:
        late = [run_id for run_id, parent in seen.open.items() if parent in gone]
        reason = "its parent was cancelled"
        done.late += await _ask(store, [build.end(run=r, how=How.CANCEL, reason=reason) for r in late], go_on)
        for run_id in late:
            del seen.open[run_id]
        gone = set(late)


async def _ask(store: Store, changes: Iterable[Change], go_on: Callable[[], None]) -> int:
    """Ask for changes in batches and return how many landed; one that has no answer is for the next pass."""
    landed, waiting = 0, list(changes)
    while waiting:
        go_on()
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        for change, answer in zip(batch, await store.commit_many(batch), strict=True):
            if isinstance(answer, TenureError):
                log.warning("run %s was not repaired: %s", change.run, answer, extra={"run_id": change.run})
            else:
                landed += answer.verdict is Verdict.LANDED
    return landed
