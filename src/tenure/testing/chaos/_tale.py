"""Changes of every kind on a few runs, one after the other; what the store held after each, and what it holds later."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.archive import whole
from tenure.core import build, journal, rules
from tenure.core.run import Change, Claim, Commit, Grant, Run, Verdict
from tenure.core.verify import verify_run
from tenure.errors import CorruptRecord
from tenure.repair import repair_pass
from tenure.store import Store
from tenure.testing.aim import Aim

RUNS = 3
SHORT_MS = 40
Held = dict[str, Any]
"""What a store holds, part by part; two stores that hold the same are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One change that was answered; where the log stood when it was sent and when it was answered; and what is held."""

    what: str
    run: str
    verdict: Verdict
    sent_at: int
    told_at: int
    token: int
    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Tale:
    """A tale that was played to its end."""

    runs: tuple[str, ...]
    blobs: tuple[str, ...]
    before: Held
    told: tuple[Told, ...]
    grants: Mapping[str, Grant]
    """The latest grant of each run that anybody was told of."""

    def states(self, at: int) -> list[tuple[int, Held]]:
        """Return what may be held where the log ends at `at`: what was told by then, and perhaps what was under way."""
        told = sum(one.told_at <= at for one in self.told)
        sent = sum(one.sent_at < at for one in self.told)
        held = [self.before, *(one.held for one in self.told)]
        return [(number, held[number]) for number in range(told, max(told, sent) + 1)]

    def highest(self, run: str, at: int) -> int:
        """Return the highest token of a run that anybody had been told of when the log ended at `at`."""
        return max((one.token for one in self.told if one.run == run and one.told_at <= at), default=0)


@dataclass(slots=True, kw_only=True)
class Teller:
    """Plays a tale on a store; `where` says how far the store's log is."""

    store: Store
    seed: int
    where: Callable[[], int]
    look: Callable[[], Awaitable[Held]]
    """Returns what the store holds."""
    aims: list[Aim] = field(init=False)
    drawn: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Draw what the seed decides."""
        self.drawn = random.Random(self.seed)
        self.aims = [
            Aim(random=random.Random(f"{self.seed}.{n}"), run=f"r{n}", kind=f"k{n % 2}", short_ms=SHORT_MS)
            for n in range(RUNS)
        ]

    async def play(self, changes: int) -> Tale:
        """Play so many changes, with what was sent before and what is wrong among them."""
        runs = tuple(aim.run for aim in self.aims)
        before, told = await self.look(), list[Told]()
        grants: dict[str, Grant] = {}
        for _ in range(changes):
            aim = self.drawn.choice(self.aims)
            change = await self._next(aim)
            sent_at = self.where()
            answer = await self.store.commit(change)
            told_at = self.where()
            run = answer.run
            if answer.ok and run is not None and run.nonce:
                grants[run.id] = build.grant_of(run)
            told.append(
                Told(
                    what=named(change), run=aim.run, verdict=answer.verdict, sent_at=sent_at, told_at=told_at,
                    token=run.token if run is not None and answer.ok else 0,
                    held=await self.look(),
                )
            )  # fmt: skip
        return Tale(runs=runs, blobs=self.blobs(), before=before, told=tuple(told), grants=grants)

    def blobs(self) -> tuple[str, ...]:
        """Return the digests of all blobs that were sent so far."""
        return tuple(sorted({name for aim in self.aims for name in aim.blobs}))

    async def _next(self, aim: Aim) -> Change:
        run = await self.store.load(aim.run)
        if run is not None and self.drawn.random() < 0.3:
            try:
                aim.whole = await whole(self.store, aim.run)
            except CorruptRecord:  # a drawn journal may say something else than its record; such a run is never sent
                aim.whole = None
        return aim.change(run, await self.store.tail(aim.run, limit=1000) if run is not None else [])


def named(change: Change) -> str:
    """Return what a change is called in counts: a commit with more than a row is one with a rest."""
    match change:
        case Commit() if change != replace(change, **_PLAIN):
            return "commit with rest"
        case _:
            return type(change).__name__.lower()


_PLAIN: dict[str, Any] = {
    "status": None, "base": False, "failures": None, "consume": (), "inbox_seq": None, "requests": None, "wants": None,
    "tags": None, "due": None, "outcome": None, "blobs": {},
}  # fmt: skip


def unlike(found: Held, tale: Tale, at: int, counts: Counter[str]) -> list[str]:
    """Return what is wrong with what is held where the log ended at `at`: it has to be as after some change."""
    states = tale.states(at)
    for number, state in states:
        if _same(state, found):
            counts["what was under way landed" if number > states[0][0] else "only what was told is there"] += 1
            return []
    number, nearest = states[0]
    older = [n for n, one in enumerate([tale.before, *(one.held for one in tale.told)]) if _same(one, found)]
    if older and max(older) < number:
        return [f"{number - max(older)} changes that were acknowledged are not there"]
    parts = sorted(name for name in found.keys() | nearest.keys() if found.get(name, []) != nearest.get(name, []))
    return [f"half of a change is there: {', '.join(parts[:4])} are neither as before nor as after change {number + 1}"]


def _same(state: Held, found: Held) -> bool:
    # An index that is empty and one that was never there are the same.
    return all(found.get(name, []) == state.get(name, []) for name in found.keys() | state.keys())


async def unsound(store: Store, tale: Tale) -> list[str]:
    """Return what does not verify, and what the repair pass finds to mend."""
    wrong = list[str]()
    for run_id in tale.runs:
        run = await store.load(run_id)
        if run is not None:
            found = {one.code for one in verify_run(run, await store.tail(run_id, limit=1000)).failures} - _DRAWN
            wrong += [f"the journal of {run_id} does not verify: {sorted(found)}"] if found else []
    repaired = await repair_pass(store)
    if repaired.lost or repaired.strays or repaired.corrupt:
        wrong.append(f"there was something to repair: {repaired}")
    return wrong


_DRAWN = frozenset({"RECORD", "FOLD"})
"""What a drawn journal may be wrong in by itself: its steps are counted as the draw has it."""


async def stuck(store: Store, tale: Tale, at: int, counts: Counter[str]) -> list[str]:
    """Return who was let write that may not, and which run cannot be gone on with as it should."""
    wrong = list[str]()
    for run_id in tale.runs:
        former = tale.grants.get(run_id)
        run = await store.load(run_id)
        if former is not None and run is not None:
            answer = await store.commit(_step(former, run))
            counts["former holders refused"] += not answer.ok
            if answer.verdict is Verdict.LANDED:
                wrong.append(f"who held {run_id} before wrote on without showing what it knows")
        if run is None:
            await store.commit(build.create(run=run_id, kind="k0", value="again"))
        elif run.status not in rules.OPEN:
            continue
        nonce = f"{at:032x}"
        answer = await store.commit(Claim(run=run_id, nonce=nonce, owner="next", ttl_ms=60_000, max_crashes=0))
        if not answer.ok or answer.run is None:
            counts["claims that have to wait"] += 1
            continue
        counts["runs gone on with"] += 1
        if answer.run.token <= (highest := tale.highest(run_id, at)):
            wrong.append(f"{run_id} was granted {answer.run.token} after {highest}")
        if not (await store.commit(_step(build.grant_of(answer.run), answer.run))).ok:
            wrong.append(f"who was granted {run_id} anew cannot write")
    return wrong


def _step(grant: Grant, run: Run) -> Commit:
    return build.commit(grant, run.last_seq + 1, run.head, [journal.event(journal.CHECKPOINT, value="next")], step=1)
