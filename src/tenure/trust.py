"""How long a holder may believe in its grant: the local deadline, and the loss that ends it.

The store decides who holds; the holder only stops *earlier*. It trusts from the moment a request was sent, for what the
answer says is left, less a margin, on a clock that counts suspend: a slow answer can only shorten the trust.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from tenure.clock import Clock
from tenure.core.run import Answer, Grant, Run, Verdict
from tenure.errors import HistoryLost, LeaseLost, StoreUnavailable, TenureError
from tenure.heartbeat import native_loop, soon
from tenure.refusals import lost
from tenure.store import Refused

log = logging.getLogger("tenure.lease")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChange:
    """What `on_change` is told: the error says what happened, `remaining_ms` what is left of the trust."""

    run_id: str
    error: TenureError
    remaining_ms: int
    token: int
    current_token: int | None = None


def refused_line(grant: Grant, error: LeaseLost | HistoryLost, *, what: str) -> Refused:
    """Return what a refused holder tells: what was refused left no trace in the run, and people want to know."""
    return Refused(
        run=grant.run,
        owner=grant.owner,
        token=grant.token,
        what=what,
        why=error.reason if isinstance(error, LeaseLost) else "history_lost",
        current_token=error.run.token if error.run is not None else 0,
    )


def margin_ms(ttl_ms: int) -> int:
    """Return what is kept back of a lease: 100 ms or a twentieth of it, whichever is more."""
    return max(100, ttl_ms // 20)


class Trust:
    """The current grant of one lease and its local deadline; the heartbeat's thread and the loop both use it."""

    def __init__(
        self, grant: Grant, clock: Clock, *, sent_ns: int, left_ms: int, on_change: Callable[[LeaseChange], None] | None
    ) -> None:
        self.grant = grant
        self.error: LeaseLost | HistoryLost | None = None
        self.ending = False
        self.reattaching = False
        self.over = False
        self.on_lost: Callable[[], None] | None = None
        self.on_history: Callable[[Grant], None] | None = None
        self.on_regrant: Callable[[Grant], None] | None = None
        self._clock = clock
        self._on_change = on_change
        self._loop = native_loop()
        self._told = anyio.Event()
        self._guard = threading.Lock()
        self._sent_ns = sent_ns
        self.deadline_ns = self._deadline(sent_ns, left_ms)

    def _deadline(self, sent_ns: int, left_ms: int) -> int:
        # Never more than one ttl: a store clock set back states more, and `repair` then cuts the lease to one ttl.
        left_ms = min(left_ms, self.grant.ttl_ms)
        return sent_ns + (left_ms - margin_ms(self.grant.ttl_ms)) * 1_000_000

    @property
    def remaining_ms(self) -> int:
        """Return what is left until the local deadline, 0 when the lease is over or lost."""
        if self.over or self.error is not None:
            return 0
        return max(0, (self.deadline_ns - self._clock.boot_ns()) // 1_000_000)

    @property
    def ends_in_ms(self) -> int:
        """Return what is left until the store may let somebody in, as the last answer said: send time + left.

        What still runs after that runs beside a successor, so it counts on, below 0 too, when the lease is lost.
        """
        return (self.deadline_ns - self._clock.boot_ns()) // 1_000_000 + margin_ms(self.grant.ttl_ms)

    @property
    def live(self) -> bool:
        """Return whether an effect may start now."""
        return not self.ending and self.remaining_ms > 0

    def check(self) -> None:
        """Raise LeaseLost or HistoryLost if no effect may start any more."""
        if self.error is None and not self.over and self.deadline_ns - self._clock.boot_ns() < 1_000_000:
            self.expire()
        if self.error is not None:
            raise self.error

    def expire(self) -> None:
        """Give the lease up at its local deadline, before the store would let anybody in."""
        run_id = self.grant.run
        message = f"no answer of the store kept the lease on run {run_id} alive; stop, another worker goes on"
        self.lose(LeaseLost(message, reason="expired", run_id=run_id))

    def believe(self, sent_ns: int, left_ms: int) -> None:
        """Take in what an answer says is left; the answer to the request sent last counts."""
        with self._guard:
            if sent_ns >= self._sent_ns:
                self._sent_ns = sent_ns
                self.deadline_ns = self._deadline(sent_ns, left_ms)

    def regrant(self, grant: Grant, sent_ns: int, left_ms: int) -> None:
        """Go on under a new grant of the same lease."""
        with self._guard:
            self.grant = grant
            self._sent_ns = sent_ns
            self.deadline_ns = self._deadline(sent_ns, left_ms)
        # Who ends the grants of a dead process has to know this one before anything is done under it.
        if self.on_regrant is not None:
            self.on_regrant(grant)

    def answered(self, grant: Grant, answer: Answer, sent_ns: int, /) -> Refused | None:
        """Take in the answer to a renewal: renewed, lost (returns what to tell) or history."""
        # Read before the grant: the loop takes in the new grant first and drops this flag then.
        reattaching = self.reattaching
        if grant is not self.grant or self.over:
            return None
        if answer.ok:
            self.believe(sent_ns, answer.left_ms)
        elif self.ending or reattaching:
            # The renewal met the commit that ends the lease, or the reattachment that gives it another grant; the
            # answer to that tells what became of the lease.
            return None
        elif answer.verdict is Verdict.HISTORY:
            if (on_history := self.on_history) is not None:
                soon(self._loop, lambda: on_history(grant))
        else:
            error = lost(answer, grant.run, token=grant.token)
            if self.lose(error):
                return refused_line(grant, error, what="renew")
        return None

    def unanswered(self, error: Exception, /) -> None:
        """Take in that a renewal had no answer: trust runs on to its deadline and no further."""
        if self.over or self.error is not None:
            return  # nobody waits for a renewal any more
        known = error if isinstance(error, TenureError) else None
        message = (
            f"the store did not answer a renewal of run {self.grant.run} ({type(error).__name__}); it is asked again"
        )
        self._tell(known or StoreUnavailable(message, run_id=self.grant.run))

    def stalled(self, stalled_ms: int, /) -> None:
        """Give the lease up because the loop that runs the handler shows no life."""
        run_id = self.grant.run
        message = f"the event loop of run {run_id} was blocked for {stalled_ms} ms; move blocking work to a thread"
        self.lose(LeaseLost(message, reason="stalled", run_id=run_id))

    def lose(self, error: LeaseLost | HistoryLost) -> bool:
        """End the trust for good; the first reason stays, and whoever brings it is told so, by True."""
        with self._guard:
            if self.error is not None or self.over:
                return False
            self.error = error
        self._tell(error)
        if self.on_lost is not None:
            soon(self._loop, self.on_lost)
        return True

    def tell(self) -> None:
        """Pass on that somebody changed the run from outside."""
        self._told.set()

    async def told(self) -> None:
        """Wait until somebody says that the run was changed from outside: a hint, which may be lost."""
        await self._told.wait()
        self._told = anyio.Event()

    def _tell(self, error: TenureError) -> None:
        run: Run | None = error.run
        log.warning("run %s: %s", self.grant.run, error, extra={"run_id": self.grant.run})
        if self._on_change is not None:
            change = LeaseChange(
                run_id=self.grant.run,
                error=error,
                remaining_ms=self.remaining_ms,
                token=self.grant.token,
                current_token=run.token if run is not None else None,
            )
            soon(self._loop, lambda: self._pass_on(change))

    def _pass_on(self, change: LeaseChange) -> None:
        try:
            if self._on_change is not None:
                self._on_change(change)
        except Exception:
            log.exception("run %s: on_change raised; nothing else is changed by it", change.run_id)
