"""A process that dies at any boundary of an agent's run: another process brings the run to the same end."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.crash_program import DIED, run_id_of
from tenure import Ledger, Status, open_store
from tenure.core import build, journal
from tenure.core.run import How, Row
from tenure.testing.models import CallLog

PROGRAM = Path(__file__).with_name("crash_program.py")
COMMITS = 6  # at least: three answers, two lots of results, the end
POINTS = [
    *(f"commit:{n}:{side}" for n in range(1, COMMITS + 1) for side in ("before", "after")),
    *(f"model:{n}:{side}" for n in (1, 2, 3) for side in ("asked", "answered")),
    *(f"tool:c{n}:{side}" for n in (1, 2, 3) for side in ("before", "after")),
]


def _program(*args: str) -> list[list[str]]:
    shown = subprocess.run([sys.executable, str(PROGRAM), *args], check=True, capture_output=True, text=True)
    return [line.split(maxsplit=1) for line in shown.stdout.splitlines()]


async def _bury(ledger: Ledger) -> int:
    """What a supervisor does about children that died: it forfeits their grants, in their name."""
    buried = 0
    async for run in ledger.find():
        if run.status is Status.RUNNING:
            await ledger.ask(build.end(run=run.id, how=How.FORFEIT, token=run.token, nonce=run.nonce))
            buried += 1
    return buried


@pytest.mark.slow
async def test_o14_o16_o17_b136_b137_b141_i14_a_death_at_any_boundary_repeats_only_what_was_in_flight(
    tmp_path: Path,
) -> None:
    url, log = f"sqlite:///{tmp_path}/runs.db", CallLog(tmp_path / "calls.jsonl")
    died = _program("crash", url, str(log.path), *POINTS)
    assert died == [[point, str(DIED)] for point in POINTS]
    async with open_store(url) as store, Ledger(store) as ledger:
        assert await _bury(ledger) >= len(POINTS) - 2, "all but those that had settled when they died"
        recovered = _program("recover", url, str(log.path))
        assert {output for _, output in recovered} == {"{'seen': 2}"}
        lines = log.read()
        for point in POINTS:
            run = await ledger.load(run_id_of(point))
            rows = await store.tail(run.id)
            assert (run.status, run.step) == (Status.COMPLETED, 3), point
            assert journal.verify_run(run, rows).ok, point
            mine = [line for line in lines if line["run"] == run.id]
            _assert_only_what_was_in_flight_is_repeated(run.id, rows, mine)
            assert await ledger.handle(run.id).result() == {"seen": 2}


def _assert_only_what_was_in_flight_is_repeated(run_id: str, rows: list[Row], lines: list[dict[str, Any]]) -> None:
    attempt = 0
    landed: dict[str, int] = {}
    for event in (event for row in rows for event in journal.events_of(row)):
        if event["type"] == "attempt/start":
            attempt = event["attempt"]
        elif event["type"] in ("assistant/message", "record"):
            assert event["name"] not in landed, "one of each, for ever"
            landed[event["name"]] = attempt
    assert sorted(landed) == ["model:1", "model:2", "model:3", "tool:c1", "tool:c2", "tool:c3"]
    asked = [(f"model:{line['step']}", line["attempt"]) for line in lines if line["what"] == "model/asked"]
    made = [(f"tool:{line['call']}", line["attempt"]) for line in lines if line["what"] == "tool/made"]
    for name, by in (*asked, *made):
        assert by <= landed[name], f"{name} of {run_id} had landed and was done again"
    again = [name for name, times in Counter(name for name, _ in asked).items() if times > 1]
    assert len(again) <= 1, "at most the model call in flight is sent again"
    assert {name for name, _ in made} == {"tool:c1", "tool:c2", "tool:c3"}, "under its own id"
    assert max(Counter(asked + made).values()) == 1, "nothing is done twice in one attempt"
