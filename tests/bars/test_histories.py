"""The bar of the histories, in its short form; and that what it looks for, it would find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from history_verdict import CALLS, judge, results_of
from tenure import Ledger, Status, open_store
from tenure.testing.servers import VALKEY9

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.slow
def test_i01_workers_that_are_killed_and_frozen_land_nothing_stale_and_lose_nothing(valkey_url: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "histories.py", "--histories", "20", "--seed", "7", "--store", "sqlite,valkey9"],
        env={**os.environ, VALKEY9.url_variable: valkey_url},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"^20 of 20 histories, 0 violations", done.stdout, re.MULTILINE), said
    counts = re.search(
        r"stale writes landed: 0, refused: (\d+); runs lost: 0 of (\d+); .* kill -9: (\d+); .*: (\d+); fell",
        done.stdout,
    )
    assert counts is not None, said
    refused, runs, killed, frozen = map(int, counts.groups())
    assert runs >= 40
    assert min(killed, frozen) >= 4, "both sorts of blows fell"
    assert refused >= frozen, "who slept past a lease wrote all the same"


async def test_what_a_history_looks_for_it_finds() -> None:
    async with open_store("memory://") as store, Ledger(store) as ledger:
        await ledger.submit("steps", "h", id="h")
        async with ledger.hold("h") as lease:
            for name in CALLS["steps"]:
                await lease.record(name, f"number of {name}", step=1)
            await lease.settle(value=[f"number of {name}" for name in CALLS["steps"]])
        run, rows = await ledger.load("h"), await store.tail("h")
        result: list[str] = await ledger.handle("h").result()
    told: list[dict[str, Any]] = [
        {"what": "landed", "worker": "w1", "name": name, "sha": sha}
        for row in rows
        for name, sha in results_of(row).items()
    ]
    assert [line["name"] for line in told] == list(CALLS["steps"])
    calls = [{"what": "called", "worker": "w1", "name": name, "attempt": 1} for name in CALLS["steps"]]
    stale = {"what": "stale", "worker": "w2", "landed": False}
    granted = [{"what": "granted", "worker": f"w{n}", "token": n, "ordinal": n} for n in (1, 2)]
    good = judge(run, rows, result, [*granted, *calls, *told, stale])
    assert (good.wrong, good.lost, good.stale_landed) == ([], 0, 0)
    assert (good.counts["results"], good.counts["told"], good.counts["stale refused"]) == (5, 5, 1)

    def found(**given: Any) -> str:
        said = {"run": run, "rows": rows, "result": result, "lines": told, **given}
        return "; ".join(judge(said["run"], said["rows"], said["result"], said["lines"]).wrong)

    assert judge(None, [], None, []).lost == judge(replace(run, status=Status.RUNNING), rows, result, told).lost == 1
    assert "does not verify" in found(rows=rows[:-1])
    assert "its result is" in found(result=result[:-1])
    assert "two results" in found(rows=[*rows, rows[2]])
    assert "holds the results of" in found(rows=[row for row in rows if row is not rows[2]])
    assert "it is not there" in found(lines=[*told, {**told[0], "name": "step:u9"}])
    assert "told of other bytes" in found(lines=[{**told[0], "sha": "0"}, *told])
    assert "not as the first" in found(lines=[*told, {**told[0], "sha": "0"}])
    assert "made again by a later attempt" in found(lines=[*told, {**calls[0], "attempt": 2}])
    assert "is not in order" in found(lines=[granted[0], {**granted[1], "ordinal": 1}])
    assert "do not rise" in found(run=replace(run, grants=run.grants * 2))
    assert judge(run, rows, result, [{**stale, "landed": True}]).stale_landed == 1
    later = replace(run.grants[0], token=run.grants[0].token + 1, ordinal=2, from_ms=rows[-1].at_ms - 1)
    assert judge(replace(run, grants=(*run.grants, later)), rows, result, told).stale_landed >= 1
