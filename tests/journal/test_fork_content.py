"""What a fork carries beside its state: the whole of what was cut; and where it ends."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import CheckpointedAgent, InvalidContent, Ledger, ModelRequest, Status, Store, tool
from tenure.agent.agent import Agent
from tenure.core import canonical
from tenure.core.messages import ToolCall, assistant
from tenure.core.run import Delete, Verdict
from tenure.testing.models import FunctionModel


async def test_a_fork_of_a_fork_can_read_the_whole_of_a_result_that_was_cut(ledger: Ledger, store: Store) -> None:
    @tool(max_output=10)
    async def look() -> str:
        return "0123456789" * 20

    def model(request: ModelRequest) -> Any:
        call = ToolCall(id=f"c{request.step}", name="look", arguments={})
        return assistant("", call) if request.step < 3 else "done"

    agent = Agent(FunctionModel(model), name="reader", tools=[look])
    assert await CheckpointedAgent(agent, ledger).run("go", id="p1") == "done"
    whole = canonical.digest(b"0123456789" * 20)
    async with Ledger(store, redact=True) as redacting:
        await redacting.fork("p1", at=2, id="p2")
    assert await store.blob("p2", whole) == b"0123456789" * 20
    await ledger.fork("p2", at=2, id="p3")
    assert (await store.commit(Delete(run="p1"))).verdict is Verdict.LANDED
    assert await store.blob("p3", whole) == b"0123456789" * 20
    async for _, event in ledger.handle("p3").events():
        assert whole in str(event["agent"]["messages"])
    assert await CheckpointedAgent(agent, ledger).recover("p3") == "done"


async def test_a_state_that_does_not_fit_the_beginning_of_a_fork_is_refused_and_says_what_to_do(
    ledger: Ledger,
) -> None:
    @tool
    async def look() -> str:
        return "x" * (3 << 20)

    def model(request: ModelRequest) -> Any:
        call = ToolCall(id=f"c{request.step}", name="look", arguments={})
        return assistant("", call) if request.step < 3 else "done"

    agent = Agent(FunctionModel(model), name="reader", tools=[look])
    assert await CheckpointedAgent(agent, ledger).run("go", id="p1") == "done"
    assert (await (await ledger.fork("p1", at=1, id="p2")).load()).status is Status.QUEUED
    with pytest.raises(InvalidContent, match="fork it at an earlier place"):
        await ledger.fork("p1", at=2, id="p3")
