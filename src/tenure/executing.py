"""One run in the hands of a worker: from the grant to the moment when nothing of it runs here any more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tenure.active import ActiveRun
from tenure.app import App
from tenure.core.run import Grant
from tenure.errors import HistoryLost, LeaseLost, TenureError
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.perform import perform

log = logging.getLogger("tenure.worker")


class Reports(Protocol):
    """Who is told what happens to the grants of a process; told before anything runs under them."""

    def granted(self, grant: Grant, /) -> None:
        """Take in that this process holds the grant."""
        ...

    def ended(self, grant: Grant, /) -> None:
        """Take in that nothing runs under the grant any more."""
        ...

    def crowded(self, run_id: str, token: int, /) -> None:
        """Take in that a run is due which needs an empty process, and this one is not empty."""
        ...


class NoReports:
    """For a process that nobody supervises."""

    def granted(self, grant: Grant, /) -> None:
        """Tell nobody."""

    def ended(self, grant: Grant, /) -> None:
        """Tell nobody."""

    def crowded(self, run_id: str, token: int, /) -> None:
        """Tell nobody."""


@dataclass(slots=True, eq=False)
class Execution:
    """One run in hand; on `probation` if it was claimed with crashes."""

    lease: Lease
    probation: bool
    calls: list[ActiveRun[Any]] = field(default_factory=list)
    draining: bool = False
    one_more: bool = False
    cutting: bool = False
    began: Callable[[ActiveRun[Any]], None] = lambda _: None

    @property
    def suspect(self) -> bool:
        """Return whether the run took a process with it and has not landed a step since."""
        return self.probation and self.lease.run.crashes > 0

    @property
    def overdue(self) -> bool:
        """Return whether something still runs although the store may have let somebody else in."""
        lease = self.lease
        return (lease.lost is not None or not lease.over) and lease.trust.ends_in_ms < 0

    @property
    def stacks(self) -> str:
        """Return where the run's threads stand."""
        return "\n".join(call.threads.stacks() for call in self.calls)

    def drain(self) -> None:
        """Let the step in hand end, then give the run back."""
        self.draining = True
        for call in self.calls:
            call.drain()

    def drain_after_one(self) -> None:
        """Let one step land, then give the run back."""
        self.one_more = True
        for call in self.calls:
            call.steps.one_more = True

    def cut(self) -> None:
        """Cut the step in hand."""
        self.cutting = True
        for call in self.calls:
            call.steps.scope.cancel()

    async def run(self, app: App, ledger: Ledger, deps: Any, reports: Reports) -> None:
        """Do the run; whatever it comes to ends here, only the end of the process goes on."""
        lease = self.lease
        extra = {"run_id": lease.run.id, "kind": lease.run.kind, "attempt": lease.run.attempt}
        try:
            async with ledger.claims.under(lease) as held:
                await perform(app, ledger, held, deps=deps, began=self._began)
        except (LeaseLost, HistoryLost) as error:
            log.warning("run %s stopped: %s", lease.run.id, error, extra=extra)
        except TenureError as error:
            log.error("run %s: %s", lease.run.id, error, extra=extra)  # noqa: TRY400 - its sentence says it all
        except Exception:
            log.exception("run %s could not be ended", lease.run.id, extra=extra)
        await self._quiet()
        reports.ended(lease.grant)
        log.debug("run %s is %s", lease.run.id, lease.run.status.value, extra=extra)

    def _began(self, call: ActiveRun[Any]) -> None:
        self.calls.append(call)
        call.steps.draining = self.draining
        call.steps.one_more = self.one_more
        if self.cutting:
            call.steps.scope.cancel()
        self.began(call)

    async def _quiet(self) -> None:
        # Who ended the lease itself chose not to wait for its threads. After a loss they run beside a successor: the
        # slot stays taken, and a supervisor ends the process.
        if self.lease.lost is None:
            return
        for call in self.calls:
            if call.threads.busy:
                log.error(
                    "run %s lost its lease and %d thread(s) of it go on; they stand at\n%s",
                    self.lease.run.id,
                    call.threads.busy,
                    call.threads.stacks(),
                    extra={"run_id": self.lease.run.id},
                )
            await call.threads.ended()
