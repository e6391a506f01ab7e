"""A refusal is data; here it becomes an exception that says what to do next."""

from __future__ import annotations

from typing import assert_never

from tenure.core import canonical
from tenure.core.run import Answer, Ask, How, Item, Run, Status, Why
from tenure.core.text import printable
from tenure.errors import (
    CorruptRecord,
    HistoryLost,
    InvalidContent,
    LeaseHeld,
    LeaseLost,
    NotAllowed,
    OutcomeUnknown,
    RequestClosed,
    RunClosed,
    RunConflict,
    RunDeclined,
    RunNotFound,
    RunQuarantined,
    RunSuspended,
    StaleDecision,
    TenureError,
)


def error_of(answer: Answer, run_id: str, /, *, kind: str = "") -> TenureError:
    """Return the error of a refused change that needs no grant; `kind` is that of a run that was to be created."""
    run, why = answer.run, answer.why
    match why:
        case Why.ABSENT:
            return not_found(run_id)
        case Why.CLOSED | Why.QUARANTINED | Why.SUSPENDED | Why.STATUS | None:
            return by_status(run, run_id)
        case Why.HELD | Why.NOT_DUE | Why.GRACE:
            return _held(answer, run_id)
        case Why.CONFLICT if answer.item is not None and answer.item.ask in (Ask.DECIDE, Ask.REVOKE):
            return _decided(answer.item, run, run_id)
        case Why.CONFLICT:
            return RunConflict(_taken(answer, run_id, kind), run=run, run_id=run_id)
        case Why.MOVED:
            message = f"somebody held or released run {run_id} since it was looked at; look again, then decide"
            return RunConflict(message, run=run, run_id=run_id)
        case Why.DECLINED | Why.CROWDED:
            what = "an empty process" if why is Why.CROWDED else _a_worker_of(run)
            message = f"run {run_id} needs {what}; leave it to one that can, or start such a worker"
            return RunDeclined(message, run=run, run_id=run_id)
        case Why.TTL:
            message = f"the lease time for run {run_id} is over the store's max_ttl; open the ledger with this ttl"
            return NotAllowed(message, run=run, run_id=run_id)
        case Why.LOST | Why.EXPIRED | Why.SEQUENCE | Why.INBOX | Why.HISTORY:
            return lost(answer, run_id)
        case Why.HISTORY_LOST:
            return history_lost(run, run_id)
        case Why.REQUEST_CLOSED:
            message = f"the request is not open on run {run_id}; list its open requests with `tenure show {run_id}`"
            return RequestClosed(message, run=run, run_id=run_id)
        case Why.STALE:
            message = f"the request on run {run_id} shows other content now; read it again and decide on that"
            return StaleDecision(message, run=run, run_id=run_id)
        case Why.CORRUPT:
            message = f"what the store holds of run {run_id} does not fit together; see `tenure show {run_id} --raw`"
            return CorruptRecord(message, run=run, run_id=run_id)
        case Why.STAGED:
            message = f"a large payload of run {run_id} expired before it was taken; send the same request again"
            return OutcomeUnknown(message, run=run, run_id=run_id)
        case _:
            assert_never(why)


def lost(answer: Answer, run_id: str, /, *, token: int = 0) -> LeaseLost:
    """Return the error for a holder whose grant (of that token, if it is known) the record does not hold any more."""
    run = answer.run
    reason = lost_reason(run, answer.why, token=token)
    now = f"; it is now {run.status.value} under grant #{run.ordinal}" if run is not None else ""
    message = f"the lease on run {run_id} is gone ({reason}){now}; stop, nothing of this holder was written"
    return LeaseLost(message, reason=reason, run=run, run_id=run_id)


def lost_reason(run: Run | None, why: Why | None, /, *, token: int = 0) -> str:
    """Return why a lease is gone: taken_over, expired, cancelled or evicted."""
    if run is None or why is Why.EXPIRED:
        return "expired"
    if run.status is Status.CANCELLED:
        return "cancelled"
    # Somebody else may go on already: how the own grant ended is in the log all the same.
    own = [line.ended for line in run.grants if line.token == token]
    if not own and run.status is not Status.RUNNING:
        own = [line.ended for line in run.grants[-1:]]
    return "evicted" if own and own[0] in (How.EVICT.value, How.YIELD.value) else "taken_over"


def history_lost(run: Run | None, run_id: str, /) -> HistoryLost:
    """Return the error for a holder whose acknowledged writes the store no longer has."""
    message = f"the store lost commits of run {run_id} it had acknowledged; stop, another worker goes on with the rest"
    return HistoryLost(message, run=run, run_id=run_id)


def not_found(run_id: str, /) -> RunNotFound:
    """Return the error for an id that the store does not have."""
    message = f"there is no run {run_id} in this store and namespace; submit it, or check --store and --namespace"
    return RunNotFound(message, run_id=run_id)


def by_status(run: Run | None, run_id: str, /) -> TenureError:
    """Return the error for a change that the run's status does not allow."""
    if run is None:
        return not_found(run_id)
    match run.status:
        case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
            message = f"run {run_id} is {run.status.value}, which is final; read its result, or retry it as a new run"
            return RunClosed(message, run=run)
        case Status.QUARANTINED:
            message = f"run {run_id} is quarantined; look at `tenure show {run_id}`, then release or cancel it"
            return RunQuarantined(message, run=run)
        case Status.SUSPENDED:
            message = f"run {run_id} waits for {', '.join(run.wants) or 'a time'}; decide, signal or wait"
            return RunSuspended(message, run=run)
        case Status.QUEUED | Status.RUNNING:
            message = f"run {run_id} is {run.status.value}, and this needs another status; look at it again"
            return RunConflict(message, run=run)
        case _:
            assert_never(run.status)


def _a_worker_of(run: Run | None) -> str:
    if run is None:
        return "a worker that has its kind, schema and code version"
    version = f"code version {run.code_version}" if run.code_version else "any code version"
    return f"a worker that has kind {run.kind}, reads schema {run.schema} and accepts {version}"


_HOW = {"approve": ": approved", "reject": ": rejected"}


def _taken(answer: Answer, run_id: str, kind: str) -> str:
    if answer.run is not None and kind:
        # One digest is of both: a fork of another place has the same input.
        by = "with another input or origin" if answer.run.kind == kind else f"of kind {answer.run.kind}"
        return f"{run_id} is taken by a run {by}, which stays as it is; use another id, or send what began that run"
    what = f"{answer.item.id} of run {run_id}" if answer.item is not None else run_id
    return f"{what} is taken by other content, which stays as it is; use another id or send the same content"


def _decided(item: Item, run: Run | None, run_id: str) -> RequestClosed:
    done = "revoked" if item.ask is Ask.REVOKE else "decided"
    try:
        said = {} if item.consumed else canonical.decode(item.body)
    except InvalidContent:
        said = {}
    by = printable(str(said.get("by") or "somebody"))[:200] if isinstance(said, dict) else "somebody"
    stands = "a new request is opened when the run goes on" if item.ask is Ask.REVOKE else "that stands"
    how = _HOW.get(str(said.get("how")), "") if isinstance(said, dict) else ""
    message = f"request {item.name!r} of run {run_id} was {done} first, by {by}{how}, and {stands}; see `tenure show`"
    return RequestClosed(message, run=run, run_id=run_id)


def _held(answer: Answer, run_id: str) -> TenureError:
    run, now_ms = answer.run, answer.now_us // 1000
    if run is None:
        return not_found(run_id)
    if answer.why is Why.HELD:
        left_ms = max(0, run.lease_until_ms - now_ms)
        message = f"run {run_id} is held by {run.owner} for {left_ms / 1000:.1f} s more; go elsewhere or wait"
        return LeaseHeld(message, owner=run.owner, remaining_ms=left_ms, run=run)
    if answer.why is Why.GRACE:
        # How long the grace lasts is the store's knowledge; a lease of then lasts no longer than this.
        left_ms = max(1_000, run.granted_ttl_ms)
        message = f"run {run_id} may still have a holder from before the store changed; try again later"
    else:
        left_ms = max(0, (run.due_ms or 0) - now_ms)
        message = f"run {run_id} is not due yet; try again in {left_ms / 1000:.1f} s or later"
    return LeaseHeld(message, owner="", remaining_ms=left_ms, run=run)
