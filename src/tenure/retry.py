"""How often a call is made, and what is never made again or recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from tenure.effects import milliseconds
from tenure.errors import (
    CancelRequested,
    Draining,
    HistoryLost,
    LeaseLost,
    NotAllowed,
    OutcomeUnknown,
    RunDeclined,
    RunSuspended,
    StoreUnavailable,
)

T = TypeVar("T")


class TryLater(Exception):
    """Raised by a handler: hand the run back, due in `after` seconds; it is no failure."""

    def __init__(self, *, after: float = 0) -> None:
        milliseconds(after, "after")
        super().__init__(f"try again in {after} s")
        self.after = after


class Exited(Exception):
    """A function of the user called sys.exit. In a task that would end the loop, and every run of the process."""

    def __init__(self, status: object) -> None:
        super().__init__(f"sys.exit({status!r:.80}) was called")


NEVER_RECORDED = (
    CancelRequested,
    Draining,
    Exited,
    HistoryLost,
    LeaseLost,
    OutcomeUnknown,
    RunDeclined,
    RunSuspended,
    StoreUnavailable,
    TryLater,
)
"""Errors that say something about the attempt and nothing about the call: no record, and no other try of the call."""


def of_the_attempt(error: BaseException, run_id: str | None = None, /) -> Exception | None:
    """Return what in an error, a group too, says something about the attempt; None if it is all about the call.

    With a run id, what other runs raised is not meant: a call may hold and await runs of its own.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (of_the_attempt(inner, run_id) for inner in error.exceptions)), None)
    ours = run_id is None or getattr(error, "run_id", None) in (None, run_id)
    return error if ours and isinstance(error, NEVER_RECORDED) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a call is made: `attempts` counts the first one, waits are in seconds and grow by `factor`."""

    attempts: int = 1
    wait: float = 1.0
    factor: float = 2.0
    max_wait: float = 60.0
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        sane = self.wait >= 0 and self.factor >= 1 and self.max_wait >= 0  # false for what is not a number, too
        if self.attempts < 1 or not sane:
            message = "a Retry takes one attempt or more, waits from 0 s on and a factor from 1 on; correct its numbers"
            raise NotAllowed(message)

    async def call(self, fn: Callable[[], Awaitable[T]], /) -> T:
        """Return what `fn` returns at the first attempt that succeeds, or raise what the last one raised."""
        if self.attempts == 1:
            return await fn()
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

        trying = AsyncRetrying(
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential(multiplier=self.wait, exp_base=self.factor, max=self.max_wait),
            retry=retry_if_exception(self._again),
            sleep=anyio.sleep,
            reraise=True,
        )
        async for attempt in trying:
            with attempt:
                return await fn()
        raise AssertionError  # pragma: no cover - the last attempt returned or raised

    def _again(self, error: BaseException) -> bool:
        return isinstance(error, self.on) and of_the_attempt(error) is None


ONCE = Retry()
