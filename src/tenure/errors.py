"""Every error that tenure raises, by what the caller does next; each has a stable code, and none carries a payload."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from tenure.core.text import printable

if TYPE_CHECKING:
    from tenure.core.run import Request, Run


class Code(StrEnum):
    """The stable name of an error: logs, exit codes and other languages go by it."""

    LEASE_LOST = "LEASE_LOST"
    HISTORY_LOST = "HISTORY_LOST"
    LEASE_HELD = "LEASE_HELD"
    RUN_SUSPENDED = "RUN_SUSPENDED"
    RUN_CLOSED = "RUN_CLOSED"
    RUN_QUARANTINED = "RUN_QUARANTINED"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    RUN_CONFLICT = "RUN_CONFLICT"
    RUN_DECLINED = "RUN_DECLINED"
    RUN_FAILED = "RUN_FAILED"
    RUN_CANCELLED = "RUN_CANCELLED"
    STEP_FAILED = "STEP_FAILED"
    OUT_OF_BUDGET = "OUT_OF_BUDGET"
    STEP_LIMIT = "STEP_LIMIT"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    LINEAGE_BROKEN = "LINEAGE_BROKEN"
    REPLAY_DRIFT = "REPLAY_DRIFT"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    REQUEST_CLOSED = "REQUEST_CLOSED"
    STALE_DECISION = "STALE_DECISION"
    REQUEST_EXPIRED = "REQUEST_EXPIRED"
    NOT_ALLOWED = "NOT_ALLOWED"
    INVALID_URL = "INVALID_URL"
    MISSING_EXTRA = "MISSING_EXTRA"
    UNKNOWN_KIND = "UNKNOWN_KIND"
    INVALID_CONTENT = "INVALID_CONTENT"
    INVALID_ID = "INVALID_ID"
    CORRUPT_RECORD = "CORRUPT_RECORD"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    STORE_UNSAFE = "STORE_UNSAFE"
    STORE_TOO_NEW = "STORE_TOO_NEW"
    STORE_NOT_FOUND = "STORE_NOT_FOUND"
    DRAINING = "DRAINING"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    ROLLED_BACK = "ROLLED_BACK"


def said(error: BaseException, /) -> str:
    """Return what an error says of itself; of one of ours its sentence. It never raises, whatever the error does."""
    if isinstance(error, TenureError):
        return error.message
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(f"{type(inner).__name__}: {said(inner)[:200]}" for inner in error.exceptions[:5])
    try:
        return printable(str(error))
    except Exception as broken:  # noqa: BLE001 - an error that cannot be told is no second error
        return f"(its text cannot be read: {type(broken).__name__})"


class TenureError(Exception):
    """Base of all errors of this package; `run` is the run as found in the deciding step, where there is one."""

    code: ClassVar[Code]

    def __init__(self, message: str, *, run: Run | None = None, run_id: str | None = None) -> None:
        self.message = printable(message)
        super().__init__(self.message)
        self.run = run
        self.run_id = run.id if run is not None else run_id

    def __str__(self) -> str:
        """Return the code and the sentence that says what to do next."""
        return f"{self.code}: {self.message}"


class LeaseLost(TenureError):
    """Stop: this holder may not write any more; reason is taken_over, expired, cancelled, stalled or evicted."""

    code = Code.LEASE_LOST

    def __init__(self, message: str, *, reason: str, run: Run | None = None, run_id: str | None = None) -> None:
        super().__init__(message, run=run, run_id=run_id)
        self.reason = reason


class HistoryLost(TenureError):
    """Stop: the store lost what it had acknowledged to this holder."""

    code = Code.HISTORY_LOST


class LeaseHeld(TenureError):
    """Go elsewhere: somebody holds the run for `remaining_ms`; an empty owner means that it is not yet due."""

    code = Code.LEASE_HELD

    def __init__(self, message: str, *, owner: str, remaining_ms: int, run: Run | None = None) -> None:
        super().__init__(message, run=run)
        self.owner = owner
        self.remaining_ms = remaining_ms


class RunSuspended(TenureError):
    """Ask a human, or wait: the run waits for a decision, a signal or a time."""

    code = Code.RUN_SUSPENDED

    @property
    def requests(self) -> dict[str, Request]:
        """Return the open requests that the run waits for, in the order in which they were asked."""
        run = self.run
        return {name: run.requests[name] for name in run.wants if name in run.requests} if run is not None else {}


class RunClosed(TenureError):
    """Nothing to do: the run has a terminal status, which is final."""

    code = Code.RUN_CLOSED


class RunQuarantined(TenureError):
    """The run killed its workers too often, or its data is corrupt; an operator releases or cancels it."""

    code = Code.RUN_QUARANTINED


class RunNotFound(TenureError):
    """No run of this id is in the store and namespace that were asked."""

    code = Code.RUN_NOT_FOUND


class RunConflict(TenureError):
    """The id, item or key is taken by other content; nothing was written."""

    code = Code.RUN_CONFLICT


class RunDeclined(TenureError):
    """Another worker can: this one has not the kind, schema, version, shape or empty process that the run needs."""

    code = Code.RUN_DECLINED


class RunFailed(TenureError):
    """Raised to who awaits the result of a run that failed; `failure` is its recorded code, `detail` its message."""

    code = Code.RUN_FAILED

    def __init__(self, message: str, *, failure: str, detail: str = "", run: Run | None = None) -> None:
        super().__init__(message, run=run)
        self.failure = failure
        self.detail = detail


class RunCancelled(TenureError):
    """Raised to who awaits the result of a run that was cancelled."""

    code = Code.RUN_CANCELLED


class StepFailed(TenureError):
    """A step failed for good; the same error is raised on the first run and on every replay."""

    code = Code.STEP_FAILED

    def __init__(self, message: str, *, key: str, type_name: str, detail: str, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id)
        self.key = key
        self.type_name = type_name
        self.detail = detail


class OutOfBudget(TenureError):
    """The run used up what it may use; `budget` names the limit. It has failed, and trying again changes nothing."""

    code = Code.OUT_OF_BUDGET

    def __init__(self, message: str, *, budget: str, run: Run | None = None, run_id: str | None = None) -> None:
        super().__init__(message, run=run, run_id=run_id)
        self.budget = budget


class StepLimit(OutOfBudget):
    """The agent asked its model as often as it may and has no final answer."""

    code = Code.STEP_LIMIT

    def __init__(self, message: str, *, run: Run | None = None) -> None:
        super().__init__(message, budget="max_steps", run=run)


class OutputInvalid(TenureError):
    """The model's final answer does not fit the agent's output type, also when it was told what is wrong."""

    code = Code.OUTPUT_INVALID


class LineageBroken(TenureError):
    """A model would be shown a block that the journal does not explain; raised only where lineage is enforced."""

    code = Code.LINEAGE_BROKEN


class ReplayDrift(TenureError):
    """A recorded step was asked for with another guard value than the one it was recorded under."""

    code = Code.REPLAY_DRIFT

    def __init__(self, message: str, *, key: str, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id)
        self.key = key


class CancelRequested(TenureError):
    """Clean up now: the run was asked to end, and its time of grace is running."""

    code = Code.CANCEL_REQUESTED


class RequestClosed(TenureError):
    """The request is not open (any more): decided, consumed, withdrawn, expired or never made."""

    code = Code.REQUEST_CLOSED


class StaleDecision(RequestClosed):
    """The decision was made on other content than the request now shows."""

    code = Code.STALE_DECISION


class RequestExpired(RequestClosed):
    """Nobody decided in time, and the request was made so that this ends what asked."""

    code = Code.REQUEST_EXPIRED


class NotAllowed(TenureError):
    """Fix the program: the call breaks a rule that no state of the store can make right."""

    code = Code.NOT_ALLOWED


class InvalidUrl(NotAllowed):
    """The store URL is not one that `open_store` knows."""

    code = Code.INVALID_URL


class MissingExtra(NotAllowed):
    """An optional dependency is not installed; the message names the extra."""

    code = Code.MISSING_EXTRA


class UnknownKind(NotAllowed):
    """The app has no kind of this name."""

    code = Code.UNKNOWN_KIND


class InvalidContent(TenureError):
    """A value cannot be stored; `path` is the JSON path of the offending part."""

    code = Code.INVALID_CONTENT

    def __init__(self, message: str, *, path: str = "$", size: int | None = None, limit: int | None = None) -> None:
        super().__init__(f"{message} (at {path})")
        self._bare = message
        self.path = path
        self.size = size
        self.limit = limit

    def of(self, what: str, /) -> InvalidContent:
        """Return the same error, with whose content it is."""
        return InvalidContent(f"{what}: {self._bare}", path=self.path, size=self.size, limit=self.limit)


class InvalidId(TenureError):
    """A run id, kind or namespace has characters or a length that no store takes."""

    code = Code.INVALID_ID


class CorruptRecord(TenureError):
    """What the store holds of this run cannot be read; the run is set aside and its raw bytes stay."""

    code = Code.CORRUPT_RECORD


class StoreUnavailable(TenureError):
    """Try again: the store could not be reached or did not answer in time, and nothing was sent twice."""

    code = Code.STORE_UNAVAILABLE


class RowLocked(StoreUnavailable):
    """Try again: the store answers, and another transaction, maybe one of this process, holds the run's row."""


class StoreUnsafe(TenureError):
    """Fix the deployment: the store is set so that it would lose or tear what it acknowledges."""

    code = Code.STORE_UNSAFE


class StoreTooNew(StoreUnsafe):
    """Fix the deployment: the store or record was written by a newer version than this one can read."""

    code = Code.STORE_TOO_NEW


class StoreNotFound(StoreUnsafe):
    """Fix the URL: there is no store at it, and none was to be made."""

    code = Code.STORE_NOT_FOUND


class Draining(TenureError):
    """This worker is shutting down and takes no more runs."""

    code = Code.DRAINING


class RolledBack(TenureError):
    """Do the block again: its transaction did not land, and nothing of it is there."""

    code = Code.ROLLED_BACK


class OutcomeUnknown(TenureError):
    """The request may or may not have landed: send the same request again, or look."""

    code = Code.OUTCOME_UNKNOWN


def by_code(code: str) -> type[TenureError]:
    """Return the error class of a code."""
    pending: list[type[TenureError]] = list(TenureError.__subclasses__())
    while pending:
        found = pending.pop()
        if found.code == code:
            return found
        pending.extend(found.__subclasses__())
    raise KeyError(code)
