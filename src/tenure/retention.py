"""Retention: settled runs are deleted once they have been settled for long enough. Without a word they are kept.

A run goes whole, by the change that anybody may ask for; what is left is the store's floor of tokens. The same id can
then be submitted anew, and is another run. So a child stays as long as its parent is open: a parent that is taken over,
or wakes, submits its children again, and must find what they did.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta

import anyio

from tenure.core import grant_log, rules
from tenure.core.run import Delete, Run, Status, Verdict
from tenure.core.text import shown
from tenure.errors import CorruptRecord, NotAllowed, StoreTooNew, TenureError
from tenure.store import Store, Where

log = logging.getLogger("tenure.sweep")

PAGE = 200
BREATH_S = 0.2
"""How long a pass lets others go first after each page: a backlog goes at up to a thousand runs a second."""


def retention(given: Mapping[Status | str, float | timedelta] | None, /) -> dict[Status, int]:
    """Return how long settled runs are kept, in ms by status; NotAllowed for what is no settled status or no time."""
    kept: dict[Status, int] = {}
    settled = ", ".join(sorted(status.value for status in rules.TERMINAL))
    for name, time in (given or {}).items():
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        if name not in rules.TERMINAL:
            message = f"{shown(str(name))} is no status of a settled run; name {settled}"
            raise NotAllowed(message)
        if seconds < 0:
            message = f"{name!s} runs are kept for at least 0 s, not for {seconds:g} s; name a length of time"
            raise NotAllowed(message)
        kept[Status(name)] = round(seconds * 1000)
    return kept


def settled_ms(run: Run, /) -> int:
    """Return since when a settled run has been here: since it settled, or was brought in from another store."""
    return max(run.updated_ms, *(line.from_ms for line in run.grants if line.ended == grant_log.IMPORTED), 0)


async def outlived(
    store: Store, kept: Mapping[Status, int], /, *, go_on: Callable[[], None] = lambda: None
) -> AsyncIterator[list[Run]]:
    """Yield the runs that have been settled, and here, for longer than they are kept, page by page; pages may be empty.

    Children of an open parent are left out.
    """
    for status, kept_ms in sorted(kept.items()):
        before_ms = (await store.facts()).now_ms - kept_ms
        # Who settled before then was created before then, so all that is asked for is old.
        where, cursor = Where(status=(status,), created_until_ms=before_ms + 1), None
        while True:
            go_on()
            page = await store.find(where, cursor=cursor, limit=PAGE)
            yield await _unneeded(store, [run for run in page.runs if settled_ms(run) <= before_ms], go_on)
            cursor = page.cursor
            if cursor is None:
                break


async def _unneeded(store: Store, runs: list[Run], go_on: Callable[[], None]) -> list[Run]:
    needing: set[str] = set()
    for parent in sorted({run.parent for run in runs if run.parent}):
        go_on()
        try:
            found = await store.load(parent)
        except (CorruptRecord, StoreTooNew):
            needing.add(parent)  # whoever can read it may go on with it
        else:
            # Settled is settled: it stays so until the children are deleted.
            if found is not None and found.status not in rules.TERMINAL:
                needing.add(parent)
    return [run for run in runs if run.parent not in needing]


async def prune(
    store: Store,
    kept: Mapping[Status, int],
    /,
    *,
    go_on: Callable[[], None] = lambda: None,
    breath_s: float = BREATH_S,
) -> int:
    """Delete the runs that have outlived their time and return how many; `go_on` may raise to end it in between."""
    deleted = 0
    async for runs in outlived(store, kept, go_on=go_on):
        if not runs:
            continue
        changes = [Delete(run=run.id) for run in runs]
        for change, answer in zip(changes, await store.commit_many(changes), strict=True):
            if isinstance(answer, TenureError):
                log.warning("run %s was not deleted: %s", change.run, answer, extra={"run_id": change.run})
            else:
                deleted += answer.verdict is Verdict.LANDED
        await anyio.sleep(breath_s)
    return deleted
