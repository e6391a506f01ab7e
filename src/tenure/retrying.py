"""Asking again: the one place where a request whose answer was lost is sent again, same bytes, same key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_never, wait_exponential, wait_random

from tenure.clock import Clock
from tenure.errors import OutcomeUnknown, StoreUnavailable

Question = TypeVar("Question")
Reply = TypeVar("Reply")

LOST = (OutcomeUnknown, TimeoutError)
"""What may have landed all the same."""
UNANSWERED = (StoreUnavailable, *LOST)
MAX_RESEND_S = 30.0


async def resend(
    clock: Clock,
    attempt: Callable[[Question], Awaitable[Reply]],
    question: Question,
    /,
    *,
    within_s: float | None = None,
) -> Reply:
    """Return the reply to a question, asked again after 20 ms, then doubling to 0.5 s, until `within_s` or for ever.

    Only for requests that carry their own key. What bounds an endless one is a check of the lease in the attempt. A
    cancellation point; the last error is raised as it is.
    """
    # By this clock: one that counts suspend, and in a test the one that the test turns.
    until_ns = 0 if within_s is None else clock.boot_ns() + int(within_s * 1e9)
    try:
        # The common road asks once, and needs nothing of what asking again is made of.
        return await attempt(question)
    except UNANSWERED as error:
        first = [error]

    async def again(asked: Question) -> Reply:
        if first:
            raise first.pop()
        return await attempt(asked)

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(UNANSWERED),
        wait=wait_exponential(multiplier=0.02, max=0.5) + wait_random(0, 0.02),
        stop=stop_never if within_s is None else lambda _: clock.boot_ns() >= until_ns,
        sleep=clock.sleep,
        reraise=True,
    )
    reply: Reply = await retrying(again, question)
    return reply
