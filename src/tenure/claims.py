"""Claiming: how a grant becomes a lease."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from tenure.committer import Committer
from tenure.core import build
from tenure.core.run import Answer, Claim, Grant, How
from tenure.errors import LeaseHeld, LeaseLost, OutcomeUnknown, RunConflict, TenureError
from tenure.heartbeat import Heart
from tenure.holding import Holding
from tenure.lease import Lease
from tenure.refusals import by_status, error_of, not_found
from tenure.retrying import LOST, UNANSWERED, resend
from tenure.trust import LeaseChange, Trust

if TYPE_CHECKING:
    from tenure.ledger import Ledger

log = logging.getLogger("tenure.ledger")

PATIENCE_S = 1.0
"""How long the other claims of a request wait for one whose answer was lost."""


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
        """Return the lease of one claim, or raise why it was refused; a store that is away is asked for up to a ttl."""
        (found,) = await self._claim([change], patient=True)
        if isinstance(found, Lease):
            return found
        raise found

    async def claim_many(self, changes: Sequence[Claim], /) -> list[Lease | TenureError]:
        """Return a lease or the reason against it for each claim, in one round trip where the store can.

        A lost answer is asked again by id under the same nonce. StoreUnavailable is an answer: nothing was written, and
        who waited for one part of a store that takes no writes would keep the leases on the others from being used.
        When the caller is cancelled, what is granted afterwards is given back.
        """
        return await self._claim(changes, patient=False)

    async def _claim(self, changes: Sequence[Claim], *, patient: bool) -> list[Lease | TenureError]:
        if not changes:
            return []
        if (longest := max(change.ttl_ms for change in changes)) > self._ledger.ttl_ms:
            await self._store.raise_ttl(longest)
        box = _Box()
        self._fly(self._ask, box, list(changes), patient)
        try:
            await box.done.wait()
        except BaseException:
            box.abandoned = True
            if any(isinstance(found, Lease) for found in box.results):
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

    async def _ask(self, box: _Box, changes: list[Claim], patient: bool) -> None:  # noqa: FBT001 - called by `_fly`
        try:
            box.results.extend(await self._answered(changes, patient=patient))
        finally:
            if not box.results:
                # Cut, or failed: who waits may be a task that does not end with the ledger.
                box.results.extend(_closed_meanwhile(change) for change in changes)
            box.done.set()
        if box.abandoned:
            await self._give_back(box.results)

    async def _answered(self, changes: list[Claim], *, patient: bool) -> list[Lease | TenureError]:
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
            found[index] = await self._asked_again(change, change.ttl_ms / 1000 if patient else PATIENCE_S)

        async with anyio.create_task_group() as tasks:
            for index, (change, answer) in enumerate(zip(changes, answers, strict=True)):
                # What was granted is renewed from here on, however long the others take.
                if isinstance(answer, UNANSWERED if patient else LOST):
                    tasks.start_soon(again, index, change)
                else:
                    found[index] = self._lease(change, answer, sent_ns)
        return [found[index] for index in range(len(changes))]

    async def _asked_again(self, change: Claim, within_s: float) -> Lease | TenureError:
        try:
            answer, sent_ns = await resend(self._clock, self._again, change, within_s=within_s)
        except UNANSWERED as error:
            if within_s < change.ttl_ms / 1000:
                self._fly(self._find_and_give_back, change)
            return error if isinstance(error, TenureError) else _unanswered(change, error)
        except TenureError as error:
            return error
        return self._lease(change, answer, sent_ns)

    async def _find_and_give_back(self, change: Claim) -> None:
        """Go on asking what became of a claim that nobody waits for any more."""
        await self._give_back([await self._asked_again(change, change.ttl_ms / 1000)])

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
        # Who had nothing to watch has slept long, which is no stall: this loop runs.
        self._pulse.seen_ns = self._clock.boot_ns()
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
            run = await resend(self._clock, self._store.load, run_id, within_s=ttl_ms / 1000)
            if run is None:
                raise not_found(run_id)
            try:
                return await self.claim(self.change(run_id, ttl_ms=ttl_ms, token=run.token))
            except RunConflict:
                continue  # somebody held or released it since it was looked at
            except LeaseHeld as held:
                left_s = (until_ns - self._clock.boot_ns()) / 1e9
                if left_s <= 0:
                    raise
                pause = min(left_s, 0.25, max(0.02, held.remaining_ms / 1000))
                await self._store.woken(["run:" + run_id], timeout=pause)


def _unanswered(change: Claim, error: BaseException) -> TenureError:
    message = (
        f"the claim of run {change.run} had no answer ({type(error).__name__}); look at the run, then claim it again"
    )
    return OutcomeUnknown(message, run_id=change.run)


def _closed_meanwhile(change: Claim) -> TenureError:
    message = (
        f"the ledger was closed while run {change.run} was being claimed; a grant that is on its way runs out by itself"
    )
    return OutcomeUnknown(message, run_id=change.run)
