"""A run as those see it who ask the store: a fenced register with a journal, for the search of `linear`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tenure.core.run import Answer, Change, Claim, Commit, Create, End, Reattach, Status, Verdict
from tenure.testing.linear import NEVER, Op


@dataclass(slots=True, kw_only=True)
class Asked:
    """One change as its sender saw it: when it was sent, when it was answered, with what (None: no answer)."""

    sent_s: float
    process: str
    change: Change
    told_s: float = NEVER
    answer: Answer | None = None


State = tuple[int, int, frozenset[str], str]
START: State = (0, 0, frozenset(), "")
"""A run as the specification sees it: token, last seq, digests, and the nonce that holds it."""


def told(one: Asked) -> bool:
    """Return whether the specification has a word on this call.

    A refusal may be for the time's sake, which the specification does not have, and it changes nothing.
    """
    return isinstance(one.change, Create | Claim | Commit | End | Reattach) and (one.answer is None or one.answer.ok)


def op_of(one: Asked) -> Op[Asked]:
    """Return it as the search takes it."""
    return Op(sent=one.sent_s, told=one.told_s, call=one)


def step(state: State, one: Asked, answered: bool) -> Iterator[State]:  # noqa: FBT001 - the shape of a specification
    """A fenced register with a journal: what each answer says has to be true of the state that it met.

    A call without an answer may have done what it asks, or nothing. The token of a claim without one is not known, but
    its nonce is, and whoever comes next has a higher one.
    """
    made = answered and one.answer is not None and one.answer.verdict is Verdict.LANDED
    if made or not answered:
        yield from _done(state, one)
    if not answered or (not made and _true_of(state, one)):
        yield state


def _done(state: State, one: Asked) -> Iterator[State]:
    token, seq, digests, nonce = state
    change, run = one.change, one.answer.run if one.answer is not None else None
    match change:
        case Create() if change.row is not None and not digests:
            yield (token, 1, frozenset({change.row.digest}), "")
        case Claim() if run is None:
            yield (token, seq, digests, change.nonce)
        case Claim() if run is not None and run.token > token:
            yield (run.token, seq, digests, change.nonce if run.status is Status.RUNNING else "")
        case Reattach() if nonce == change.grant.nonce and (run is None or run.token > token):
            yield (token if run is None else run.token, seq, digests, change.nonce)
        case Commit() if nonce == change.grant.nonce and seq == change.row.seq - 1:
            yield (token, seq + 1, digests | {change.row.digest}, nonce if change.status is None else "")
        case End():
            yield (token if run is None else run.token, seq, digests, "")
        case _:
            return


def _true_of(state: State, one: Asked) -> bool:
    """Return whether an answer without an effect can be given in this state."""
    _, _, digests, nonce = state
    change, answer = one.change, one.answer
    if answer is None:
        return False
    match change:
        case Commit() | Create():
            return change.row is not None and change.row.digest in digests
        case Claim() | Reattach():
            return nonce == change.nonce
        case _:
            return True
