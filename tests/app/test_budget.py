"""Budgets of plain handlers: attempts and wall time, over all calls and workers."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from app.calls import fleet
from tenure import ActiveRun, App, Budget, NotAllowed, Status
from tenure.clock import ManualClock


async def test_a_run_that_killed_its_holders_often_enough_fails_by_name() -> None:
    app, calls = App(), []

    @app.kind("k", budget=Budget(attempts=2))
    async def handler(run: ActiveRun[Any], input: Any) -> str:
        calls.append(run.attempt)
        return "done"

    async def nothing(run: ActiveRun[Any]) -> None: ...

    clock = ManualClock()
    async with fleet(app, clock=clock) as found:
        for run_id in ("r1", "r2"):
            await found.ledger.submit("k", None, id=run_id)
            await found.die(run_id, nothing)
        clock.advance(seconds=60)  # the back-off after a death
        assert (await found.call("r1")).status is Status.COMPLETED, "attempt 2 of 2"
        await found.die("r2", nothing)
        clock.advance(seconds=60)
        run = await found.call("r2")
    assert calls == [2]
    assert (run.status, run.outcome and run.outcome.code) == (Status.FAILED, "OUT_OF_BUDGET")
    assert run.outcome is not None
    assert "attempts: this is attempt 3 of 2" in run.outcome.message


async def test_wall_time_ends_a_call_and_no_retry_is_left_for_it() -> None:
    app = App()

    @app.kind("k", retries=5, budget=Budget(wall_time=0.2))
    async def handler(run: ActiveRun[Any], input: Any) -> None:
        await anyio.sleep(60)

    async with fleet(app) as found:
        await found.ledger.submit("k", None, id="r1")
        run = await found.call("r1")
    assert (run.status, run.failures) == (Status.FAILED, 0)
    assert run.outcome is not None
    assert (run.outcome.code, "wall_time: 0.2 s" in run.outcome.message) == ("OUT_OF_BUDGET", True)


async def test_wall_time_counts_what_earlier_holders_used_and_no_waiting() -> None:
    app, calls, clock = App(), [], ManualClock()

    @app.kind("k", budget=Budget(wall_time=60))
    async def handler(run: ActiveRun[Any], input: Any) -> str:
        calls.append(run.attempt)
        return "done"

    async def use(run: ActiveRun[Any]) -> None:
        await run.lease.checkpoint(1)
        clock.advance(seconds=40)
        await run.lease.checkpoint(2)

    async def nothing(run: ActiveRun[Any]) -> None: ...

    async with fleet(app, clock=clock, ttl=300) as found:
        for run_id in ("r1", "r2"):
            await found.ledger.submit("k", None, id=run_id)
        for _ in range(2):
            await found.die("r1", use)
            await found.die("r2", nothing)
            clock.advance(hours=1)  # nobody holds them
        used, waited = await found.call("r1"), await found.call("r2")
    assert (used.status, waited.status) == (Status.FAILED, Status.COMPLETED)
    assert calls == [3]


def test_a_handler_has_no_turns_to_limit() -> None:
    app = App()
    with pytest.raises(NotAllowed, match="has no turns to limit"):
        app.kind("k", budget=Budget(turns=3))(lambda run, given: None)
