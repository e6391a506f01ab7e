"""What was done twice: the workers' call logs held against the journals.

A model answer or a tool result that stands in the journal may not be asked for again. A call that was in flight when
its worker died left nothing in the journal, and is made again.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.license_audit.calls import ASKED, CALLED
from tenure.core import journal
from tenure.core.loop import TOOL
from tenure.core.run import Row, Run, Status
from tenure.core.saying import ASSISTANT
from tenure.core.verify import verify_run

CLOCK_SLACK_MS = 20
"""Between the clocks of store and log; what the journal says by attempts needs none."""

Key = tuple[str, str, str]
"""Run, "model" or "tool", and the step or the call id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """When an answer or a result landed: in which attempt, and when by the store's clock."""

    attempt: int
    at_ms: int


@dataclass(slots=True, kw_only=True)
class Journals:
    """What the journals hold."""

    runs: int = 0
    completed: int = 0
    takeovers: int = 0
    verified: int = 0
    landed: dict[Key, Landed] = field(default_factory=dict)
    not_called: set[Key] = field(default_factory=set)
    turns: list[int] = field(default_factory=list)
    side_by_side: int = 0

    def add(self, run: Run, rows: Sequence[Row], /) -> None:
        """Take in a run and its whole journal."""
        self.runs += 1
        self.completed += run.status is Status.COMPLETED
        self.takeovers += run.attempt - 1
        self.verified += verify_run(run, rows).ok
        attempt, turns = 1, 0
        for row in rows:
            refused = False
            for event in journal.events_of(row):
                if event["type"] == journal.ATTEMPT_START:
                    attempt = int(event["attempt"])
                elif event["type"] == ASSISTANT:
                    turns += 1
                    calls = sum(part["type"] == "call" for part in event["message"]["parts"])
                    self.side_by_side += calls > 1
                    refused = calls > len(event["held"])
                    self.landed[run.id, "model", str(event["step"])] = Landed(attempt=attempt, at_ms=row.at_ms)
                elif event["type"] == journal.RECORD and event["name"].startswith(TOOL):
                    key = (run.id, "tool", event["name"].removeprefix(TOOL))
                    self.landed[key] = Landed(attempt=attempt, at_ms=row.at_ms)
                    if refused:  # recorded with the answer itself: such a call was never made
                        self.not_called.add(key)
        self.turns.append(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What the logs and the journals say together."""

    runs: int
    completed: int
    verified: int
    takeovers: int
    median_turns: float
    side_by_side: int
    answers: int
    asked: int
    answers_asked_again: int
    results: int
    called: int
    results_called_again: int
    repeated: int
    unlogged: int


def count(found: Journals, calls: Iterable[Mapping[str, Any]], /, *, boot_ms_of_store: int) -> Numbers:
    """Return the numbers; `boot_ms_of_store` is what the store's clock shows when the machine's since boot shows 0."""
    made: Counter[str] = Counter()
    again: Counter[str] = Counter()
    seen: Counter[Key] = Counter()
    for key, call in _made(calls):
        seen[key] += 1
        made[key[1]] += 1
        landed = found.landed.get(key)
        if landed is None:
            continue
        late = call["boot_ms"] + boot_ms_of_store > landed.at_ms + CLOCK_SLACK_MS
        if late or call["attempt"] > landed.attempt:
            again[key[1]] += 1
    real = found.landed.keys() - found.not_called
    kinds = Counter(kind for _, kind, _ in real)
    return Numbers(
        runs=found.runs,
        completed=found.completed,
        verified=found.verified,
        takeovers=found.takeovers,
        median_turns=statistics.median(found.turns or [0]),
        side_by_side=found.side_by_side,
        answers=kinds["model"],
        asked=made["model"],
        answers_asked_again=again["model"],
        results=kinds["tool"],
        called=made["tool"],
        results_called_again=again["tool"],
        repeated=seen.total() - len(seen),
        unlogged=len(real - seen.keys()),
    )


def _made(calls: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for call in calls:
        if call["what"] == ASKED:
            yield (call["run"], "model", str(call["step"])), call
        elif call["what"] == CALLED:
            yield (call["run"], "tool", call["call"]), call
