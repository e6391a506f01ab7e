"""Sending: the requests of one lease, each asked again with the same bytes while the lease lasts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from tenure.clock import Clock
from tenure.core.run import Answer, Commit, Reattach, Verdict, Why
from tenure.effects import InboxUnread
from tenure.errors import HistoryLost, LeaseLost, NotAllowed, OutcomeUnknown, StoreUnavailable, StoreUnsafe, TenureError
from tenure.pulse import Pulse
from tenure.refusals import error_of, history_lost, lost
from tenure.retrying import UNANSWERED, resend
from tenure.store import SLOW_BYTES_S, Store, has_commit, payload_bytes
from tenure.trust import Trust, refused_line

log = logging.getLogger("tenure.lease")

Way = Callable[[Commit], Awaitable[Answer]]


class _Stopped(Exception):
    """The ledger is being closed, so nothing is asked any more."""


def closed_meanwhile(run_id: str, /) -> OutcomeUnknown:
    """Return the error for who waits for a write while the ledger is closed."""
    message = f"the ledger was closed while a write of run {run_id} was under way; look at the run"
    return OutcomeUnknown(message, run_id=run_id)


def refusal_of(answer: Answer, change: Commit, /) -> Exception:
    """Return the error for a commit that was refused."""
    if answer.why is Why.INBOX:
        message = f"something was posted to run {change.run} since its inbox was read; read it again, then decide"
        return InboxUnread(message, run=answer.run)
    run = answer.run
    if run is None or run.token < change.grant.token or run.last_seq < change.row.seq - 1:
        return history_lost(run, change.run)
    if answer.why in (Why.CORRUPT, Why.STAGED):
        return error_of(answer, change.run)
    return lost(answer, change.run, token=change.grant.token)


class Sending:
    """Asks the store for one lease, and tells its trust what the answers say."""

    def __init__(self, store: Store, trust: Trust, pulse: Pulse, clock: Clock) -> None:
        self._store = store
        self._trust = trust
        self._pulse = pulse
        self._clock = clock
        self._scope = anyio.CancelScope()
        self._new_scope = type(self._scope)  # that of this loop's library, which anyio looks up for each one
        self._until_ns = 0
        self._asked: Commit | Reattach | None = None
        self._stopped = False
        self._way: Way | None = None

    def stop(self) -> None:
        """Ask no more, for the ledger is being closed; who waits for an answer gets OutcomeUnknown."""
        self._stopped = True
        self._scope.cancel()

    def overdue(self, now_ns: int, /) -> None:
        """Wait no longer for an answer that did not come before the local deadline, as that was when it was asked.

        A large payload is given the time that it needs, as long as renewals keep the lease alive meanwhile.
        """
        if now_ns < self._until_ns or self._asked is None:
            return
        carrying_ns = payload_bytes(self._asked) * 1_000_000_000 // SLOW_BYTES_S
        if now_ns >= min(self._until_ns + carrying_ns, self._trust.deadline_ns):
            self._scope.cancel()

    async def answer_to(self, change: Commit | Reattach, through: Way | None = None, /) -> Answer:
        """Return the store's answer; LeaseLost or HistoryLost if there was none before the local deadline.

        `through` is another way to it than the store's own `commit`.
        """
        self._way = through
        try:
            answer, sent_ns = await resend(self._clock, self._attempt, change)
        except _Stopped:
            raise closed_meanwhile(self._trust.grant.run) from None
        except (LeaseLost, HistoryLost):
            if isinstance(change, Commit) and (found := await self._found_after_all(change)) is not None:
                return found
            raise
        if answer.ok and answer.left_ms and isinstance(change, Commit):
            self._trust.believe(sent_ns, answer.left_ms)
        if answer.ok and isinstance(change, Reattach) and answer.run is not None:
            grant = replace(change.grant, token=answer.run.token, nonce=change.nonce, epoch=answer.run.epoch)
            self._trust.regrant(grant, sent_ns, answer.left_ms)
        return answer

    async def _attempt(self, change: Commit | Reattach) -> tuple[Answer, int]:
        if self._stopped:
            raise _Stopped
        # The deadline is judged when the request is sent, not when it was queued.
        self._trust.check()
        if self._trust.over:
            message = f"the lease on run {change.run} was dropped before the store answered; look at the run"
            raise NotAllowed(message, run_id=change.run)
        sent_ns = self._clock.boot_ns()
        ttl_ms = self._trust.grant.ttl_ms
        # Cut by who watches the deadlines of all leases: a timer for each request would cost more than the request.
        self._asked, self._until_ns = change, self._trust.deadline_ns
        self._pulse.flying[id(self._trust)] = self
        try:
            with self._new_scope() as self._scope:
                if self._way is not None and isinstance(change, Commit):
                    answer = await self._way(change)
                else:
                    answer = await self._store.commit(change)
                self._pulse.contact(self._clock.boot_ns(), ok=True, ttl_ms=ttl_ms)
                return answer, sent_ns
            raise self._cut()
        except (*UNANSWERED, StoreUnsafe) as error:
            self._pulse.contact(self._clock.boot_ns(), ok=False, ttl_ms=ttl_ms)
            if isinstance(error, StoreUnsafe):
                # It was safe when it was opened: a failover shows the former primary as a replica for a while. What was
                # sent before may have landed, so it is asked again like any other, as long as the lease lasts.
                raise StoreUnavailable(error.message, run_id=change.run) from error
            raise
        finally:
            self._pulse.flying.pop(id(self._trust), None)

    async def tell(self, error: LeaseLost | HistoryLost, /) -> None:
        """Tell people that a commit was refused, as well as that can be done within a second."""
        with anyio.move_on_after(1.0):
            try:
                await self._store.tell_refused(refused_line(self._trust.grant, error, what="commit"))
            except TenureError:
                log.debug("run %s: the refused write could not be told", self._trust.grant.run)

    def _cut(self) -> Exception:
        return _Stopped() if self._stopped else TimeoutError()

    async def _found_after_all(self, change: Commit) -> Answer | None:
        # What was asked last may have landed. What is not there yet may land until the store's lease ends, no later.
        with anyio.move_on_after(1.0):
            try:
                landed = await has_commit(self._store, change.run, change.row.seq, change.row.digest)
                run = await self._store.load(change.run)
            except TenureError:
                return None
            if landed:
                return Answer(verdict=Verdict.ALREADY, now_us=0, run=run)
        return None
