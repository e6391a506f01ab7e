"""The bars of real faults, in their short form; and that what each history is held against would be noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from faults.planting import Fault, plant
from tenure import Ledger, Status, open_store
from tenure.core.run import Claim
from tenure.store import Store
from tenure.testing._parent import dying_with_parent
from tenure.testing.chaos.noted import NotedStore, read
from tenure.testing.chaos.verdict import CALLS, judge

pytestmark = pytest.mark.anyio


def _played(*arguments: str, source: Path | None = None) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": str(source)} if source else dict(os.environ)
    command = [sys.executable, "-m", "tenure.testing.chaos", "--processes", "1", *arguments]
    done = subprocess.run(dying_with_parent(command), env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _counts(kind: str, histories: int, seed: int) -> Counter[str]:
    code, said = _played("--kinds", f"{kind}={histories}", "--seed", str(seed))
    assert code == 0, said
    assert re.search(rf"^{histories} histories, 0 violations", said, re.MULTILINE), said
    told = re.search(rf"^{kind}: {histories} histories \((.*)\), 0 violations$", said, re.MULTILINE)
    assert told is not None, said
    counts = Counter({name: int(count) for name, count in re.findall(r"([^,]+?) (\d+)(?:, |$)", told[1])})
    stores = [count for name, count in counts.items() if name.startswith("on ")]
    assert min(stores) >= histories // 6, "every store has its share"
    assert counts["acknowledged commits"] > 0
    # What overlaps with too many calls without an answer is left to the other lines of the judge.
    assert counts["undecided"] <= histories // 20, said
    return counts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_i14_three_hundred_deaths_at_any_point_on_any_store_repeat_only_what_was_in_flight() -> None:
    counts = _counts("kill", 300, seed=7)
    assert counts["points hit"] >= 300
    assert counts["takeovers"] >= 150


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_i01_who_is_frozen_past_its_lease_a_hundred_and_twenty_times_lands_nothing_afterwards() -> None:
    counts = _counts("freeze", 120, seed=7)
    assert counts["frozen"] >= 114
    assert counts["was told that its lease is lost"] >= 60
    assert counts["stale writes refused"] >= 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_i05_a_blocked_loop_or_a_held_interpreter_costs_the_lease_and_nothing_else() -> None:
    counts = _counts("stall", 20, seed=7)
    assert counts["stalled: interpreter"] >= 5
    assert counts["stalled: loop"] >= 2
    assert counts["was told that its lease is lost"] >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_i07_i09_two_hundred_broken_roads_lose_nothing_that_was_acknowledged() -> None:
    counts = _counts("road", 200, seed=7)
    assert sum(count for name, count in counts.items() if name.startswith("broken: ")) >= 190
    assert counts["calls without an answer"] >= 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_i01_to_i14_hold_in_forty_histories_of_fleets_under_a_mix_of_blows() -> None:
    counts = _counts("histories", 40, seed=7)
    assert min(counts["killed"], counts["frozen"], counts["stalled"]) >= 4
    assert counts["linearizable"] >= 70


FAULTS = [
    Fault(
        name="grant not compared",
        file="core/rules.py",
        old="return (run.token, run.nonce, run.epoch) == (grant.token, grant.nonce, grant.epoch)",
        new="return run.epoch == grant.epoch",
        by="freeze=40",
        caught="had been granted",
    ),
    Fault(
        name="already without its digest",
        file="core/rules.py",
        old="return found.row == change.row.digest",
        new="return bool(found.row)",
        by="freeze=16",
        caught="it landed",
    ),
    Fault(
        name="a replay that forgets",
        file="steps.py",
        old="if found is not None and not self.void(found):",
        new="if found is not None and self.void(found):",
        by="histories=4",
        caught="has two results in the journal",
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    source = plant(fault, tmp_path)
    # A grant that nobody compares shows where a sleeper wakes between two writes of the other: some three times in 40.
    code, said = 0, ""
    for seed in range(3, 203, 40):
        code, said = _played("--kinds", fault.by, "--stores", "sqlite", "--seed", str(seed), source=source)
        if code:
            break
    assert code == 1, said
    assert fault.caught in said
    assert "python -m tenure.testing.chaos --kinds" in said, "how to play it again is said"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--kinds", "kill=many"], "kill=many says no number of histories"),
        (["--kinds", "kill=1", "--stores", "mysql"], "no store mysql; there are sqlite, "),
        (["--kinds", "power=1", "--stores", "postgres"], "nothing would be judged"),
    ],
)
def test_what_would_judge_nothing_is_refused(arguments: list[str], said: str) -> None:
    code, told = _played(*arguments)
    assert (code, said in told, "Traceback" in told) == (2, True, False), told


async def test_what_a_fleet_is_held_against_is_noticed(tmp_path: Path) -> None:
    store = cast("Store", NotedStore(open_store("memory://"), tmp_path))
    async with store, Ledger(store) as ledger:
        await ledger.submit("steps", "h", id="h")
        async with ledger.hold("h") as lease:
            for name in CALLS["steps"]:
                await lease.record(name, f"number of {name}", step=1)
            await lease.settle(value=[f"number of {name}" for name in CALLS["steps"]])
        run, rows = await ledger.load("h"), await store.tail("h")
        result: list[str] = await ledger.handle("h").result()
    asked = [one for one in read(tmp_path) if one.change.run == "h"]
    lines: list[dict[str, Any]] = [{"what": "called", "name": name, "attempt": 1} for name in CALLS["steps"]]
    granted = [{"what": "granted", "token": n, "ordinal": n} for n in (1, 2)]
    stale = {"what": "stale", "pid": 2, "landed": False}

    def found(**given: Any) -> str:
        said = {"run": run, "rows": rows, "result": result, "lines": [*granted, *lines, stale], "asked": asked, **given}
        counts = Counter[str]()
        return "; ".join(
            judge(said["run"], said["rows"], said["result"], lines=said["lines"], asked=said["asked"], counts=counts)
        )

    assert found() == ""
    assert "gone" in found(run=None)
    assert "it is running" in found(run=replace(run, status=Status.RUNNING))
    assert "does not verify" in found(rows=rows[:-1])
    assert "its result is" in found(result=result[:-1])
    assert "two results" in found(rows=[*rows, rows[2]])
    assert "holds the results of" in found(rows=[row for row in rows if row is not rows[2]])
    assert "made again by a later attempt" in found(lines=[{**lines[0], "attempt": 2}])
    assert "is not in order" in found(lines=[granted[0], {**granted[1], "ordinal": 1}])
    assert "do not rise" in found(run=replace(run, grants=run.grants * 2))
    assert "it landed" in found(lines=[{**stale, "landed": True}])
    later = replace(run.grants[0], token=run.grants[0].token + 1, ordinal=2, from_ms=rows[-1].at_ms - 1)
    assert "is not in the journal" in found(rows=[row for row in rows if row is not rows[-1]])
    assert "other bytes stand there" in found(rows=[row for row in rows if row is not rows[3]])
    assert "no order of its calls" in found(asked=[one for one in asked if not isinstance(one.change, Claim)])
    assert "had been granted" in found(run=replace(run, grants=(*run.grants, later)))
