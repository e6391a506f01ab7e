"""Exit codes, and how an error is told: one sentence with its code on stderr, a traceback only when asked for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from enum import IntEnum

from tenure.errors import Code, TenureError


class Exit(IntEnum):
    """What the exit code of a command says; scripts go by it, so a number never changes its meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    HELD = 4
    LOST = 5
    NOT_VERIFIED = 6
    UNREACHABLE = 7
    UNSAFE = 8
    CONFLICT = 9
    ENDED_BADLY = 10
    INTERRUPTED = 130


EXIT: dict[Code, Exit] = {
    Code.LEASE_LOST: Exit.LOST,
    Code.HISTORY_LOST: Exit.LOST,
    Code.LEASE_HELD: Exit.HELD,
    Code.RUN_SUSPENDED: Exit.CONFLICT,
    Code.RUN_CLOSED: Exit.CONFLICT,
    Code.RUN_QUARANTINED: Exit.ENDED_BADLY,
    Code.RUN_NOT_FOUND: Exit.NOT_FOUND,
    Code.RUN_CONFLICT: Exit.CONFLICT,
    Code.RUN_DECLINED: Exit.FAILED,
    Code.RUN_FAILED: Exit.ENDED_BADLY,
    Code.RUN_CANCELLED: Exit.ENDED_BADLY,
    Code.STEP_FAILED: Exit.FAILED,
    Code.OUT_OF_BUDGET: Exit.ENDED_BADLY,
    Code.STEP_LIMIT: Exit.FAILED,
    Code.OUTPUT_INVALID: Exit.FAILED,
    Code.LINEAGE_BROKEN: Exit.FAILED,
    Code.REPLAY_DRIFT: Exit.FAILED,
    Code.CANCEL_REQUESTED: Exit.FAILED,
    Code.REQUEST_CLOSED: Exit.CONFLICT,
    Code.STALE_DECISION: Exit.CONFLICT,
    Code.REQUEST_EXPIRED: Exit.FAILED,
    Code.NOT_ALLOWED: Exit.USAGE,
    Code.INVALID_URL: Exit.USAGE,
    Code.MISSING_EXTRA: Exit.USAGE,
    Code.UNKNOWN_KIND: Exit.USAGE,
    Code.INVALID_CONTENT: Exit.USAGE,
    Code.INVALID_ID: Exit.USAGE,
    Code.CORRUPT_RECORD: Exit.NOT_VERIFIED,
    Code.STORE_UNAVAILABLE: Exit.UNREACHABLE,
    Code.STORE_UNSAFE: Exit.UNSAFE,
    Code.STORE_TOO_NEW: Exit.UNSAFE,
    Code.STORE_NOT_FOUND: Exit.NOT_FOUND,
    Code.DRAINING: Exit.FAILED,
    Code.OUTCOME_UNKNOWN: Exit.UNREACHABLE,
    Code.ROLLED_BACK: Exit.UNREACHABLE,
}


class UsageError(Exception):
    """What was typed cannot be meant; the message says what to type instead."""


def report_output(error: OSError, /) -> int:
    """Tell that what was to be answered could not be written."""
    print(  # noqa: T201 - this is the terminal
        f"tenure: the answer could not be written ({error.strerror}); free space, or write it elsewhere",
        file=sys.stderr,
    )
    return Exit.FAILED


def report(error: BaseException, /, *, debug: bool = False) -> int:
    """Tell an error on stderr and return the exit code."""
    if debug:
        traceback.print_exception(error)
    cause = next(_causes(error))
    print(f"tenure: {_sentence(cause, debug=debug)}", file=sys.stderr)  # noqa: T201 - this is the terminal
    if isinstance(cause, TenureError):
        return EXIT[cause.code]
    return Exit.USAGE if isinstance(cause, UsageError) else Exit.FAILED


def _sentence(cause: BaseException, *, debug: bool) -> str:
    from tenure.views.figures import clean

    if isinstance(cause, TenureError | UsageError):
        return clean(" ".join(str(cause).split()))
    hint = "" if debug else "; TENURE_LOG=debug shows where"
    return clean(f"{type(cause).__name__}: {' '.join(str(cause).split())}{hint}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors inside a group, ours first; the error itself where it is none."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    leaves = [leaf for inner in error.exceptions for leaf in _causes(inner)]
    yield from sorted(leaves, key=lambda leaf: not isinstance(leaf, TenureError | UsageError))
