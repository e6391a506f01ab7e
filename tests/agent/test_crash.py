"""A process that dies at any boundary of an agent's run: another process brings the run to the same end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tenure import Ledger, Status, open_store
from tenure.core import build
from tenure.core.run import How
from tenure.testing.crash_stage import Order, Stage
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


@pytest.mark.slow
async def test_o14_o16_o17_b136_b137_b141_i14_a_death_at_any_boundary_repeats_only_what_was_in_flight(
    tmp_path: Path,
) -> None:
    order = Order(url=f"sqlite:///{tmp_path}/runs.db", namespace="default", log=str(tmp_path / "calls.jsonl"))
    orders = {point: replace(order, run=f"r{n}", point=str(point)) for n, point in enumerate(POINTS)}
    async with Stage() as stage, open_store(order.url) as store, Ledger(store) as ledger:
        assert set(await stage.play(list(orders.values()))) == {DIED}
        # All but the one that was never there, the two that nobody had claimed, and the one that had settled.
        assert await _bury(ledger) == len(POINTS) - 4
        assert await stage.play([order]) == [0], "a sweep recovers what was running"
        never_held = [o for p, o in orders.items() if p.unit == "create" or (p.unit, p.side) == ("claim", Side.BEFORE)]
        assert await stage.play([replace(o, point="") for o in never_held]) == [0] * 3
        lines = CallLog(order.log).read()
        for point, asked in orders.items():
            run, rows = await ledger.load(asked.run), await store.tail(asked.run)
            calls = account(rows, [line for line in lines if line["run"] == run.id])
            assert violations(run, rows, await ledger.handle(run.id).result(), calls, [point]) == [], point


async def test_what_is_held_against_a_recovery_is_noticed(tmp_path: Path) -> None:
    order = Order(url=f"sqlite:///{tmp_path}/runs.db", namespace="default", log=str(tmp_path / "calls.jsonl"), run="r")
    async with Stage() as stage, open_store(order.url) as store, Ledger(store) as ledger:
        assert await stage.play([order]) == [0]
        run, rows = await ledger.load("r"), await store.tail("r")
        lines = CallLog(order.log).read()
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
