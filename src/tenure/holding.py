"""The held block: how it begins under a lease, how it ends, and what its caller is told."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from tenure.core import rules
from tenure.errors import HistoryLost, LeaseLost, TenureError, said
from tenure.lease import Lease

log = logging.getLogger("tenure.ledger")

HAND_BACK_S = 5.0


class Claimer(Protocol):
    """What a held block needs of who claims."""

    async def wait_for(self, run_id: str, *, wait: float, ttl_ms: int) -> Lease:
        """Return the lease of a run, waiting for another holder."""
        ...

    async def give_back(self, lease: Lease, /, *, reason: str) -> None:
        """Yield a lease under which nothing was started."""
        ...

    def drop(self, lease: Lease) -> None:
        """Stop renewing and writing for a lease."""
        ...


class Holding:
    """The held block of one lease; see `Ledger.hold`."""

    def __init__(self, claims: Claimer, run_id: str, *, wait: float, ttl_ms: int, lease: Lease | None = None) -> None:
        self._claims = claims
        self._run_id = run_id
        self._wait = wait
        self._ttl_ms = ttl_ms
        self._lease = lease
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Lease:
        """Claim, read the journal back, and begin the block."""
        lease = self._lease or await self._claims.wait_for(self._run_id, wait=self._wait, ttl_ms=self._ttl_ms)
        self._lease = lease
        try:
            await lease.read_back()
        except BaseException:
            if lease.over or lease.lost is not None:
                self._claims.drop(lease)
            else:
                with anyio.move_on_after(HAND_BACK_S, shield=True):
                    await self._claims.give_back(lease, reason="its journal could not be read back")
            raise
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        lease.bind(self._tasks.cancel_scope, self._tasks)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the block: hand back what was not ended, and raise the loss of the lease bare."""
        lease, tasks = self._lease, self._tasks
        if lease is None or tasks is None:
            return False
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        raised = await leave(tasks, kind, error, trace)
        try:
            if lease.lost is None and not lease.over and lease.remaining_ms <= 0:
                lease.trust.expire()
            if lease.lost is None and not lease.over:
                await self._hand_back(lease, None if cancelled else raised)
        finally:
            self._claims.drop(lease)
        return _verdict(lease.lost, error, raised, cancelled=cancelled)

    async def _hand_back(self, lease: Lease, error: BaseException | None) -> None:
        failure, after_ms = None, 0
        if isinstance(error, Exception):
            failure, after_ms = f"{type(error).__name__}: {said(error)}", rules.back_off_ms(lease.run.failures)
        with anyio.move_on_after(min(HAND_BACK_S, lease.remaining_ms / 1000), shield=True) as limit:
            try:
                await lease.hand_back(after=after_ms / 1000, failure=failure)
            except TenureError as refused:
                if lease.over:  # a settle, suspend or hand_back whose caller was cancelled has landed meanwhile
                    return
                log.warning("run %s was not handed back: %s", lease.run.id, refused)
                if error is not None:
                    error.add_note(str(refused))
                elif isinstance(refused, LeaseLost | HistoryLost):
                    lease.trust.lose(refused)
        if limit.cancelled_caught:
            log.warning("run %s was not handed back in time; its lease runs out by itself", lease.run.id)


async def leave(
    tasks: TaskGroup,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> BaseException | None:
    """Return what the block raised, bare, after its tasks have ended; None if only its own scope was cancelled."""
    if not isinstance(error, anyio.get_cancelled_exc_class()):
        tasks.cancel_scope.cancel()
    try:
        swallowed = await tasks.__aexit__(kind, error, trace)
    except BaseExceptionGroup as group:
        # anyio wraps whatever leaves a task group. The block's own error goes out as it was raised.
        return error if error is not None and error in group.exceptions and len(group.exceptions) == 1 else group
    except BaseException as raised:  # noqa: BLE001 - what it is decides what the caller sees
        return raised
    return None if swallowed else error


def _verdict(
    lost: BaseException | None, error: BaseException | None, raised: BaseException | None, *, cancelled: bool
) -> bool:
    """Return whether the block's error is swallowed; raise what replaces it."""
    if lost is not None:
        replaced = raised is None or isinstance(raised, LeaseLost | HistoryLost)
        if replaced:
            raise lost from None
        if not cancelled and raised is not None:
            raised.add_note(f"the lease was lost as well: {lost}")
    if raised is None:
        return error is not None
    if raised is error:
        return False
    raise raised
