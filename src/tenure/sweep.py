"""The sweep, for people with their own loop: put the index right, claim each run that is due, and only then recover.

A worker does the same all the time; who runs one needs no sweeper.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from tenure.app import App
from tenure.errors import Code, HistoryLost, LeaseLost, NotAllowed, RunDeclined, TenureError
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.perform import HANDLER_FAILED, perform
from tenure.repair import repair_pass
from tenure.store import Hint

log = logging.getLogger("tenure.sweep")

OK = "OK"
DUE = "DUE"
PAGE = 1000

Recover = Callable[[Lease], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEntry:
    """What became of one run: OK (recovered), DUE (only listed), or the code of what stood against it."""

    run: str
    code: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """One sweep: `complete` unless the store failed meanwhile; `next_due_ms` is when the next run is due, if any."""

    entries: tuple[SweepEntry, ...]
    complete: bool
    next_due_ms: int | None = None

    @property
    def recovered(self) -> int:
        """Return how many runs were recovered."""
        return sum(entry.code == OK for entry in self.entries)


@dataclass(slots=True)
class _Sweep:
    """A sweep in progress; `tried` are the runs that it has looked at, each once."""

    kinds: tuple[str, ...] = ()
    entries: list[SweepEntry] = field(default_factory=list)
    complete: bool = True
    tried: set[str] = field(default_factory=set)

    def add(self, run_id: str, error: Exception | None, code: str = OK) -> None:
        message = "" if error is None else getattr(error, "message", type(error).__name__)
        if error is not None:
            code = error.code.value if isinstance(error, TenureError) else HANDLER_FAILED
        if code in (Code.STORE_UNAVAILABLE, Code.OUTCOME_UNKNOWN):
            self.complete = False
        self.entries.append(SweepEntry(run=run_id, code=code, message=message))

    def broke_off(self, error: TenureError) -> None:
        log.warning("the sweep is not complete: %s", error)
        self.complete = False


class Sweeper:
    """Recovers what is due: `recover` is an app, or what to do with a lease; without it, a sweeper only lists.

    Up to `concurrency` runs at a time; one whose last holder died is recovered alone, so that if it kills this process,
    it takes no other with it. Without `kinds`: those of the app, or all.
    """

    def __init__(
        self,
        ledger: Ledger,
        recover: App | Recover | None = None,
        /,
        *,
        kinds: Iterable[str] | None = None,
        concurrency: int = 4,
        max_crashes: int = 3,
        deps: Any = None,
    ) -> None:
        if concurrency < 1:
            message = f"a sweeper recovers at least one run at a time, not {concurrency}"
            raise NotAllowed(message)
        self._ledger = ledger
        self._app = recover if isinstance(recover, App) else None
        self._recover: Recover | None = self._perform if isinstance(recover, App) else recover
        self._kinds = tuple(kinds) if kinds is not None else None
        if isinstance(recover, App):
            self._kinds = tuple(recover.served(self._kinds))
        self._concurrency = concurrency
        self._max_crashes = max_crashes
        self._deps = deps

    async def sweep(self) -> SweepReport:
        """Put the index right and list what is due, without claiming anything; never raises for the store's sake."""
        sweep = _Sweep()
        try:
            await self._begin(sweep)
            while fresh := await self._fresh(sweep):
                for hint in fresh:
                    sweep.tried.add(hint.run)
                    sweep.add(hint.run, None, DUE)
        except TenureError as error:
            sweep.broke_off(error)
        return await self._report(sweep)

    async def recover_all(self, *, limit: int | None = None) -> SweepReport:
        """Claim and recover every run that is due, `limit` at most; what stands against one is told in its entry."""
        if self._recover is None:
            message = "this sweeper was not told how to recover a run; give it an app or a function of a lease"
            raise NotAllowed(message)
        sweep = _Sweep()
        try:
            await self._begin(sweep)
            while fresh := await self._fresh(sweep, limit):
                # In another order than other sweepers that began with this one.
                random.shuffle(fresh)
                for at in range(0, len(fresh), self._concurrency):
                    if await self._take(sweep, fresh[at : at + self._concurrency]):
                        break  # others are at work on this list: what they took is no longer on a new one
        except TenureError as error:
            sweep.broke_off(error)
        return await self._report(sweep)

    async def _begin(self, sweep: _Sweep) -> None:
        sweep.kinds = self._kinds if self._kinds is not None else tuple(await self._ledger.store.kinds())
        await repair_pass(self._ledger.store)
        if self._kinds is None:
            sweep.kinds = tuple(await self._ledger.store.kinds())

    async def _fresh(self, sweep: _Sweep, limit: int | None = None) -> list[Hint]:
        # What could not be taken stands in front of the list, so the list is read that much further.
        hints = await self._ledger.store.due(sweep.kinds, limit=PAGE + len(sweep.tried))
        # By id and not by token: one that was handed back under a new token is for the next sweep, or this never ends.
        fresh = [hint for hint in hints if hint.run not in sweep.tried]
        if limit is not None:
            fresh = fresh[: max(0, limit - len(sweep.entries))]
        return fresh

    async def _take(self, sweep: _Sweep, hints: Sequence[Hint]) -> bool:
        """Claim and recover; return whether others were quicker."""
        sweep.tried.update(hint.run for hint in hints)
        before = len(sweep.entries)
        crowded: list[Hint] = []
        async with anyio.create_task_group() as tasks:
            for hint, found in zip(hints, await self._claim(hints, alone=len(hints) == 1), strict=True):
                if isinstance(found, Lease):
                    tasks.start_soon(self._under, sweep, found)
                elif isinstance(found, RunDeclined):
                    crowded.append(hint)
                else:
                    sweep.add(hint.run, found)
        for hint in crowded:
            (found,) = await self._claim([hint], alone=True)
            if isinstance(found, Lease):
                await self._under(sweep, found)
            else:
                sweep.add(hint.run, found)
        others = sum(entry.code in (Code.LEASE_HELD, Code.RUN_CONFLICT) for entry in sweep.entries[before:])
        return others * 2 >= len(hints)

    async def _claim(self, hints: Sequence[Hint], *, alone: bool) -> list[Lease | TenureError]:
        claims = self._ledger.claims
        return await claims.claim_many(
            [
                claims.change(
                    hint.run,
                    token=hint.token,
                    kinds=self._kinds,
                    alone=alone,
                    max_crashes=self._limit_of(hint.kind),
                )
                for hint in hints
            ]
        )

    def _limit_of(self, kind: str) -> int:
        return self._app.kinds[kind].max_crashes if self._app is not None else self._max_crashes

    async def _under(self, sweep: _Sweep, lease: Lease) -> None:
        try:
            async with self._ledger.claims.under(lease) as held:
                if self._recover is not None:
                    await self._recover(held)
        except (LeaseLost, HistoryLost) as error:
            log.warning("run %s stopped: %s", lease.run.id, error, extra={"run_id": lease.run.id})
            sweep.add(lease.run.id, error)
        except Exception as error:
            log.exception("run %s was not recovered", lease.run.id, extra={"run_id": lease.run.id})
            sweep.add(lease.run.id, error)
        else:
            sweep.add(lease.run.id, None)

    async def _perform(self, lease: Lease) -> None:
        if self._app is not None:
            await perform(self._app, self._ledger, lease, deps=self._deps)

    async def _report(self, sweep: _Sweep) -> SweepReport:
        next_due_ms = None
        try:
            next_due_ms = await self._ledger.store.next_due_ms(sweep.kinds)
        except TenureError as error:
            sweep.broke_off(error)
        return SweepReport(entries=tuple(sweep.entries), complete=sweep.complete, next_due_ms=next_due_ms)
