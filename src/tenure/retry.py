"""How often a call is made, and what is never made again or recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a call is made: `attempts` counts the first one, waits are in seconds and grow by `factor`."""

    attempts: int = 1
    wait: float = 1.0
    factor: float = 2.0
    max_wait: float = 60.0
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.wait < 0 or self.factor < 1 or self.max_wait < 0:
            message = "a Retry has at least one attempt, waits of no less than 0 s and a factor of no less than 1"
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
        return isinstance(error, self.on) and not isinstance(error, NEVER_RECORDED)


ONCE = Retry()
