"""Budgets, pure: what a run may use, what it has used, and which limit stands against the next question to a model.

What is used is folded from the journal. Before a model is asked, a reservation lands; with the answer it becomes what
was really used. A reservation whose holder died stays spent, so no takeover gives anything back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tenure.core import canonical, journal
from tenure.core.messages import AssistantMessage, Usage, usage_from_json, usage_to_json
from tenure.core.run import Run
from tenure.errors import NotAllowed

RESERVED = "budget/reserved"
RETURNED = "budget/returned"
MICROS = 1_000_000
_REMEMBERED = 16

Price = Callable[[str, Usage], float]
"""What a call of the model of this name costs that used so much, in the currency of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one run may use over all its attempts; what is not named is not limited.

    `turns` counts the model's answers, `wall_time` the seconds in which a worker held the run, `attempts` one more than
    the takeovers. `cost` needs a `price`. `repeats`: how often, among one more answers than that, the model may answer
    the same. `reserve` is set aside before each question, or what the largest answer so far took if that is more.
    """

    turns: int | None = None
    tool_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    cost: float | None = None
    wall_time: float | None = None
    attempts: int | None = None
    repeats: int | None = None
    price: Price | None = None
    reserve: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        for name in LIMITS:
            limit = getattr(self, name)
            least = 2 if name == "repeats" else 1 if name in ("turns", "attempts") else 0
            if limit is not None and not (math.isfinite(limit) and limit >= least):
                message = f"a budget of {name} {limit} is no limit; it is a number from {least} on, or left out"
                raise NotAllowed(message)
        if self.repeats is not None and self.repeats >= _REMEMBERED:
            message = f"repeats is at most {_REMEMBERED - 1}, not {self.repeats}: so many answers are remembered"
            raise NotAllowed(message)
        if self.cost is not None and self.price is None:
            message = "a budget of cost needs price=, a function of a model's name and a usage; give it one"
            raise NotAllowed(message)

    def micros(self, model: str, usage: Usage, /) -> int | None:
        """Return what a call costs in millionths, None without a price."""
        return None if self.price is None else math.ceil(self.price(model, usage) * MICROS)

    def within(self, other: Budget, /) -> Budget:
        """Return a budget that holds to both: the lower of each limit, this one's price or else the other's."""
        limits: dict[str, Any] = {name: lower(getattr(self, name), getattr(other, name)) for name in LIMITS}
        reserve = most(self.reserve, other.reserve)
        return replace(self, **limits, reserve=reserve, price=self.price or other.price)

    def only(self, *names: str, what: str) -> None:
        """Raise NotAllowed for a limit that is none of these: `what` does not use the other things."""
        for name in LIMITS:
            if getattr(self, name) is not None and name not in names:
                message = f"{what} has no {name} to limit; its budget takes {', '.join(names)}"
                raise NotAllowed(message)


def lower(one: float | None, other: float | None, /) -> float | None:
    """Return the lower of two limits; None is none."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


LIMITS = tuple(found.name for found in fields(Budget) if found.name not in ("price", "reserve"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What was set aside for one question."""

    usage: Usage
    micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a scope has used. `lost` went to questions whose holder died; `reserved` is the question on its way.

    `largest` is the most that one answer took, `recent` the digests of the last answers.
    """

    turns: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    micros: int = 0
    lost: Usage = field(default_factory=Usage)
    lost_micros: int = 0
    largest: Usage = field(default_factory=Usage)
    largest_micros: int = 0
    reserved: Reservation | None = None
    recent: tuple[str, ...] = ()

    def reserve(self, found: Mapping[str, Any], /) -> Spent:
        """Return what is spent after a reservation; one that was on its way before it is lost."""
        kept = self.given_up()
        usage = usage_from_json(found.get("usage", {}))
        turn = 1 if found.get("turn", True) else 0
        reserved = Reservation(usage=usage, micros=int(found.get("micros", 0)))
        return replace(kept, turns=kept.turns + turn, reserved=reserved)

    def returned(self, found: Mapping[str, Any], /) -> Spent:
        """Return what is spent if the question on its way was turned away, and cost nothing."""
        if self.reserved is None:
            return self
        return replace(self, turns=self.turns - (1 if found.get("turn", True) else 0), reserved=None)

    def given_up(self) -> Spent:
        """Return what is spent if the question on its way is never answered."""
        if self.reserved is None:
            return self
        return replace(
            self,
            lost=self.lost + self.reserved.usage,
            lost_micros=self.lost_micros + self.reserved.micros,
            reserved=None,
        )

    def answered(self, usage: Usage, micros: int, message: AssistantMessage | None, /) -> Spent:
        """Return what is spent after an answer; without a message one that is no turn of the conversation."""
        after = replace(
            self,
            turns=self.turns + (1 if self.reserved is None and message is not None else 0),
            reserved=None,
            usage=self.usage + usage,
            micros=self.micros + micros,
            largest=most(self.largest, usage),
            largest_micros=max(self.largest_micros, micros),
        )
        if message is None:
            return after
        calls = message.calls
        return replace(
            after,
            tool_calls=after.tool_calls + len(calls),
            recent=(*after.recent, said(message))[-_REMEMBERED:],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value by which a state that is restated carries it on."""
        value: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        value |= {name: usage_to_json(getattr(self, name)) for name in _USAGES}
        value["recent"] = list(self.recent)
        if self.reserved is not None:
            value["reserved"] = {"usage": usage_to_json(self.reserved.usage), "micros": self.reserved.micros}
        return value


_COUNTS = ("turns", "tool_calls", "micros", "lost_micros", "largest_micros")
_USAGES = ("usage", "lost", "largest")


def spent_from_json(value: Mapping[str, Any], /) -> Spent:
    """Return what the JSON value says was spent."""
    found: dict[str, Any] = {name: int(value[name]) for name in _COUNTS}
    found |= {name: usage_from_json(value[name]) for name in _USAGES}
    if (given := value.get("reserved")) is not None:
        found["reserved"] = Reservation(usage=usage_from_json(given["usage"]), micros=int(given["micros"]))
    return Spent(**found, recent=tuple(map(str, value["recent"])))


def said(message: AssistantMessage, /) -> str:
    """Return the digest by which an answer is known again: its calls with their arguments, or its text."""
    calls = sorted(canonical.encode([call.name, call.arguments]).decode() for call in message.calls)
    return canonical.digest(canonical.encode(calls or message.text))


def most(one: Usage, other: Usage, /) -> Usage:
    """Return the larger of each count."""
    return Usage(
        input_tokens=max(one.input_tokens, other.input_tokens),
        output_tokens=max(one.output_tokens, other.output_tokens),
    )


def reservation(budget: Budget, spent: Spent, model: str, /) -> Reservation:
    """Return what the next question sets aside."""
    usage = most(budget.reserve, spent.largest)
    return Reservation(usage=usage, micros=max(budget.micros(model, usage) or 0, spent.largest_micros))


def reserved(found: Reservation, /, *, scope: str, step: int, turn: bool) -> bytes:
    """Return the event that lands before a question is sent; `turn` if its answer is one of the conversation."""
    usage = usage_to_json(found.usage)
    return journal.event(RESERVED, scope=scope, step=step, usage=usage, micros=found.micros, turn=turn)


def returned(*, scope: str, step: int, turn: bool) -> bytes:
    """Return the event by which a question that was turned away gives back what was set aside for it."""
    return journal.event(RETURNED, scope=scope, step=step, turn=turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """A limit that does not let the next question through, and why in words."""

    budget: str
    message: str


def against(
    budget: Budget, spent: Spent, asks: Reservation, /, *, attempt: int, held_ms: int, turn: bool = True
) -> Exceeded | None:
    """Return the first limit against asking once more, None if all allow it; a limit may be reached, not passed."""
    gone, next_ = spent.usage + spent.lost, asks.usage
    for name, used, more in (
        ("attempts", attempt, 0),
        ("turns", spent.turns, int(turn)),
        ("tool_calls", spent.tool_calls, 0),
        ("input_tokens", gone.input_tokens, next_.input_tokens),
        ("output_tokens", gone.output_tokens, next_.output_tokens),
        ("tokens", gone.input_tokens + gone.output_tokens, next_.input_tokens + next_.output_tokens),
        ("cost", (spent.micros + spent.lost_micros) / MICROS, asks.micros / MICROS),
    ):
        limit = getattr(budget, name)
        if limit is not None and used + more > limit:
            return Exceeded(budget=name, message=_words(name, limit, used, more))
    if budget.wall_time is not None and held_ms >= budget.wall_time * 1000:
        return Exceeded(budget="wall_time", message=_words("wall_time", budget.wall_time, held_ms / 1000, 0))
    if budget.repeats is not None and _repeated(spent.recent, budget.repeats):
        message = f"the model answered the same {budget.repeats} times; it goes round in a loop, so tell it otherwise"
        return Exceeded(budget="repeats", message=message)
    return None


def _words(name: str, limit: float, used: float, more: float) -> str:
    unit = " s" if name == "wall_time" else ""
    next_ = f", and the next question sets {more:,.10g} aside" if more and name != "turns" else ""
    return f"{name}: {used:,.10g}{unit} of {limit:,.10g}{unit} are used{next_}; raise the budget, or divide the work"


def _repeated(recent: Sequence[str], repeats: int) -> bool:
    return bool(recent) and list(recent[-repeats - 1 :]).count(recent[-1]) >= repeats


def held_before_ms(run: Run, known: tuple[int, int], /) -> int:
    """Return the milliseconds in which a run was held before its current grant, by the store's clock.

    `known` is (ordinal of a grant, milliseconds before it), as an attempt's start has journaled it; the grant log of
    the record tells the rest.
    """
    ordinal, before_ms = known
    lines = [line for line in run.grants[:-1] if line.ordinal >= ordinal]
    return before_ms + sum(max(0, line.until_ms - line.from_ms) for line in lines)
