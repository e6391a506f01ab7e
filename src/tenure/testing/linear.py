"""Is a history linearizable? The search of Wing and Gong (1993), with Lowe's memory of what was tried (2017).

A history is what callers saw: calls with the times at which they were sent and answered. It is linearizable if every
call can be put at one instant between those two times so that a sequential specification explains every answer. A call
without an answer may have taken effect at any time after it was sent, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
C = TypeVar("C")

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Op(Generic[C]):
    """One call as its caller saw it; without an answer `told` is `NEVER`."""

    sent: float
    told: float
    call: C

    @property
    def answered(self) -> bool:
        """Return whether there was an answer."""
        return self.told != NEVER


Step = Callable[[S, C, bool], Iterable[S]]
"""The specification: the states after a call, none where the answer that it carries cannot be given in this state.

The bool is False for a call without an answer, of which only the effect is asked.
"""


class Undecided(Exception):
    """The search was given up: too many calls overlap."""


def linearizable(ops: Sequence[Op[C]], start: S, step: Step[S, C], /, *, limit: int = 200_000) -> bool:
    """Return whether some order explains the answers; Undecided after `limit` tries.

    Exponential in the calls that overlap (one without an answer overlaps with all that follow), not in the history.
    """
    ordered = sorted(ops, key=lambda op: op.sent)
    full = sum(1 << index for index, op in enumerate(ordered) if op.answered)
    tried: set[tuple[int, S]] = set()
    stack: list[tuple[int, S]] = [(0, start)]
    while stack:
        done, state = stack.pop()
        if done & full == full:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        if len(tried) > limit:
            message = f"{limit} orders of {len(ordered)} calls were tried, {len(ordered) - full.bit_count()} unanswered"
            raise Undecided(message)
        # Only what was sent before the earliest answer that is still open may come next.
        horizon = min((op.told for index, op in enumerate(ordered) if not done >> index & 1), default=NEVER)
        for index, op in enumerate(ordered):
            if op.sent > horizon:
                break
            if not done >> index & 1:
                stack.extend((done | 1 << index, after) for after in step(state, op.call, op.answered))
    return False
