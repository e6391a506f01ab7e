"""What is claimed at the end, recomputed from the store and from the workers' own call logs; nothing is remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenure.cli.demo.book import Line
from tenure.core import journal
from tenure.core.run import Row, Run, Status
from tenure.core.verify import verify_run
from tenure.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One line of the table: what is claimed, what was found, and whether it is so."""

    text: str
    found: str
    ok: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run as the store holds it at the end."""

    run: Run
    rows: tuple[Row, ...]
    answers: dict[int, str]
    results: dict[str, Any]


async def tell(store: Store, run_id: str) -> Told:
    """Return a run with its journal, the text of each turn's answer and the record of each call."""
    run = await store.load(run_id)
    if run is None:
        raise LookupError(run_id)
    rows: list[Row] = []
    while page := await store.tail(run_id, after=len(rows), limit=200):
        rows.extend(page)
    answers: dict[int, str] = {}
    results: dict[str, Any] = {}
    for row in rows:
        for event in journal.events_of(row):
            if event["type"] == "assistant/message":
                answers[len(answers) + 1] = event["message"]["parts"][0]["text"]
            elif event["type"] == "record":
                results[event["name"]] = event.get("value")
    return Told(run=run, rows=tuple(rows), answers=answers, results=results)


def claims(told: Sequence[Told], lines: Sequence[Line]) -> list[Claim]:
    """Return the lines of the table."""
    total = len(told)
    completed = sum(t.run.status is Status.COMPLETED for t in told)
    overwritten = _overwritten(told, lines)
    again, sent, flying = _sent_again(told, lines)
    refused = [line for line in lines if line.what == "refused"]
    landed = [line for line in lines if line.what == "landed"]
    ordered = sum(_ordered(t) for t in told)
    verified = sum(verify_run(t.run, t.rows).ok for t in told)
    note = f"({sent} sent, {sent - flying} answered and stored, {flying} in flight when a worker was hit)"
    return [
        Claim(text="completed runs", found=f"{completed} / {total}", ok=completed == total),
        Claim(text="committed units overwritten", found=str(overwritten), ok=overwritten == 0),
        Claim(text="answered model calls sent again", found=str(again), ok=again == 0, note=note),
        Claim(text="recorded tool calls run again", found=str(_run_again(told, lines)), ok=not _run_again(told, lines)),
        Claim(text="stale writes refused", found=str(len(refused)), ok=bool(refused) and not landed),
        Claim(text="tokens strictly ordered in every run", found=f"{ordered} / {total}", ok=ordered == total),
        Claim(text="journal verified", found=f"{verified} / {total}", ok=verified == total),
    ]


def _overwritten(told: Sequence[Told], lines: Sequence[Line]) -> int:
    # A model that is asked the next question has been shown what landed before it: each of these must still stand.
    shown: dict[str, set[str]] = defaultdict(set)
    noted: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.what == "asked":
            shown[line.run].update(line.said["seen"])
            noted[line.run].update(result["number"] for result in line.said["results"])
    lost = 0
    for t in told:
        kept = {value["number"] for value in t.results.values() if isinstance(value, dict)}
        lost += len(shown[t.run.id] - set(t.answers.values())) + len(noted[t.run.id] - kept)
    return lost


def _sent_again(told: Sequence[Told], lines: Sequence[Line]) -> tuple[int, int, int]:
    again = sent = flying = 0
    for t in told:
        for step, text in t.answers.items():
            asked = [x for x in lines if x.what == "asked" and (x.run, x.said["step"]) == (t.run.id, step)]
            answered = [
                x for x in lines if x.what == "answered" and x.run == t.run.id and text.endswith(x.said["number"])
            ]
            since = min((x.at_ns for x in answered), default=0)
            sent += len(asked)
            flying += len(asked) - 1
            again += sum(x.at_ns > since for x in asked) if since else 0
    return again, sent, flying


def _run_again(told: Sequence[Told], lines: Sequence[Line]) -> int:
    again = 0
    for t in told:
        for name, value in t.results.items():
            call = name.removeprefix("tool:")
            called = [x for x in lines if x.what == "called" and (x.run, x.said["call"]) == (t.run.id, call)]
            done = [
                x for x in lines if x.what == "returned" and x.run == t.run.id and x.said["number"] == value["number"]
            ]
            since = min((x.at_ns for x in done), default=0)
            again += sum(x.at_ns > since for x in called) if since else 0
    return again


def _ordered(t: Told) -> bool:
    tokens = [line.token for line in t.run.grants]
    written = [row.token for row in t.rows]
    return tokens == sorted(set(tokens)) and written == sorted(written)
