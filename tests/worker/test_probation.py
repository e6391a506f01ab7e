"""Runs that took a process with them: counted, set aside at the limit, and alone until they land a step."""

from typing import Any

import anyio
import pytest

from tenure import ActiveRun, App, RunQuarantined, Status
from worker.kit import counting, dead, opened, until, working

pytestmark = pytest.mark.anyio


async def test_i22_three_deaths_and_no_fourth_start() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await ledger.submit("k", None, id="poison")
        await dead(ledger, "poison")
        # The back-off after the second death is in the record; the store's clock is the test's.
        run = await dead(ledger, "poison")
        assert run.crashes == 1
        await until(lambda: _due(ledger, "poison"))
        run = await dead(ledger, "poison")
        assert run.crashes == 2
        await until(lambda: _due(ledger, "poison"))
        async with working(counting(started), ledger):
            with pytest.raises(RunQuarantined):
                await ledger.handle("poison").result(timeout=5)
        run = await ledger.load("poison")
        assert (run.status, run.crashes, started) == (Status.QUARANTINED, 3, [])
        assert [line.reason for line in run.grants] == ["signal 9"] * 3


async def _due(ledger: Any, run_id: str) -> bool:
    run = await ledger.load(run_id)
    return bool((await ledger.store.facts()).now_ms >= run.due_ms)


async def test_i22_a_run_that_shared_a_death_is_alone_until_it_lands_a_step_and_the_next_comes_after() -> None:
    app, beside, gate = App(), [], anyio.Event()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        async def first() -> None:
            beside.append((run.id, len(worker.slots.executions)))
            await anyio.sleep(0.05)

        await run.step("first", first)
        await run.step("second", gate.wait)

    async with opened() as ledger:
        for n in range(4):
            await ledger.submit("k", None, id=f"r{n}")
            await dead(ledger, f"r{n}")
        async with working(app, ledger) as worker:
            await until(lambda: len(beside) == 4)
            assert [count for _, count in beside] == [1, 1, 1, 1]
            # All have served their probation, so all go on side by side.
            await until(lambda: len(worker.slots.executions) == 4)
            gate.set()
            await until(lambda: not worker.slots.executions)
        runs = [run async for run in ledger.find()]
        assert [(run.status, run.attempt, run.crashes) for run in runs] == [(Status.COMPLETED, 2, 0)] * 4


async def test_a_run_that_needs_an_empty_process_gets_one_though_others_keep_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.slots.PATIENCE_S", 0.2)
    app, started = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        started.append(run.id)
        await run.step("work", anyio.sleep, 0.05)

    async with opened() as ledger:
        await ledger.submit("k", None, id="suspect")
        await dead(ledger, "suspect")
        await ledger.submit("k", None, id="r0")
        async with working(app, ledger, concurrency=2):
            with anyio.fail_after(10):
                while "suspect" not in started:
                    # There is always something that could share the process.
                    await ledger.submit("k", None)
                    await anyio.sleep(0.02)
    assert started[0] != "suspect"
