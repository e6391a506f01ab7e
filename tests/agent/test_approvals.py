"""Calls that a person approves first: what is asked, what is bound, what runs, and how often."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent.desk import Desk, recorder_of
from agent.parts import agent_of, call, shown
from tenure import (
    Agent,
    CheckpointedAgent,
    Ledger,
    NotAllowed,
    RunSuspended,
    StaleDecision,
    Status,
    Store,
    tool,
)
from tenure.core.messages import assistant
from tenure.testing.models import FunctionModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def desk(ledger: Ledger, store: Store) -> Desk:
    return Desk(ledger, store)


async def test_m_ap02_m_ap03_m_ap04_m_ap05_o30_a_call_waits_for_its_approval_before_it_is_made(desk: Desk) -> None:
    agent = recorder_of(desk, "reviewed")
    durable = CheckpointedAgent(agent, desk.ledger)
    with pytest.raises(RunSuspended, match="tenure approvals approve") as caught:
        await durable.run("go", id="w1")
    (name,) = caught.value.requests
    run = await desk.handle.load()
    assert (run.status, run.wants, run.owner, desk.made) == (Status.SUSPENDED, ("approve:c1",), "", [])
    (request,) = await durable.requests("w1")
    assert (request.id, request.digest) == (name, caught.value.requests[name].digest)
    assert request.content == {
        "boundary": "tool",
        "agent": "walker",
        "scope": "",
        "call": "c1",
        "name": "record",
        "arguments": {"message": "reviewed"},
        "read_as": {"message": "reviewed"},
        "consequential": False,
    }
    for again in (durable.recover("w1"), durable.run("go", id="w1")):
        with pytest.raises(RunSuspended) as still:
            await again
        assert list(still.value.requests) == ["approve:c1"]
    assert desk.made == []


async def test_o29_o31_m_ap13_b127_b130_what_was_approved_runs_once_and_nobody_is_asked_again(
    desk: Desk,
) -> None:
    asked: list[int] = []

    def rule(request: Any) -> Any:
        asked.append(request.step)
        return assistant("", call("c1", "record", message="reviewed" if len(asked) == 1 else "changed"))

    agent = Agent(FunctionModel(lambda r: rule(r) if r.step == 1 else "done"), name="walker", tools=[desk.recorder()])
    durable = await desk.suspended(agent)
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    assert await durable.recover("w1") == "done"
    assert (asked, desk.made) == ([1], ["reviewed"]), "the model is not asked again, and the call is the approved one"
    assert shown(agent)["c1"] == ("recorded reviewed", False)
    types = [event["type"] async for _, event in desk.handle.events()]
    assert types.count("request/opened") == types.count("request/decided") == types.count("call/started") == 1
    assert types.index("record") < len(types) - 1 - types[::-1].index("assistant/message"), "recorded, then the model"
    run = await desk.handle.load()
    assert (run.requests, run.wants) == ({}, ())


async def test_i15_consumption_and_start_of_a_call_are_one_commit(desk: Desk) -> None:
    durable = await desk.suspended(recorder_of(desk, "reviewed"))
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    await durable.recover("w1")
    by_seq: dict[str, list[str]] = {}
    async for address, event in desk.handle.events():
        by_seq.setdefault(address.partition(".")[0], []).append(event["type"])
    (started,) = [types for types in by_seq.values() if "call/started" in types]
    assert {"inbox/consumed", "request/decided", "call/started"} <= set(started)


async def test_o32_m_ap12_a_rejection_is_told_to_the_model_which_goes_on(desk: Desk) -> None:
    agent = recorder_of(desk, "reviewed")
    durable = await desk.suspended(agent)
    await durable.decide("w1", "approve:c1", "reject", by="ann", reason="wrong account")
    assert await durable.recover("w1") == "done"
    assert desk.made == []
    assert shown(agent)["c1"] == ("Rejected: ann rejected this call: wrong account. It was not made.", True)
    (decision,) = await desk.handle.decisions()
    assert (decision.approved, decision.by, decision.reason) == (False, "ann", "wrong account")


async def test_b127_m_ap11_m_ap_l2_a_call_that_this_code_would_read_otherwise_is_asked_about_anew(desk: Desk) -> None:
    durable = await desk.suspended(recorder_of(desk, "reviewed"))
    (old,) = await durable.requests("w1")

    @tool(name="record", approval=True)
    async def changed(message: str, also: str = "bcc") -> str:
        desk.made.append(f"{message} {also}")
        return "recorded"

    later = CheckpointedAgent(agent_of(changed, calls=(call("c1", "record", message="reviewed"),)), desk.ledger)
    await durable.decide("w1", old, "approve", by="ann")
    with pytest.raises(RunSuspended):
        await later.recover("w1")
    assert desk.made == [], "what was approved is not what would run"
    (new,) = await later.requests("w1")
    assert (new.id, new.before["read_as"]) == ("approve#2:c1", {"message": "reviewed"})
    with pytest.raises(StaleDecision):
        await later.decide("w1", new.id, "approve", by="ann", digest=old.digest)
    await later.decide("w1", new, "approve", by="ann")
    assert await later.recover("w1") == "done"
    assert desk.made == ["reviewed bcc"]


async def test_b131_m_ap16_several_requests_wait_together_in_order_and_outlive_all_that_happens(desk: Desk) -> None:
    agent = recorder_of(desk, "zwei", "eins", "drei")
    durable = await desk.suspended(agent)
    names = ["approve:c1", "approve:c2", "approve:c3"]
    assert [request.id for request in await durable.requests("w1")] == names
    await durable.decide("w1", "approve:c2", "approve", by="ann")
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    assert desk.made == ["eins"]
    await desk.handle.signal("anything")
    assert await durable.recover_all() == []
    assert [request.id for request in await durable.requests("w1")] == ["approve:c1", "approve:c3"]
    await durable.decide("w1", "approve:c3", "reject", by="ann")
    await durable.decide("w1", "approve:c1", "approve", by="bob")
    assert await durable.recover("w1") == "done"
    assert sorted(desk.made) == ["eins", "zwei"]
    assert [is_error for _, is_error in shown(agent).values()] == [False, False, True]
    assert len(await desk.handle.decisions()) == 3


async def test_one_is_decided_while_the_resumed_run_makes_another(desk: Desk) -> None:
    gate, working = anyio.Event(), anyio.Event()

    @tool(approval=True)
    async def slow() -> str:
        working.set()
        await gate.wait()
        desk.made.append("slow")
        return "slow"

    agent = agent_of(slow, desk.recorder(), calls=(call("c1", "slow"), call("c2", "record", message="second")))
    durable = await desk.suspended(agent)
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    async with anyio.create_task_group() as tasks:
        found: list[str] = []

        async def resumed() -> None:
            found.append(await durable.recover("w1"))

        tasks.start_soon(resumed)
        await working.wait()
        assert (await desk.handle.load()).status is Status.RUNNING
        await durable.decide("w1", "approve:c2", "approve", by="bob")
        gate.set()
    assert (found, desk.made) == (["done"], ["slow", "second"]), "in one go, without another suspension"


async def test_what_needs_no_approval_does_not_wait_and_people_are_asked_meanwhile(desk: Desk) -> None:
    gate, working = anyio.Event(), anyio.Event()

    @tool
    async def look() -> str:
        working.set()
        await gate.wait()
        return "seen"

    agent = agent_of(look, desk.recorder(), calls=(call("c1", "look"), call("c2", "record", message="x")))
    durable = CheckpointedAgent(agent, desk.ledger)
    async with anyio.create_task_group() as tasks:
        found: list[str] = []

        async def first() -> None:
            found.append(await durable.run("go", id="w1"))

        tasks.start_soon(first)
        await working.wait()
        (request,) = await durable.requests("w1")
        await durable.decide("w1", request, "approve", by="ann")
        gate.set()
    assert (found, desk.made) == (["done"], ["x"])


async def test_a_predicate_says_which_calls_need_an_approval(desk: Desk) -> None:
    agent = recorder_of(desk, "small", "LARGE", approval=lambda arguments: arguments["message"].isupper())
    durable = await desk.suspended(agent)
    assert desk.made == ["small"]
    assert [request.id for request in await durable.requests("w1")] == ["approve:c2"]

    def broken(_: Any) -> bool:
        raise ValueError

    await durable.decide("w1", "approve:c2", "approve", by="ann")
    assert await durable.recover("w1") == "done"
    other = CheckpointedAgent(recorder_of(desk, "x", approval=broken), desk.ledger)
    with pytest.raises(RunSuspended):
        await other.run("go", id="w2")
    with pytest.raises(NotAllowed, match="approval of tool"):
        tool(approval="yes")(anyio.sleep)  # type: ignore[call-overload]
