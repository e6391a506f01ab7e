"""A process that dies at any boundary of an agent's run: another process brings the run to the same end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenure import Ledger, Status, open_store
from tenure.core import build
from tenure.core.run import How
from tenure.testing.chaos.run import WALK
from tenure.testing.chaos.stage import Stage, stage
from tenure.testing.crashing import DIED, EXPECTED, Point, Side, account, points, violations
from tenure.testing.models import CallLog

POINTS = [point for point in points() if point.side in (Side.BEFORE, Side.AFTER)]


async def _bury(ledger: Ledger) -> int:
    """What a supervisor does about children that died: it forfeits their grants, in their name."""
    buried = 0
    async for run in ledger.find():
        if run.status is Status.RUNNING:
            await ledger.ask(build.end(run=run.id, how=How.FORFEIT, token=run.token, nonce=run.nonce))
            buried += 1
    return buried


def _order(folder: Path, **given: Any) -> dict[str, Any]:
    url = f"sqlite:///{folder}/runs.db"
    return {"url": url, "namespace": "default", "folder": str(folder), "run": "", "seed": "", "ttl": 30, **given}


async def _played(forks: Stage, orders: Iterable[dict[str, Any]], folder: Path) -> list[int]:
    processes = [await forks.fork(f"{WALK}:walk", order, errors=folder / "errors") for order in orders]
    return [await process.ended() for process in processes]


@pytest.mark.slow
async def test_o14_o16_o17_b136_b137_b141_i14_a_death_at_any_boundary_repeats_only_what_was_in_flight(
    tmp_path: Path,
) -> None:
    dies = {"blow": "exit", "inside": 0.5}
    orders = {point: _order(tmp_path, run=f"r{n}", point=str(point), **dies) for n, point in enumerate(POINTS)}
    url = _order(tmp_path)["url"]
    async with stage(WALK) as forks, open_store(url) as store, Ledger(store) as ledger:
        for point, asked in orders.items():
            assert await _played(forks, [asked], tmp_path) == [DIED], point
        # All but the one that was never there, the two that nobody had claimed, and the one that had settled.
        assert await _bury(ledger) == len(POINTS) - 4
        assert await _played(forks, [_order(tmp_path, sweeps=True)], tmp_path) == [0], (
            "a sweep recovers what was running"
        )
        never_held = [o for p, o in orders.items() if p.unit == "create" or (p.unit, p.side) == ("claim", Side.BEFORE)]
        assert await _played(forks, [{**order, "point": ""} for order in never_held], tmp_path) == [0] * 3
        lines = CallLog(tmp_path / "calls.log").read()
        for point, asked in orders.items():
            run, rows = await ledger.load(asked["run"]), await store.tail(asked["run"])
            calls = account(rows, [line for line in lines if line["run"] == run.id])
            assert violations(run, rows, await ledger.handle(run.id).result(), calls, [point]) == [], point


async def test_what_is_held_against_a_recovery_is_noticed(tmp_path: Path) -> None:
    order = _order(tmp_path, run="r")
    async with stage(WALK) as forks, open_store(order["url"]) as store, Ledger(store) as ledger:
        assert await _played(forks, [order], tmp_path) == [0]
        run, rows = await ledger.load("r"), await store.tail("r")
        lines = CallLog(tmp_path / "calls.log").read()
    died = [Point.parse("write model:2 before")]
    assert violations(run, rows, EXPECTED, account(rows, lines), died) == []

    def found(run_: object = run, rows_: object = rows, result: object = EXPECTED, lines_: object = lines) -> str:
        return "; ".join(violations(run_, rows_, result, account(rows_, lines_), died))  # type: ignore[arg-type]

    one = next(line for line in lines if line["what"] == "tool/made")
    assert "not completed" in found(run_=replace(run, status=Status.RUNNING))
    assert "does not verify" in found(rows_=[*rows[:-1], replace(rows[-1], body=rows[-2].body)])
    assert "its output" in found(result={"seen": 2, "worth": 42})
    assert "do not rise" in found(run_=replace(run, grants=(*run.grants, run.grants[0])))
    assert "what landed" in found(rows_=rows[:-3])
    assert "twice" in found(rows_=[*rows, rows[-2]])
    assert "what was made" in found(lines_=[line for line in lines if line is not one])
    assert "had landed and was made again" in found(lines_=[*lines, {**one, "attempt": 2}])
    assert "was not in flight" in found(lines_=[*lines, {**one, "attempt": 1}])
    assert "in one attempt" in found(lines_=[*lines, one])
