"""What is in a store, for the doctor: runs by status, what is stuck, who works and who leads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.cli.output import progress
from tenure.store import Finding, Grade

if TYPE_CHECKING:
    from tenure.core.run import Facts, Run, Status
    from tenure.store import Beat, Store

COUNT_LIMIT = 100_000
PAGE = 500
SILENT_MS = 40_000
"""A live worker writes its row every 20 s, with its next look: 35 s at most."""


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, level=Grade.OK, text=text)


def _warning(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, level=Grade.WARNING, text=text, fix=fix)


@dataclass(slots=True)
class Census:
    """Counts over the runs of a store; memory grows with its kinds and workers, not with it."""

    status: Counter[Status] = field(default_factory=Counter)
    waiting: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Open runs that nobody holds, by kind: what needs a worker."""
    held: Counter[str] = field(default_factory=Counter)
    """Runs in hand, by owner."""
    ran_out: int = 0
    quarantined: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    count: int = 0
    whole: bool = True

    def add(self, run: Run, now_ms: int) -> None:
        """Count one more run."""
        from tenure.core.rules import OPEN
        from tenure.core.run import Status
        from tenure.views.values import left_ms

        self.count += 1
        self.status[run.status] += 1
        if left_ms(run, now_ms):
            self.held[run.owner] += 1
        elif run.status in OPEN:
            self.kinds[run.kind] += 1
        if run.status is Status.SUSPENDED and run.due_ms is None:
            self.waiting += 1
        if run.status is Status.RUNNING and run.lease_until_ms <= now_ms:
            self.ran_out += 1
        if run.status is Status.QUARANTINED and len(self.quarantined) < 3:
            self.quarantined.append(run.id)


async def of_runs(store: Store, /) -> list[Finding]:
    """Return what is to be known about the runs and the workers."""
    census = await _count(store)
    beats = await store.beats()
    leader = await store.load("_leader")
    facts = await store.facts()
    return [
        _of_counts(census),
        *_of_damage(census),
        *_of_kinds(census, served(beats, facts), await store.kinds()),
        *_of_workers(census, beats, facts),
        *_of_leader(leader, beats, facts),
    ]


async def _count(store: Store) -> Census:
    from tenure.store import ALL

    census = Census()
    now_ms = (await store.facts()).now_ms
    cursor: str | None = None
    with progress("counting runs") as tell:
        while True:
            page = await store.find(ALL, cursor=cursor, limit=PAGE)
            for run in page.runs:
                census.add(run, now_ms)
            census.corrupt += page.corrupt
            tell(f"counting runs: {census.count:,}")
            cursor = page.cursor
            if cursor is None:
                return census
            if census.count >= COUNT_LIMIT:
                census.whole = False
                return census


def _of_counts(census: Census) -> Finding:
    from tenure.core.run import Status
    from tenure.core.text import count

    shown = [f"{census.status[status]:,} {status.value}" for status in Status if census.status[status]]
    if census.waiting:
        shown.append(f"{census.waiting:,} of the suspended wait for somebody, without a time")
    least = "" if census.whole else "the newest "
    return _ok("runs", f"{least}{count(census.count, 'run')}{': ' + ', '.join(shown) if shown else ''}")


def _of_damage(census: Census) -> list[Finding]:
    from tenure.core.run import Status
    from tenure.core.text import count

    found = []
    if census.corrupt:
        text = f"{count(len(census.corrupt), 'record')} cannot be read, first {census.corrupt[0]}"
        fix = f"tenure show {census.corrupt[0]} --raw"
        found.append(Finding(name="damage", level=Grade.PROBLEM, text=text, fix=fix))
    if number := census.status[Status.QUARANTINED]:
        first = census.quarantined[0]
        text = f"{count(number, 'run')} set aside, last {first}"
        found.append(_warning("quarantined", text, f"tenure show {first}, then tenure release {first}"))
    return found


def _of_kinds(census: Census, served: frozenset[str], indexed: list[str]) -> list[Finding]:
    from tenure.core.text import count

    return [
        _warning(
            "kind",
            f"no live worker serves {kind} ({count(census.kinds[kind], 'open run')})",
            f"start a worker whose app has it (tenure worker MODULE:APP), or the program that holds its runs in a loop "
            f"of its own, or cancel (tenure cancel) what tenure runs --kind {kind} lists",
        )
        for kind in sorted({*census.kinds, *(() if census.whole else indexed)} - served)
    ]


def live(beats: list[Beat], facts: Facts, /) -> list[Beat]:
    """Return the rows of workers that are not silent; one that died leaves its row behind until that expires."""
    return [beat for beat in beats if facts.now_ms - beat.at_ms <= SILENT_MS]


def served(beats: list[Beat], facts: Facts, /) -> frozenset[str]:
    """Return the kinds of the workers that are not silent."""
    return frozenset(kind for beat in live(beats, facts) for kind in beat.kinds)


def _of_workers(census: Census, rows: list[Beat], facts: Facts) -> list[Finding]:
    from tenure.core.text import count
    from tenure.views.figures import duration

    beats = live(rows, facts)
    # What a row says may be 20 s old; the records say it as it is.
    busy = {beat.name: census.held[beat.name] if census.whole else beat.busy for beat in beats[:20]}
    shown = ", ".join(
        f"{beat.name} ({busy[beat.name]}/{beat.slots} slots, heard {duration(facts.now_ms - beat.at_ms)} ago, "
        f"heartbeat lag {duration(beat.lag_ms)})"
        for beat in beats[:20]
    )
    more = f" and {len(beats) - 20:,} more" if len(beats) > 20 else ""
    found = [_ok("workers", f"{count(len(beats), 'live worker')}{': ' + shown if shown else ''}{more}")]
    if silent := [beat for beat in rows if beat not in beats]:
        shown = ", ".join(f"{beat.name} for {duration(facts.now_ms - beat.at_ms)}" for beat in silent[:20])
        text = f"{count(len(silent), 'worker')} silent, dead or frozen: {shown}"
        found.append(_warning("silent", text, "look at the log of that process; its row goes a minute after its last"))
    if census.ran_out and beats:
        text = f"{count(census.ran_out, 'lease')} ran out and nobody has taken over yet"
        found.append(_warning("leases", text, "ask again in a moment; if it stays, look at the logs of the workers"))
    return found


def _of_leader(leader: Run | None, beats: list[Beat], facts: Facts) -> list[Finding]:
    from tenure.views.figures import duration
    from tenure.views.values import left_ms

    if leader is not None and (left := left_ms(leader, facts.now_ms)):
        return [_ok("leader", f"{leader.owner}, {duration(left)} left of its lease")]
    if not beats:
        return []
    return [_warning("leader", "no worker leads at this moment", "ask again in a few seconds; another takes over")]
