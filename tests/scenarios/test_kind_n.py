"""Scenarios of kind N, journal and replay: a torn tail and a full disk are in tests/journal, here the store."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import Agent, App, CheckpointedAgent, Ledger, RunQuarantined, Status, Store, Worker
from tenure.core.messages import ToolCall, assistant
from tenure.core.saying import result
from tenure.testing.models import FunctionModel

pytestmark = pytest.mark.anyio


def _answer(request: Any) -> Any:
    return "done" if request.step > 1 else assistant("", ToolCall(id="c1", name="look", arguments={}))


async def look() -> str:
    return "seen"


@pytest.mark.parametrize("store_url", ["sqlite", "valkey9", "postgres"], indirect=True)
async def test_b125_m_ck35_m_ck36_an_event_that_cannot_be_anchored_sets_its_run_aside_and_no_other(
    store: Store,
) -> None:
    agent = Agent(FunctionModel(_answer), name="walker", tools=[look])
    app = App()
    kind = app.agent(agent)
    async with Ledger(store) as ledger:
        await ledger.submit(agent, "go", id="torn")
        async with ledger.hold("torn") as lease:
            await lease.commit([result("c99", "of a call that no answer holds")])
        before = await store.tail("torn")
        await ledger.submit(kind, "go", id="whole")
        async with Worker(app, store, drain=1):
            with pytest.raises(RunQuarantined, match="look at `tenure show torn`"):
                await ledger.handle("torn").result(timeout=60)
            assert await ledger.handle("whole").result(timeout=60) == "done"
        run = await ledger.load("torn")
        assert (run.status, run.crashes) == (Status.QUARANTINED, 0)
        assert "a result of call c99 has no open call" in run.grants[-1].reason
        assert (await store.tail("torn"))[: len(before)] == before, "nothing is discarded"
        assert b'"tool:c99"' in before[1].body
        with pytest.raises(RunQuarantined):
            await CheckpointedAgent(agent, ledger).recover("torn")
