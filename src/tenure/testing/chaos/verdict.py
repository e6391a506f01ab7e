"""What is held against one run of a fleet: its record, its journal, and what all workers did and were told of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tenure.core import canonical, journal
from tenure.core.run import Commit, Row, Run, Status
from tenure.core.verify import verify_run
from tenure.testing.chaos.judge import of_answers, of_grants, of_stale
from tenure.testing.register import Asked

CALLS = {
    "steps": tuple(f"step:u{n}" for n in range(1, 6)),
    "agent": ("model:1", "tool:c1", "model:2", "tool:c2", "model:3"),
}
"""The calls of a run, in order, by kind; each is recorded under its name."""


def judge(
    run: Run | None,
    rows: Sequence[Row],
    result: Any,
    *,
    lines: Sequence[Mapping[str, Any]],
    asked: Sequence[Asked],
    counts: Counter[str],
) -> list[str]:
    """Return what is wrong with one run; `lines` and `asked` are what all workers noted about it."""
    counts["runs"] += 1
    if run is None or run.status is not Status.COMPLETED:
        return [f"I11 it is {run.status.value if run is not None else 'gone'}, not completed"]
    counts["takeovers"] += run.attempt - 1
    verified = verify_run(run, rows)
    wrong = [] if verified.ok else [f"I16 its journal does not verify: {verified.failures}"]
    wrong += [*_of_results(run, rows, result, lines), *_of_told(rows, asked), *_of_workers(lines)]
    wrong += [*of_grants(run, rows), *of_answers(rows, asked, counts), *of_stale(lines, counts)]
    return wrong


def _of_results(run: Run, rows: Sequence[Row], result: Any, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """I14: one result for each call, made again by nobody who came later, and the end is made of them."""
    stands: dict[str, int] = {}
    attempt = 0
    for row in rows:
        attempt = next((e["attempt"] for e in journal.events_of(row) if e["type"] == journal.ATTEMPT_START), attempt)
        for name, _ in _results(row):
            if name in stands:
                yield f"I14 {name} has two results in the journal"
            stands.setdefault(name, attempt)
    if set(stands) != set(CALLS[run.kind]):
        yield f"I14 its journal holds the results of {sorted(stands)}"
    # A process that slept may begin a call late; who took the run over may not make a landed one.
    again = [
        line["name"] for line in lines if line["what"] == "called" and line["attempt"] > stands.get(line["name"], 1000)
    ]
    if again:
        yield f"I14 {again} had landed and was made again by a later attempt"
    values = dict(pair for row in rows for pair in _results(row))
    expected = [values.get(name) for name in CALLS["steps"]] if run.kind == "steps" else _text(values.get("model:3"))
    if result != expected:
        yield f"I14 its result is {result!r}, not {expected!r}"


def _of_told(rows: Sequence[Row], asked: Sequence[Asked]) -> Iterator[str]:
    """I9: each result that a worker was told of stands in the journal, of the same bytes."""
    stands = {name: sha for row in rows for name, sha in results_of(row).items()}
    for one in asked:
        if not isinstance(one.change, Commit) or one.answer is None or not one.answer.ok:
            continue
        for name, sha in results_of(one.change.row).items():
            if stands.get(name) != sha:
                yield f"I9 {one.process} was told that {name} had landed, and other bytes stand there"


def _of_workers(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """I2: whoever was granted the run later has the higher token."""
    granted = {line["token"]: line["ordinal"] for line in lines if line["what"] == "granted"}
    if [granted[token] for token in sorted(granted)] != sorted(set(granted.values())):
        yield f"I2 what the workers were granted is not in order: {granted}"


def results_of(row: Row) -> dict[str, str]:
    """Return the results that a row brings, by call: the SHA-256 of their canonical bytes."""
    return {name: hashlib.sha256(canonical.encode(value)).hexdigest() for name, value in _results(row)}


def _results(row: Row) -> Iterator[tuple[str, Any]]:
    for event in journal.events_of(row):
        if event["type"] == journal.RECORD:
            yield event["name"], event.get("value", event.get("error"))
        elif event["type"] == "assistant/message":
            yield event["name"], event["message"]


def _text(message: Any) -> str | None:
    return message["parts"][0]["text"] if message else None
