"""What is held against one run of a history: its record, its journal, and what all workers were told of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tenure.core import canonical, journal
from tenure.core.run import Row, Run, Status
from tenure.core.verify import verify_run

CALLS = {
    "steps": tuple(f"step:u{n}" for n in range(1, 6)),
    "agent": ("model:1", "tool:c1", "model:2", "tool:c2", "model:3"),
}
"""The calls of a run, in order, by kind; each is recorded under its name."""


def results_of(row: Row) -> dict[str, str]:
    """Return the results that a row brings, by call: the SHA-256 of their canonical bytes."""
    return {name: hashlib.sha256(canonical.encode(value)).hexdigest() for name, value in _results(row)}


def _results(row: Row) -> Iterator[tuple[str, Any]]:
    for event in journal.events_of(row):
        if event["type"] == journal.RECORD:
            yield event["name"], event.get("value", event.get("error"))
        elif event["type"] == "assistant/message":
            yield event["name"], event["message"]


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What one run came to."""

    stale_landed: int = 0
    lost: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def judge(run: Run | None, rows: Sequence[Row], result: Any, lines: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict on one run; `lines` are those of all workers about it, in the order of time."""
    found = Verdict()
    if run is None or run.status is not Status.COMPLETED:
        found.lost = 1
        found.wrong.append(f"it is {run.status.value if run is not None else 'gone'}, not completed")
        return found
    if not (verified := verify_run(run, rows)).ok:
        found.wrong.append(f"its journal does not verify: {verified.failures}")
    _judge_results(found, run, rows, result, lines)
    _judge_grants(found, run, rows, lines)
    found.counts["takeovers"] += run.attempt - 1
    return found


def _judge_results(
    found: Verdict, run: Run, rows: Sequence[Row], result: Any, lines: Sequence[Mapping[str, Any]]
) -> None:
    stands: dict[str, tuple[str, int]] = {}
    attempt = 0
    for row in rows:
        attempt = next((e["attempt"] for e in journal.events_of(row) if e["type"] == journal.ATTEMPT_START), attempt)
        for name, sha in results_of(row).items():
            if name in stands:
                found.wrong.append(f"{name} has two results in the journal")
            stands.setdefault(name, (sha, attempt))
    if set(stands) != set(CALLS[run.kind]):
        found.wrong.append(f"its journal holds the results of {sorted(stands)}")
    told = [line for line in lines if line["what"] == "landed"]
    first: dict[str, Mapping[str, Any]] = {}
    for line in told:
        first.setdefault(line["name"], line)
        if line["name"] not in stands:
            found.wrong.append(f"{line['worker']} was told that {line['name']} had landed, and it is not there")
        elif line["sha"] != stands[line["name"]][0]:
            late = "" if first[line["name"]] is line else ", though not as the first"
            found.wrong.append(f"{line['worker']} was told of other bytes of {line['name']}{late}")
    found.counts["results"] += len(stands)
    found.counts["told"] += len(first)
    # A process that slept may begin a call late; who took the run over may not make a landed one.
    again = [
        line["name"]
        for line in lines
        if line["what"] == "called" and line["name"] in stands and line["attempt"] > stands[line["name"]][1]
    ]
    if again:
        found.wrong.append(f"{again} had landed and was made again by a later attempt")
    values = dict(pair for row in rows for pair in _results(row))
    expected = [values.get(name) for name in CALLS["steps"]] if run.kind == "steps" else _text(values.get("model:3"))
    if result != expected:
        found.wrong.append(f"its result is {result!r}, not {expected!r}")


def _text(message: Any) -> str | None:
    return message["parts"][0]["text"] if message else None


def _judge_grants(found: Verdict, run: Run, rows: Sequence[Row], lines: Sequence[Mapping[str, Any]]) -> None:
    tokens = [line.token for line in run.grants]
    if tokens != sorted(set(tokens)):
        found.wrong.append(f"the tokens of its grants do not rise: {tokens}")
    granted = {line["token"]: line["ordinal"] for line in lines if line["what"] == "granted"}
    if [granted[token] for token in sorted(granted)] != sorted(set(granted.values())):
        found.wrong.append(f"what the workers were granted is not in order: {granted}")
    for mine, after in pairwise(run.grants):
        late = [row.seq for row in rows if row.token == mine.token and row.at_ms > after.from_ms]
        if late:
            found.stale_landed += len(late)
            found.wrong.append(f"commits {late} landed under #{mine.ordinal} when #{after.ordinal} had been granted")
    for line in lines:
        if line["what"] == "stale":
            found.counts["stale refused"] += not line["landed"]
            if line["landed"]:
                found.stale_landed += 1
                found.wrong.append(f"{line['worker']} wrote under a dead grant and was told that it landed")
        found.counts["refused"] += line["what"] == "refused"
