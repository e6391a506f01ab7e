"""Looking for work: read what is due, choose, claim. A hint decides nothing; each claim is decided by the store.

A run that took a process with it is started alone: a claim for several runs offers no empty process and is refused for
such a run, which waits until this process is empty, or another is.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from tenure.app import Kind
from tenure.core.run import SCHEMA, Repair
from tenure.errors import (
    LeaseHeld,
    OutcomeUnknown,
    RunClosed,
    RunConflict,
    RunDeclined,
    RunNotFound,
    RunQuarantined,
    RunSuspended,
    StoreUnavailable,
    TenureError,
)
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.store import Hint

log = logging.getLogger("tenure.worker")

T = TypeVar("T")

LOOK_LIMIT = 100
LEFT_FOR_S = 60.0
HELD_FOR_S = 1.0
SCATTER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one look came to: leases to run, runs that need an empty process, and whether to look again at once."""

    leases: tuple[Lease, ...] = ()
    crowded: tuple[Hint, ...] = ()
    again: bool = False


class Looks:
    """The looks of one worker; `code_versions` None takes runs of any."""

    def __init__(
        self, ledger: Ledger, kinds: Mapping[str, Kind[Any, Any]], *, code_versions: tuple[str, ...] | None = None
    ) -> None:
        self._ledger = ledger
        self._kinds = kinds
        self._names = tuple(kinds)
        self._versions = code_versions
        self._left: dict[str, tuple[tuple[int, int], float]] = {}
        self._crowded: dict[str, int] = {}
        self._strays: list[str] = []
        self._scatter = False

    async def look(self, free: int, /, *, empty: bool) -> Found:
        """Claim up to `free` runs that are due; one that needs an empty process, if this one is and stays empty."""
        now_s = self._ledger.clock.boot_ns() / 1e9
        self._left = {run: left for run, left in self._left.items() if left[1] > now_s}
        # Entries that this worker left to others stand in front of the list until somebody takes them.
        limit = LOOK_LIMIT + len(self._left) + len(self._crowded)
        hints = await self._ledger.store.due(self._names, limit=limit)
        hints = [hint for hint in hints if self._left.get(hint.run, (None, 0))[0] != (hint.token, hint.due_ms)]
        # So do those that need an empty process: asked for once, they keep no slot from the runs behind them.
        crowded = [hint for hint in hints if self._crowded.get(hint.run) == hint.token]
        hints = [hint for hint in hints if self._crowded.get(hint.run) != hint.token]
        chosen = choose(hints, free, scatter=self._scatter)
        leases, found, others = await self._claim(chosen, alone=empty and len(chosen) == 1)
        self._scatter = others * 2 > len(chosen)
        crowded += found
        if crowded and empty and not leases:
            one = await self.take_one(crowded)
            leases, crowded, others = list(one.leases), list(one.crowded), others + one.again
        self._crowded = {hint.run: hint.token for hint in crowded}
        again = bool(others) or (len(hints) > len(chosen) and (len(leases) == free or len(leases) < len(chosen)))
        return Found(leases=tuple(leases), crowded=tuple(crowded), again=again)

    async def take_one(self, crowded: Sequence[Hint], /) -> Found:
        """Claim one of the runs that need an empty process, for this one."""
        # Any of them: workers that all reached for the first would find it taken, and go down the same list together.
        one = random.choice(crowded)  # noqa: S311 - not a secret
        leases, _, others = await self._claim([one], alone=True)
        rest = tuple(hint for hint in crowded if hint is not one)
        # Where somebody was quicker, the list is old: it is read again, and not tried to its end.
        return Found(leases=tuple(leases), crowded=() if others else rest, again=bool(others))

    async def take(self, run_id: str, token: int, /) -> Lease | None:
        """Claim one run for an empty process; None if somebody else was there."""
        run = await self._ledger.store.load(run_id)
        if run is None or run.kind not in self._kinds:
            return None
        hint = Hint(run=run_id, kind=run.kind, due_ms=0, token=token)
        leases, _, _ = await self._claim([hint], alone=True)
        return leases[0] if leases else None

    async def _claim(self, hints: Sequence[Hint], *, alone: bool) -> tuple[list[Lease], list[Hint], int]:
        claims = self._ledger.claims
        changes = [
            claims.change(
                hint.run,
                token=hint.token,
                kinds=self._names,
                code_versions=self._versions,
                alone=alone,
                max_crashes=self._kinds[hint.kind].max_crashes,
            )
            for hint in hints
        ]
        leases: list[Lease] = []
        crowded: list[Hint] = []
        others, unanswered = 0, list[TenureError]()
        for hint, found in zip(hints, await claims.claim_many(changes), strict=True):
            if isinstance(found, Lease):
                leases.append(found)
            elif isinstance(found, RunDeclined) and not alone and self._fits(found):
                crowded.append(hint)
            elif isinstance(found, StoreUnavailable | OutcomeUnknown):
                unanswered.append(found)
            else:
                others += self._refused(hint, found)
        if unanswered and len(unanswered) == len(hints):
            raise unanswered[0]
        return leases, crowded, others

    def _fits(self, declined: RunDeclined) -> bool:
        run = declined.run
        return (
            run is not None
            and run.schema <= SCHEMA
            and run.kind in self._kinds
            and (self._versions is None or run.code_version in self._versions)
        )

    async def tidy(self) -> None:
        """Put right the index entries that named runs which are not due; not while leases wait to be started."""
        strays, self._strays = self._strays, []
        if strays:
            await self._ledger.store.commit_many([Repair(run=run_id) for run_id in strays])

    def _refused(self, hint: Hint, error: TenureError) -> bool:
        """Take in a refusal; return whether somebody else was quicker."""
        extra = {"run_id": hint.run, "kind": hint.kind}
        match error:
            case LeaseHeld() | RunConflict():
                self._leave(hint, HELD_FOR_S)
                return True
            case RunQuarantined():
                log.error("run %s was set aside: %s", hint.run, error, extra=extra)
                self._leave(hint, HELD_FOR_S)
            case RunNotFound() | RunClosed() | RunSuspended():
                # The index names a run that is not due: either it just ended, or the entry is a stray one.
                self._strays.append(hint.run)
                self._leave(hint, HELD_FOR_S)
            case _:
                log.warning("run %s is left to others: %s", hint.run, error, extra=extra)
                self._leave(hint, LEFT_FOR_S)
        return False

    def _leave(self, hint: Hint, seconds: float) -> None:
        # By its due time, too: an entry that was early because its holder renews is another one when it was handed
        # back, under the same token.
        self._left[hint.run] = ((hint.token, hint.due_ms), self._ledger.clock.boot_ns() / 1e9 + seconds)


async def together(*asks: Callable[[], Awaitable[T]]) -> list[T]:
    """Return the results of requests that leave in one turn of the loop: one round trip where the store can."""
    if len(asks) == 1:
        return [await asks[0]()]
    found: dict[int, T] = {}
    errors: list[TenureError] = []

    async def ask(number: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            found[number] = await call()
        except TenureError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(asks):
            tasks.start_soon(ask, number, call)
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(asks))]


def choose(hints: Sequence[Hint], free: int, /, *, scatter: bool = False) -> list[Hint]:
    """Return up to `free` hints by priority, the higher first, then by due time.

    `scatter` picks at random among the first of each priority: workers that woke together and all reached for the same
    runs would go on doing so.
    """
    left = sorted(hints, key=lambda hint: (-hint.priority, hint.due_ms))
    chosen: list[Hint] = []
    while left and len(chosen) < free:
        same = [hint for hint in left if hint.priority == left[0].priority]
        wanted = free - len(chosen)
        chosen += random.sample(same[: wanted * SCATTER], min(wanted, len(same))) if scatter else same[:wanted]
        left = left[len(same) :]
    return chosen
