"""Runs that wait under a worker: they take none of its slots, and what is said wakes it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tenure import ActiveRun, Agent, App, Ledger, Status, ToolCall, Where, Worker, open_store, tool
from tenure.core.messages import assistant
from tenure.testing.models import FunctionModel
from worker.kit import until

pytestmark = pytest.mark.anyio

NEVER_S = 3600.0


def listening() -> App:
    app = App()

    @app.kind("listener")
    async def listener(run: ActiveRun[Any], _: Any) -> Any:
        return await run.wait_for("go")

    @app.kind("plain")
    async def plain(run: ActiveRun[Any], _: Any) -> str:
        return run.id

    return app


@pytest.mark.parametrize("kind", ["memory", "sqlite", "valkey", "postgres"])
async def test_a_decision_or_signal_wakes_a_worker_by_the_store_s_bell_and_not_by_its_next_look(
    kind: str, tmp_path: Path, namespace: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks by itself: what wakes the worker in the time of this test is the bell.
    monkeypatch.setattr("tenure.leader.LOOK_S", NEVER_S)
    monkeypatch.setattr("tenure.worker.LOOK_AT_LEAST_S", (NEVER_S, NEVER_S))
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    url = urls[kind] if kind in urls else request.getfixturevalue(f"{kind}_url")

    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    def rule(request: Any) -> Any:
        return assistant("", ToolCall(id="c1", name="pay", arguments={})) if request.step == 1 else "done"

    app = listening()
    app.agent(Agent(FunctionModel(rule), name="cashier", tools=[pay]))
    async with open_store(url, namespace=namespace) as store, Ledger(store) as ledger, Worker(app, ledger, drain=0):
        one = await ledger.submit("listener", None, id="r1")
        two = await ledger.submit("cashier", "go", id="r2")
        for handle in (one, two):

            async def waits(handle: Any = handle) -> bool:
                return (await handle.load()).status is Status.SUSPENDED

            await until(waits, seconds=60)
        await one.signal("go", 7)
        await two.decide("approve:c1", "approve", by="ann")
        assert (await one.result(timeout=60), await two.result(timeout=60)) == (7, "done")


async def test_runs_that_wait_take_no_slot_of_a_worker_and_leave_nothing_in_it() -> None:
    async with (
        open_store("memory://") as store,
        Ledger(store) as ledger,
        Worker(listening(), ledger, concurrency=1, drain=0) as worker,
    ):
        handles = [await ledger.submit("listener", None, id=f"r{n}") for n in range(40)]

        async def all_wait() -> bool:
            found = [run async for run in ledger.find(Where(status=(Status.SUSPENDED,)), page_size=50)]
            return len(found) == len(handles)

        await until(all_wait, seconds=60)
        await until(lambda: not worker.slots.executions, seconds=60)
        held = [trust.grant.run for trust in ledger.pulse.held()]
        assert [run for run in held if not run.startswith("_")] == [], "nothing is renewed"
        assert (await ledger.submit("plain", None, id="p")).id == "p"
        assert await ledger.handle("p").result(timeout=60) == "p"
        for number, handle in enumerate(handles):
            await handle.signal("go", number)
        with anyio.fail_after(120):
            assert [await handle.result() for handle in handles] == list(range(40))
