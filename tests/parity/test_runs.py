"""What one run promises over its attempts, line by line; lines that other tests prove carry their ids there."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent.parts import call, events
from tenure import Agent, CheckpointedAgent, LeaseHeld, Ledger, RunSuspended, Status, Store, Usage, tool
from tenure.agent.model import ModelReply
from tenure.core.messages import assistant
from tenure.testing.models import FunctionModel

pytestmark = pytest.mark.anyio


async def test_o33_m_ob02_what_was_suspended_and_what_went_on_stand_in_one_journal_each_under_its_grant(
    ledger: Ledger, store: Store
) -> None:
    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    def answer(request: Any) -> ModelReply:
        message = assistant("", call("c1", "pay")) if request.step == 1 else assistant("done")
        return ModelReply(message=message, usage=Usage(output_tokens=1))

    agent = Agent(FunctionModel(answer), name="cashier", tools=[pay])
    with pytest.raises(RunSuspended):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    async with Ledger(store, owner="another", ttl=5, code_version="2") as other:
        durable = CheckpointedAgent(agent, other)
        await durable.decide("w1", "approve:c1", "approve", by="ann")
        assert await durable.recover("w1") == "done"
        starts = [e for e in await events(other, "w1") if e["type"] == "attempt/start"]
        assert (await other.handle("w1").verify()).ok
    run = await ledger.load("w1")
    assert [(e["ordinal"], e["attempt"], e["code_version"]) for e in starts] == [(1, 1, ""), (2, 1, "2")]
    assert [line.ended for line in run.grants] == ["suspended", "completed"]
    assert [e["owner"] for e in starts] == [line.owner for line in run.grants]


async def test_m_rs19_a_checkpoint_renews_the_lease_in_the_same_write(ledger: Ledger, store: Store) -> None:
    await ledger.submit("k", None, id="r1")
    async with ledger.hold("r1") as lease:
        before = await store.load("r1")
        await anyio.sleep(0.05)
        await lease.checkpoint("one")
        after = await store.load("r1")
        assert before is not None
        assert after is not None
        assert after.lease_until_ms >= before.lease_until_ms + 50
        assert (after.version, after.token) == (before.version + 1, before.token)


async def test_m_sm01_values_that_runs_share_are_written_by_who_holds_them_and_kept_with_their_history(
    ledger: Ledger, store: Store
) -> None:
    """As the page on waiting has it: a run that no worker serves is the place."""
    board = await ledger.submit("board", None, id="team-7")

    async def add(name: str) -> None:
        async with Ledger(store, owner=name, ttl=5) as other, other.hold(board.id, wait=30) as lease:
            # Read and write as one: nobody else holds it meanwhile.
            found = [event async for _, event in lease.events() if event["type"] == "checkpoint"]
            total = found[-1]["value"]["all/total"] if found else 0
            await anyio.sleep(0.01)
            await lease.checkpoint({"all/total": total + 1, f"{name}/seen": total})

    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(add, f"a{n}")
    values: dict[str, int] = {}
    async for _, event in board.events():
        if event["type"] == "checkpoint":
            values |= event["value"]
    assert values.pop("all/total") == 8
    assert sorted(values.values()) == list(range(8)), "no writer overwrote what another had written"
    async with ledger.hold(board.id):
        with pytest.raises(LeaseHeld):
            async with ledger.hold(board.id):
                pytest.fail("one writer at a time")
    assert (await board.load()).status is Status.QUEUED
