"""What a run of `agent_story` has to show for itself after a death: its journal, and the log of its calls."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_story import CALLS, EACH, NOT_VALID, QUESTIONS, SLEEP_S, TURNS
from tenure.core import journal
from tenure.core.loop import fold
from tenure.core.run import Item, Row, Run, Status
from tenure.core.verify import verify_run

SENT_AGAIN = "landed model answers sent again"
RUN_AGAIN = "recorded calls run again"
APPROVALS = "approvals not consumed once"
HISTORIES = "histories that no provider takes"
BUDGETS = "runs beyond one reservation"
SLEEPS = "sleeps not slept once"
JOURNALS = "journals that do not verify"
ENDS = "runs that ended otherwise"
BAR = (SENT_AGAIN, RUN_AGAIN, APPROVALS, HISTORIES, BUDGETS, SLEEPS, JOURNALS, ENDS)

SLEEP = "sleep:tide"
CALLED = ("tool:", "step:")
APPROVAL = "approve:c2-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One run when it has ended: `lines` are what its processes logged, `landed` the attempt in which a name did."""

    name: str
    outcome: str
    run: Run
    rows: Sequence[Row]
    inbox: Sequence[Item]
    lines: Sequence[Mapping[str, Any]]
    landed: Mapping[str, int]
    events: Sequence[Mapping[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        events = tuple(event for row in self.rows for event in journal.events_of(row))
        object.__setattr__(self, "events", events)

    @property
    def made(self) -> Counter[tuple[str, int]]:
        """Return how often each call was made in each attempt."""
        return Counter((line["name"], line["attempt"]) for line in self.lines if line["what"] == "call")

    def count(self, **fields: str) -> int:
        """Return how many events have these fields."""
        return sum(all(event.get(name) == value for name, value in fields.items()) for event in self.events)


def lacking(clean: Played) -> list[str]:
    """Return what the run without a death should have had and did not: without it nothing would be proved."""
    found = {
        "its questions, its calls and a step": len(clean.made) == QUESTIONS + CALLS + 1,
        "one context replacement": clean.count(type="context/replace") == 1,
        "one approval": clean.count(type="request/opened") == 1,
        "one sleep": clean.count(type="wait/begun", name=SLEEP) == 1,
        "a reservation for each question": clean.count(type="budget/reserved") == QUESTIONS,
        "a good end": clean.run.status is Status.COMPLETED,
    }
    return [what for what, held in found.items() if not held]


def violations(played: Played, clean: Played) -> Iterable[tuple[str, str]]:
    """Yield what is below the bar, as (line of the bar, what was found)."""
    for (name, attempt), times in played.made.items():
        if times > 1 or attempt > played.landed.get(name, attempt):
            yield RUN_AGAIN if name.startswith(CALLED) else SENT_AGAIN, f"{name} in attempt {attempt}, {times} times"
    for line in played.lines:
        if line["what"] == "effect" and line["name"] == NOT_VALID:
            yield HISTORIES, line["key"]
    decided = played.count(type="request/decided", request=APPROVAL)
    consumed = played.count(type="inbox/consumed", name=APPROVAL)
    made = played.count(type="record", name="tool:c2-2")
    unread = sum(not item.consumed for item in played.inbox)
    if (decided, consumed, made, unread, len(played.run.requests)) != (1, 1, 1, 0, 0):
        yield APPROVALS, f"decided {decided}, consumed {consumed}, made {made} times, {unread} unread"
    slept_ms = played.run.updated_ms - played.run.created_ms
    ends = played.count(type="record", name=SLEEP)
    if ends != 1 or not SLEEP_S * 1000 <= slept_ms < 2 * SLEEP_S * 1000:
        yield SLEEPS, f"recorded {ends} times, {slept_ms} ms in all"
    if found := _overspent(played):
        yield BUDGETS, found
    if failures := verify_run(played.run, played.rows).failures:
        yield JOURNALS, str(failures[0])
    if (played.run.status, played.outcome) != (clean.run.status, clean.outcome):
        yield ENDS, f"{played.run.status.value}: {played.outcome}"


def _overspent(played: Played) -> str:
    spent = fold(played.events).spent
    reserved = played.count(type="budget/reserved")
    sent = sum(times for (name, _), times in played.made.items() if not name.startswith(CALLED))
    used, lost = spent.usage, spent.lost
    answers = QUESTIONS * EACH.input_tokens, QUESTIONS * EACH.output_tokens
    held = (
        sent <= reserved <= QUESTIONS + 1
        and (used.input_tokens, used.output_tokens) == answers
        and (lost.input_tokens, lost.output_tokens) in ((0, 0), (EACH.input_tokens, EACH.output_tokens))
        and spent.turns - TURNS in (0, 1)
        and spent.tool_calls == CALLS
        and spent.reserved is None
        and (lost.input_tokens > 0) == (reserved == QUESTIONS + 1)
    )
    return "" if held else f"{sent} questions sent under {reserved} reservations, used {used}, lost {lost}"
