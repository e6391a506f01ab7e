"""The slots of one worker: what it has in hand, who may come beside whom, and how all of it ends.

A run that took a process with it is on probation: it has the process to itself until it lands a step. While others wait
for an empty process, one that has served its probation is handed back and goes on among others.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import anyio

from tenure.app import App
from tenure.clock import Clock
from tenure.errors import TenureError
from tenure.executing import Execution, Reports
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.store import Beat, Hint

log = logging.getLogger("tenure.worker")

CUT_S = 5.0
PATIENCE_S = 5.0
OVERDUE_LOOK_S = 1.0
BEAT_TTL_MS = 60_000
LEAVE_S = 1.0
EXIT_STATUS = 70
"""Internal software error, as sysexits has it."""


class KeptFromLooking:
    """Tells who looks now and then whether he was kept from it: frozen, or suspended with the machine.

    What should have stopped by then was kept from that too, and has until the next look. Never two looks in a row: what
    holds the interpreter for long keeps others from looking as well.
    """

    def __init__(self, clock: Clock, period_s: float) -> None:
        self._clock = clock
        self._period_ns = int(period_s * 1e9)
        self._looked_ns = clock.boot_ns()
        self._kept = False

    def now(self) -> bool:
        """Return whether this look comes so late, given that the one before did not."""
        before_ns, self._looked_ns = self._looked_ns, self._clock.boot_ns()
        self._kept = not self._kept and self._looked_ns - before_ns > 2 * self._period_ns
        return self._kept


class Slots:
    """Runs in hand. `patient`: another process can be started for a run that needs an empty one, so none is made here.

    `wake` is called when there may be room; `spawn` starts a task of the worker.
    """

    def __init__(
        self,
        app: App,
        ledger: Ledger,
        reports: Reports,
        *,
        kinds: Iterable[str],
        count: int,
        patient: bool,
        deps: Any,
        spawn: Callable[..., None],
        wake: Callable[[], None],
    ) -> None:
        self.executions: set[Execution] = set()
        self.crowded: tuple[Hint, ...] = ()
        self.limit = anyio.CancelScope()
        self.closed = False
        self.emptied_ns = ledger.clock.boot_ns()
        self._app = app
        self._ledger = ledger
        self._reports = reports
        self._kinds = tuple(kinds)
        self._count = count
        self._patient = patient
        self._deps = deps
        self._spawn = spawn
        self._wake = wake
        self._crowded_ns: int | None = None
        self._quiet = anyio.Event()
        self._beat_ns = -(1 << 62)

    @property
    def free(self) -> int:
        """Return how many runs could be claimed now: none beside one that is on probation, or while room is made."""
        if self.closed or any(execution.suspect for execution in self.executions):
            return 0
        if self.executions and self.making_room:
            return 0
        return self._count - len(self.executions)

    @property
    def making_room(self) -> bool:
        """Return whether a run has waited so long for an empty process that this one takes no others."""
        if self._patient or self._crowded_ns is None:
            return False
        return self._ledger.clock.boot_ns() - self._crowded_ns > PATIENCE_S * 1e9

    def start(self, lease: Lease, /) -> None:
        """Execute a run under the lease; what was granted while the slots were closed is given back."""
        self._reports.granted(lease.grant)
        lease.trust.on_regrant = self._reports.granted
        if self.closed:
            self._spawn(self._give_back, lease)
            return
        run = lease.run
        extra = {"run_id": run.id, "kind": run.kind, "attempt": run.attempt, "ordinal": run.ordinal}
        log.info("run %s (%s), attempt %d, grant #%d", run.id, run.kind, run.attempt, run.ordinal, extra=extra)
        execution = Execution(lease=lease, probation=run.crashes > 0)
        self.executions.add(execution)
        self._spawn(self._execute, execution)
        if execution.probation:
            self._spawn(self._wait_for_probation, execution)

    def note_crowded(self, crowded: Sequence[Hint], /) -> None:
        """Take in which runs wait for an empty process."""
        self.crowded = tuple(crowded)
        if not crowded:
            self._crowded_ns = None
            return
        self._crowded_ns = self._crowded_ns or self._ledger.clock.boot_ns()
        for hint in crowded:
            self._reports.crowded(hint.run, hint.token)
        self.pass_on()

    def pass_on(self) -> None:
        """Make the process empty for a run that waits for it.

        One on probation gives it up when it has landed a step, and goes on among others, elsewhere or here. The others
        do once a run has waited long and no process can be started for it.
        """
        for execution in self.executions:
            if execution.suspect:
                execution.drain_after_one()
            elif (execution.probation or self.making_room) and not execution.draining:
                execution.drain()

    async def drain(self) -> None:
        """Let steps in hand end until `limit`, then cut them; what cannot be cut is left to the end of its lease."""
        self.closed = True
        for execution in self.executions:
            execution.drain()
        with self.limit:
            await self._empty()
        for execution in self.executions:
            execution.cut()
        with anyio.move_on_after(CUT_S):
            await self._empty()
        for execution in self.executions:
            # Not handed back: a successor would start beside it.
            log.error("run %s does not stop; its lease runs out\n%s", execution.lease.run.id, execution.stacks)
            self._ledger.claims.drop(execution.lease)

    async def beat(self) -> None:
        """Write this worker's row, now and then: a hint for people."""
        if self._ledger.clock.boot_ns() - self._beat_ns < BEAT_TTL_MS * 1_000_000 // 3:
            return
        self._beat_ns = self._ledger.clock.boot_ns()
        await self._ledger.store.beat(self._row(), ttl_ms=BEAT_TTL_MS)

    async def leave(self) -> None:
        """Let this worker's row end now: who stops in good order is neither live nor silent."""
        if self._beat_ns >= 0:
            with anyio.move_on_after(LEAVE_S), suppress(TenureError):
                await self._ledger.store.beat(self._row(), ttl_ms=0)

    def _row(self) -> Beat:
        return Beat(
            name=self._ledger.owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            kinds=self._kinds,
            version=self._app.version,
            slots=self._count,
            busy=len(self.executions),
            lag_ms=self._ledger.pulse.lag_ms,
        )

    def overdue(self) -> list[Execution]:
        """Return what does not stop although the store may have let somebody else in; from any thread."""
        return [execution for execution in self.executions.copy() if execution.overdue]

    async def watch_overdue(self) -> None:
        """Say where runs stand that do not stop."""
        told: set[Execution] = set()
        kept = KeptFromLooking(self._ledger.clock, OVERDUE_LOOK_S)
        while True:
            await anyio.sleep(OVERDUE_LOOK_S)
            for execution in () if kept.now() else self.overdue():
                if execution not in told:
                    told.add(execution)
                    log.error("run %s does not stop; it stands at\n%s", execution.lease.run.id, execution.stacks)
            told &= self.executions

    def exit_when_overdue(self, ended: threading.Event) -> None:
        """End the process when something does not stop; in a thread, because what does not stop may be the loop."""
        kept = KeptFromLooking(self._ledger.clock, OVERDUE_LOOK_S)
        while not ended.wait(OVERDUE_LOOK_S):
            if not kept.now() and (found := self.overdue()):
                runs = ", ".join(execution.lease.run.id for execution in found)
                log.critical("the process ends, for a run does not stop: %s", runs)
                os._exit(EXIT_STATUS)

    async def _empty(self) -> None:
        while self.executions:
            self._quiet = anyio.Event()
            await self._quiet.wait()

    async def _give_back(self, lease: Lease) -> None:
        # The worker's tasks are cancelled as soon as its slots are empty.
        with anyio.move_on_after(CUT_S, shield=True):
            await self._ledger.claims.give_back(lease, reason="the worker drains")
            with anyio.move_on_after(LEAVE_S), suppress(TenureError):
                await self._ledger.store.wake("due")
        self._reports.ended(lease.grant)

    async def _execute(self, execution: Execution) -> None:
        await execution.run(self._app, self._ledger, self._deps, self._reports)
        self.executions.discard(execution)
        if not self.executions:
            self.emptied_ns = self._ledger.clock.boot_ns()
            self._quiet.set()
        self._wake()

    async def _wait_for_probation(self, execution: Execution) -> None:
        while execution.suspect and execution in self.executions:  # noqa: ASYNC110 - a landed step rings no bell
            await anyio.sleep(0.05)
        self._wake()
