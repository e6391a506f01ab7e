"""One call of a handler under a lease, and what becomes of the run by how it ended.

Returned: completed. Raised: failed, or handed back while retries are left. Asked to end: cancelled. Cut by a drain, put
off, or cut off from the store: handed back, and no failure of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio

from tenure import cancelling
from tenure.active import ActiveRun
from tenure.app import App, Kind
from tenure.calling import cancelled_from_outside, invoke
from tenure.core import canonical, rules
from tenure.core.budget import held_before_ms
from tenure.core.run import Ask, Due, Item, Status
from tenure.current import CurrentRun, running
from tenure.errors import (
    Draining,
    InvalidContent,
    NotAllowed,
    OutcomeUnknown,
    OutOfBudget,
    RunDeclined,
    RunQuarantined,
    RunSuspended,
    StoreUnavailable,
    TenureError,
    UnknownKind,
    said,
)
from tenure.handle import INPUT_INVALID
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.retry import TryLater, of_the_attempt
from tenure.suspending import suspend

log = logging.getLogger("tenure.worker")

HANDLER_FAILED = "HANDLER_FAILED"
HANDLER_TIMEOUT = "HANDLER_TIMEOUT"
DECLINED_AFTER_S = 5.0
OUTAGE_AFTER_S = 1.0


class _TimedOut(Exception):
    """The call took longer than the kind's timeout."""


class _Waits(Exception):
    """The call was cut because all that it did was wait."""


class _SelfCancelled(Exception):
    """Nobody asked the call to end: it awaited something that was cancelled."""


async def perform(
    app: App,
    ledger: Ledger,
    lease: Lease,
    *,
    deps: Any = None,
    began: Callable[[ActiveRun[Any]], None] = lambda _: None,
) -> None:
    """Call the handler of the run's kind and end the lease by how the call ends; LeaseLost is raised bare.

    `began` is given the call before it starts, for who has to drain it or to wait for its threads.
    """
    kind = app.kinds.get(lease.run.kind)
    if kind is None:
        message = f"this worker has no kind {lease.run.kind!r}"
        raise UnknownKind(message, run=lease.run)
    try:
        value = kind.decode_input(lease.state.input)
    except (InvalidContent, NotAllowed) as error:
        code = INPUT_INVALID if isinstance(error, InvalidContent) else error.code.value
        extra = {"run_id": lease.run.id, "kind": kind.name, "attempt": lease.run.attempt}
        text = "run %s failed with %s: %s"
        log.error(text, lease.run.id, code, error.message, extra=extra)  # noqa: TRY400 - its sentence says it all
        await lease.settle(Status.FAILED, code=code, message=error.message)
        return
    asked = lease.run.cancel_by_ms is not None
    while True:
        active: ActiveRun[Any] = ActiveRun(ledger, lease, input=value, deps=deps, agent=kind.agent)
        active.steps.cancel_asked = asked
        began(active)
        looking = anyio.CancelScope()
        lease.tasks.start_soon(_watch_cancel, ledger, active, looking)
        arrived = await _call(kind, active)
        looking.cancel()
        if not arrived:
            return
        # It came while the call was being cut: called anew at once, and not when the run is claimed again.
        asked = asked or any(item.ask is Ask.CANCEL for item in arrived)


async def _suspended(active: ActiveRun[Any]) -> list[Item]:
    """Give the run up until one of the things comes that its call waits for; return what has come already."""
    # A thread of a step that timed out would run beside the successor.
    await active.threads.ended()
    waits = active.steps.cut_for
    ends = [wait.ends_ms for wait in waits if wait.ends_ms is not None]
    return await suspend(
        active.lease,
        due=Due(ms=min(ends), relative=False) if ends else None,
        requests={name: asked for wait in waits for name, asked in wait.requests.items()},
        signals=tuple(dict.fromkeys(name for wait in waits for name in wait.signals)),
        contents={name: content for wait in waits for name, content in wait.contents.items()},
        events=[event for wait in waits for event in wait.events],
    )


async def _call(kind: Kind[Any, Any], active: ActiveRun[Any]) -> list[Item]:
    """Call the handler once; what has come already of what it waits for is returned, and it is to be called anew."""
    lease = active.lease
    try:
        result = _encoded(kind, lease, await _called(kind, active))
    except _Waits:
        try:
            return await _suspended(active)
        except Exception as error:  # noqa: BLE001 - as if the handler had raised it, where it waits
            await _raised(kind, active, error)
            return []
    except Exception as error:  # noqa: BLE001 - whatever a handler raises ends its own run and no other
        await _raised(kind, active, _bare(error, active.id))
        return []
    if lease.over:
        active.log.debug("the handler ended the lease itself")
    elif active.steps.cancel_told:
        await _settle_cancelled(active)
    else:
        await lease.settle(Status.COMPLETED, result)
    return []


def _encoded(kind: Kind[Any, Any], lease: Lease, value: Any) -> Any:
    try:
        result = kind.encode_result(value)
        canonical.encode(result, limit=canonical.MAX_EVENT_BYTES)  # what cannot be stored fails the run, not the worker
        if lease.redaction is not None:
            kind.decode_result(lease.redacted(result))
    except InvalidContent as error:
        raise error.of(f"the result of kind {kind.name}") from error.__cause__
    return result


async def _called(kind: Kind[Any, Any], active: ActiveRun[Any]) -> Any:
    raised: Exception | None = None
    value: Any = None
    left_s = _left_s(kind, active)
    with active.steps.scope, anyio.move_on_after(left_s) as budget, anyio.move_on_after(kind.timeout) as limit:
        try:
            async with anyio.create_task_group() as tasks:
                active.tasks = tasks
                try:
                    with running(CurrentRun(lease=active.lease, deps=active.deps)):
                        value = await invoke(kind.fn, (active, active.input), active.threads)
                except Exception as error:  # noqa: BLE001 - bare, before the task group wraps it
                    raised = error
                except anyio.get_cancelled_exc_class():
                    if cancelled_from_outside():
                        raise
                    raised = _SelfCancelled("something that the handler awaited was cancelled")
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A task of the handler's failed.
            if not isinstance(group, Exception):
                raise
            raised = group
    if active.steps.cut_for:
        raise _Waits  # whatever the handler made of being cut
    if active.steps.scope.cancelled_caught:
        message = f"run {active.id} was cut by a drain; another worker goes on"
        raise Draining(message, run_id=active.id)
    if budget.cancelled_caught:
        raise _out(active, "wall_time", f"{kind.budget.wall_time if kind.budget else 0} s are used")
    if limit.cancelled_caught:
        message = f"the call took longer than {kind.timeout} s"
        raise _TimedOut(message)
    if raised is not None:
        raise raised
    return value


def _left_s(kind: Kind[Any, Any], active: ActiveRun[Any]) -> float | None:
    """What is left of the kind's wall time, None without a limit; OutOfBudget if nothing is left, or no attempt."""
    budget, lease = kind.budget, active.lease
    if budget is None:
        return None
    if budget.attempts is not None and active.attempt > budget.attempts:
        raise _out(active, "attempts", f"this is attempt {active.attempt} of {budget.attempts}")
    if budget.wall_time is None:
        return None
    left_s = budget.wall_time - held_before_ms(lease.run, lease.state.held_before) / 1000
    if left_s <= 0:
        raise _out(active, "wall_time", f"{budget.wall_time} s are used")
    return left_s


def _out(active: ActiveRun[Any], name: str, what: str) -> OutOfBudget:
    message = f"run {active.id} is out of budget: {name}: {what}; raise the budget, or divide the work"
    return OutOfBudget(message, budget=name, run=active.lease.run)


def _bare(error: Exception, run_id: str) -> Exception:
    """What counts of an error: in a group what says something about the attempt; one failure goes by its own name."""
    if (found := of_the_attempt(error, run_id)) is not None:
        return found
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _raised(kind: Kind[Any, Any], active: ActiveRun[Any], error: Exception) -> None:
    lease = active.lease
    if lease.lost is not None:
        raise lease.lost from None
    if lease.over:
        meant = isinstance(error, (RunSuspended, RunDeclined, RunQuarantined))
        level = logging.INFO if meant else logging.WARNING
        active.log.log(level, "the handler raised %s after it had ended the lease", type(error).__name__)
        return
    match error:
        case Draining():
            await _hand_back(active)
        case TryLater(after=after):
            await _hand_back(active, after=after)
        case _ if active.steps.cancel_told:
            await _settle_cancelled(active)
        case StoreUnavailable() | OutcomeUnknown():
            active.log.warning("handed back: %s", error)
            await _hand_back(active, after=OUTAGE_AFTER_S)
        case RunDeclined():
            active.log.warning("handed back: %s", error)
            await _hand_back(active, after=DECLINED_AFTER_S)
        case _:
            await _failed(kind, active, error)


async def _hand_back(active: ActiveRun[Any], *, after: float = 0, failure: str | None = None) -> None:
    # A thread of a step that was cut or timed out would run beside the successor.
    if active.threads.busy:
        active.log.warning("%d thread(s) of it go on; it is handed back when they have ended", active.threads.busy)
    await active.threads.ended()
    await active.lease.hand_back(after=after, failure=failure)


async def _failed(kind: Kind[Any, Any], active: ActiveRun[Any], error: Exception) -> None:
    if isinstance(error, TenureError):
        code, message = error.code.value, error.message
    elif isinstance(error, _TimedOut):
        code, message = HANDLER_TIMEOUT, str(error)
    else:
        code, message = HANDLER_FAILED, f"{type(error).__name__.strip('_')[:200]}: {said(error)}"
    run = active.lease.run
    if run.failures < kind.retries and not isinstance(error, OutOfBudget):
        after_s = rules.back_off_ms(run.failures + 1) / 1000
        active.log.warning(
            "failed (%d of %d retries), due in %g s", run.failures, kind.retries, after_s, exc_info=error
        )
        await _hand_back(active, after=after_s, failure=f"{code} {message}")
        return
    active.log.error("failed with %s", code, exc_info=error)
    await active.lease.settle(Status.FAILED, code=code, message=message)


async def _settle_cancelled(active: ActiveRun[Any]) -> None:
    said = cancelling.said_in(await active.lease.inbox())
    reason = said.reason or "asked to end"
    await active.lease.settle(Status.CANCELLED, code="cancelled", message=reason, by=said.by)


async def _watch_cancel(ledger: Ledger, active: ActiveRun[Any], looking: anyio.CancelScope) -> None:
    """Learn that the run was asked to end, tell its handler, and end it when its time of grace is over."""
    lease, store = active.lease, ledger.store
    until_s: float | None = None
    with looking:
        while True:
            pause_s = lease.grant.ttl_ms / 3000
            if until_s is not None:
                pause_s = max(0.01, min(pause_s, until_s))
            with anyio.move_on_after(pause_s):
                await lease.trust.told()
            try:
                run = await store.load(lease.run.id)
                if run is None or run.cancel_by_ms is None:
                    continue
                active.steps.cancel_asked = True
                until_s = (run.cancel_by_ms - (await store.facts()).now_ms) / 1000
                if until_s <= 0:
                    said = await cancelling.asked(store, run.id)
                    await ledger.cancel(run.id, reason=said.late, by=said.by)
            except TenureError as error:
                active.log.debug("could not look whether the run was asked to end: %s", error)
