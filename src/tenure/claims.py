"""Claiming: how a grant becomes a lease, and the watch over local deadlines."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from tenure.committer import Committer
from tenure.core import build, rules
from tenure.core.run import Answer, Claim, Grant, How, Status
from tenure.errors import LeaseHeld, LeaseLost, StoreUnavailable, TenureError
from tenure.heartbeat import Heart
from tenure.holding import Holding
from tenure.lease import Lease
from tenure.refusals import by_status, error_of
from tenure.retrying import UNANSWERED, resend
from tenure.trust import LeaseChange, Trust

if TYPE_CHECKING:
    from tenure.ledger import Ledger

log = logging.getLogger("tenure.ledger")


@dataclass(slots=True)
class _Box:
    """What one request for claims came to; `abandoned` when nobody waits for it any more."""

    results: list[Lease | TenureError] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)
    abandoned: bool = False


class Claims:
    """Takes leases for one ledger. A claim whose caller is cancelled is given back by itself."""

    def __init__(
        self,
        ledger: Ledger,
        tasks: TaskGroup,
        heart: Heart,
        on_change: Callable[[LeaseChange], None] | None,
    ) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._clock = ledger.clock
        self._pulse = ledger.pulse
        self._tasks = tasks
        self._heart = heart
        self._on_change = on_change
        self._flying = 0
        self._quiet = anyio.Event()

    def change(
        self,
        run_id: str,
        /,
        *,
        ttl_ms: int | None = None,
        token: int | None = None,
        kinds: tuple[str, ...] | None = None,
        code_versions: tuple[str, ...] | None = None,
        alone: bool = True,
        blame: bool | None = None,
        max_crashes: int = 3,
    ) -> Claim:
        """Return the claim of a run under a nonce of its own; `core.run.Claim` says what each argument means."""
        return Claim(
            run=run_id,
            nonce=secrets.token_hex(16),
            owner=self._ledger.owner,
            ttl_ms=ttl_ms or self._ledger.ttl_ms,
            token=token,
            kinds=kinds,
            code_versions=code_versions,
            code_version=self._ledger.code_version,
            alone=alone,
            blame=self._ledger.blame if blame is None else blame,
            max_crashes=max_crashes,
        )

    async def claim(self, change: Claim, /) -> Lease:
        """Return the lease of one claim, or raise why it was refused."""
        (found,) = await self.claim_many([change])
        if isinstance(found, Lease):
            return found
        raise found

    async def claim_many(self, changes: Sequence[Claim], /) -> list[Lease | TenureError]:
        """Return a lease or the reason against it for each claim, in one round trip where the store can.

        A lost answer is asked again by id under the same nonce. When the caller is cancelled, what is granted
        afterwards is given back.
        """
        if not changes:
            return []
        if (longest := max(change.ttl_ms for change in changes)) > self._ledger.ttl_ms:
            await self._store.raise_ttl(longest)
        box = _Box()
        self._fly(self._ask, box, list(changes))
        try:
            await box.done.wait()
        except BaseException:
            box.abandoned = True
            if box.done.is_set():
                self._fly(self._give_back, box.results)
            raise
        return box.results

    def _fly(self, call: Callable[..., Awaitable[None]], *args: Any) -> None:
        async def counted() -> None:
            try:
                await call(*args)
            finally:
                self._flying -= 1
                self._quiet.set()

        self._flying += 1
        self._tasks.start_soon(counted)

    async def quiet(self) -> None:
        """Wait until no claim is on its way, and what nobody waited for any more has been given back."""
        while self._flying:
            self._quiet = anyio.Event()
            await self._quiet.wait()

    async def _ask(self, box: _Box, changes: list[Claim]) -> None:
        sent_ns = self._clock.boot_ns()
        answers: list[Answer | TenureError]
        try:
            answers = (
                await self._store.commit_many(changes) if len(changes) > 1 else [await self._store.commit(changes[0])]
            )
            answered = any(not isinstance(answer, UNANSWERED) for answer in answers)
            self._pulse.contact(self._clock.boot_ns(), ok=answered, ttl_ms=self._ledger.ttl_ms)
        except UNANSWERED as error:
            self._pulse.contact(self._clock.boot_ns(), ok=False, ttl_ms=self._ledger.ttl_ms)
            answers = [error if isinstance(error, TenureError) else _unanswered(change, error) for change in changes]
        except TenureError as error:
            answers = [error for _ in changes]
        found: dict[int, Lease | TenureError] = {}

        async def again(index: int, change: Claim) -> None:
            found[index] = await self._asked_again(change)

        async with anyio.create_task_group() as tasks:
            for index, (change, answer) in enumerate(zip(changes, answers, strict=True)):
                # What was granted is renewed from here on, however long the others take.
                if isinstance(answer, UNANSWERED):
                    tasks.start_soon(again, index, change)
                else:
                    found[index] = self._lease(change, answer, sent_ns)
        box.results.extend(found[index] for index in range(len(changes)))
        box.done.set()
        if box.abandoned:
            await self._give_back(box.results)

    async def _asked_again(self, change: Claim) -> Lease | TenureError:
        try:
            answer, sent_ns = await resend(self._clock, self._again, change, within_s=change.ttl_ms / 1000)
        except TenureError as error:
            return error
        except TimeoutError as error:
            return _unanswered(change, error)
        return self._lease(change, answer, sent_ns)

    def _lease(self, change: Claim, answer: Answer | TenureError, sent_ns: int) -> Lease | TenureError:
        if isinstance(answer, TenureError):
            return answer
        if not answer.ok or answer.run is None:
            return error_of(answer, change.run)
        if answer.run.nonce != change.nonce:
            return by_status(answer.run, change.run)
        grant = Grant(
            run=change.run,
            token=answer.run.token,
            nonce=change.nonce,
            epoch=answer.run.epoch,
            ttl_ms=change.ttl_ms,
            owner=change.owner,
        )
        trust = Trust(grant, self._clock, sent_ns=sent_ns, left_ms=answer.left_ms, on_change=self._on_change)
        if trust.remaining_ms <= 0:
            message = f"the grant on run {change.run} took longer to arrive than it lasts; claim it again"
            return LeaseLost(message, reason="expired", run=answer.run)
        committer = Committer(
            self._store, trust, self._pulse, self._clock, run=answer.run, code_version=self._ledger.code_version
        )
        self._tasks.start_soon(committer.work)
        lease = Lease(self._store, trust, committer, redaction=self._ledger.redaction)
        self._pulse.enter(trust)
        return lease

    async def _again(self, change: Claim) -> tuple[Answer, int]:
        sent_ns = self._clock.boot_ns()
        return await self._store.commit(change), sent_ns

    async def _give_back(self, results: Sequence[Lease | TenureError]) -> None:
        for found in results:
            if isinstance(found, Lease):
                await self.give_back(found, reason="its claimer was cancelled")
        await self._store.wake("due")  # else another worker finds them at the leader's next look

    async def give_back(self, lease: Lease, /, *, reason: str) -> None:
        """Yield a lease under which nothing was started; best effort, it runs out otherwise."""
        self.drop(lease)
        grant = lease.grant
        end = build.end(run=grant.run, how=How.YIELD, token=grant.token, nonce=grant.nonce, reason=reason)
        try:
            await resend(self._clock, self._store.commit, end, within_s=grant.ttl_ms / 1000)
        except (TenureError, TimeoutError) as error:
            log.warning("run %s could not be given back: %s", grant.run, error)

    def drop(self, lease: Lease) -> None:
        """Stop renewing and writing for a lease."""
        self._pulse.leave(lease.trust)
        lease.trust.over = True
        lease.close()

    def under(self, lease: Lease, /) -> Holding:
        """Return the held block of a lease that was claimed."""
        return Holding(self, lease.run.id, wait=0, ttl_ms=lease.grant.ttl_ms, lease=lease)

    async def wait_for(self, run_id: str, *, wait: float, ttl_ms: int) -> Lease:
        """Return the lease of a run, waiting up to `wait` seconds for another holder to leave."""
        until_ns = self._clock.boot_ns() + int(wait * 1e9)
        while True:
            try:
                return await self.claim(self.change(run_id, ttl_ms=ttl_ms))
            except LeaseHeld as held:
                left_s = (until_ns - self._clock.boot_ns()) / 1e9
                if left_s <= 0:
                    raise
                pause = min(left_s, 0.25, max(0.02, held.remaining_ms / 1000))
                await self._store.woken(["run:" + run_id], timeout=pause)

    async def watch(self) -> None:
        """Show the heartbeat that this loop lives, and end each lease at its local deadline."""
        while True:
            before_ns = self._clock.boot_ns()
            self._pulse.seen_ns = before_ns
            for trust in self._pulse.held():
                if isinstance(trust, Trust) and trust.remaining_ms <= 0 and not trust.ending:
                    trust.expire()
            period_s = min(0.25, self._shortest_ms() / 30_000)
            await self._clock.sleep(period_s)
            self._tell_late((self._clock.boot_ns() - before_ns) / 1e9 - period_s)

    def _shortest_ms(self) -> int:
        return min((trust.grant.ttl_ms for trust in self._pulse.held()), default=self._ledger.ttl_ms)

    def _tell_late(self, late_s: float) -> None:
        held = self._pulse.held()
        if not held or late_s * 1000 <= self._shortest_ms() / 3:
            return
        self._pulse.late_renewals += 1
        log.warning(
            "the event loop was blocked for %.1f s; runs %s; move blocking work to a thread; it stood at\n%s",
            late_s,
            ", ".join(trust.grant.run for trust in held),
            self._pulse.stack,
        )

    async def listen(self) -> None:
        """Look at the held runs when somebody says that one was changed from outside: its holder learns it now."""
        posted: dict[str, tuple[int, int | None]] = {}
        while True:
            held = [t for t in self._pulse.held() if isinstance(t, Trust) and not t.grant.run.startswith("_")]
            posted = {t.grant.run: posted.get(t.grant.run, (0, None)) for t in held}
            topics = ["run:" + trust.grant.run for trust in held]
            if not topics:
                await anyio.sleep(0.1)
                continue
            try:
                if not await self._store.woken(topics, timeout=0.5):
                    continue
                for trust in held:
                    # A wake may be for nothing (on SQLite any write to the file is one), and a renewal is a write that
                    # wakes others. So it is looked first, and renewed only to be told of what ended the grant.
                    run = await self._store.load(trust.grant.run)
                    if run is None or not rules.holds(run, trust.grant) or run.status is not Status.RUNNING:
                        self._heart.hurry()
                    elif posted[run.id] != (said := (run.inbox_seq, run.cancel_by_ms)):
                        posted[run.id] = said
                        trust.tell()
            except TenureError:
                await anyio.sleep(0.5)


def _unanswered(change: Claim, error: BaseException) -> TenureError:
    message = (
        f"the claim of run {change.run} had no answer ({type(error).__name__}); look at the run, then claim it again"
    )
    return StoreUnavailable(message, run_id=change.run)
