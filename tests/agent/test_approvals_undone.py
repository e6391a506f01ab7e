"""Requests that do not end in a plain yes: revoked, expired, forged, decided twice, in doubt."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent.desk import Desk, expire, recorder_of
from agent.parts import agent_of, shown
from tenure import (
    App,
    Approval,
    CheckpointedAgent,
    Ledger,
    NotAllowed,
    RequestClosed,
    RunConflict,
    RunFailed,
    RunSuspended,
    Status,
    Store,
    resolve,
    tool,
)
from tenure.testing import Inline

pytestmark = pytest.mark.anyio


@pytest.fixture
def desk(ledger: Ledger, store: Store) -> Desk:
    return Desk(ledger, store)


async def test_m_ap_l1_i15_a_revoked_approval_is_not_used_even_where_the_tool_wants_none_any_more(desk: Desk) -> None:
    durable = await desk.suspended(recorder_of(desk, "reviewed"))
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    await desk.handle.revoke("approve:c1", by="bob")
    with pytest.raises(RequestClosed, match="revoked first, by bob"):
        await desk.handle.revoke("approve:c1", by="ann")
    lax = CheckpointedAgent(recorder_of(desk, "reviewed", approval=None), desk.ledger)
    with pytest.raises(RunSuspended):
        await lax.recover("w1")
    assert desk.made == []
    (request,) = await durable.requests("w1")
    assert request.id == "approve#2:c1"
    await durable.decide("w1", request, "approve", by="bob")
    assert await lax.recover("w1") == "done"
    assert desk.made == ["reviewed"]


async def test_m_ap_l1_an_expired_request_is_asked_again_and_the_old_one_is_closed(desk: Desk) -> None:
    durable = await desk.suspended(recorder_of(desk, "x", approval=Approval(expires=0.1)))
    await expire(desk)
    with pytest.raises(RequestClosed):
        await durable.decide("w1", "approve:c1", "approve", by="ann")
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    assert (await desk.handle.load()).wants == ("approve#2:c1",)
    assert desk.made == []


async def test_expiry_counts_as_rejection_or_fails_the_run_where_the_tool_says_so(desk: Desk) -> None:
    agent = recorder_of(desk, "x", approval=Approval(expires=0.1, on_expiry="reject"))
    durable = await desk.suspended(agent)
    await expire(desk)
    assert await durable.recover("w1") == "done"
    assert shown(agent)["c1"] == ("Rejected: nobody approved this call in time. It was not made.", True)
    assert [decision.expired for decision in await desk.handle.decisions()] == [True]
    strict = CheckpointedAgent(recorder_of(desk, "x", approval=Approval(expires=0.1, on_expiry="fail")), desk.ledger)
    with pytest.raises(RunSuspended):
        await strict.run("go", id="w2")
    await expire(desk, "w2")
    with pytest.raises(RunFailed) as failed:
        await strict.recover("w2")
    assert failed.value.failure == "REQUEST_EXPIRED"
    assert desk.made == []


async def test_b133_a_result_is_not_taken_where_a_decision_is_due(desk: Desk) -> None:
    durable = await desk.suspended(recorder_of(desk, "reviewed"))
    with pytest.raises(RequestClosed, match="is decided and not resolved"):
        await resolve(desk.ledger, "w1", "c1", result="recorded by hand")
    with pytest.raises(NotAllowed, match="a result or any other value is none"):
        await durable.decide("w1", "approve:c1", {"result": "recorded by hand"}, by="ann")  # type: ignore[arg-type]
    assert await desk.store.inbox("w1") == []
    # Nor is one that somebody else's code has posted: it is consumed, counts for nothing, and a person is asked anew.
    from tenure.core import build
    from tenure.core.run import Ask

    digest = (await desk.handle.load()).requests["approve:c1"].digest
    forged = {"how": "result", "result": "recorded by hand", "approved": True}
    name = "approve:c1"
    await desk.ledger.ask(build.post(run="w1", item=name, name=name, ask=Ask.DECIDE, value=forged, request=digest))
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    assert (desk.made, (await desk.handle.load()).wants) == ([], ("approve#2:c1",))


async def test_a_decision_is_no_answer_to_how_a_call_ended(desk: Desk) -> None:
    agent = agent_of(desk.effect("pay", effect="ask"))
    await desk.abandon(agent)
    with pytest.raises(RunSuspended):
        await CheckpointedAgent(agent, desk.ledger).recover("w1")
    with pytest.raises(NotAllowed, match="tenure resolve w1"):
        await desk.handle.decide("resolve:c-pay", "approve", by="ann")


@pytest.mark.parametrize("options, again", [({}, 2), ({"consequential": True}, 1)])
async def test_b128_an_approved_call_in_doubt_follows_its_tool_s_policy_and_needs_no_second_approval(
    desk: Desk, options: dict[str, Any], again: int
) -> None:
    agent = agent_of(desk.effect("pay", approval=True, **options))
    durable = await desk.suspended(agent)
    await durable.decide("w1", "approve:c-pay", "approve", by="ann")
    await desk.abandon(agent)
    if again == 2:
        assert await durable.recover("w1") == "done"
    else:
        with pytest.raises(RunSuspended, match="tenure resolve"):
            await durable.recover("w1")
    assert desk.made == [f"pay c-pay {n}" for n in range(1, again + 1)], "the same call id, its idempotency key"
    types = [event["type"] async for _, event in desk.handle.events()]
    assert types.count("request/opened") - (again == 1) == types.count("request/decided") == 1


async def test_m_ap_l6_i25_what_redaction_would_change_is_never_suspended_on(store: Store) -> None:
    async with Ledger(store, ttl=5, redact=True) as ledger:
        desk = Desk(ledger, store)
        agent = recorder_of(desk, "password=hunter2222")
        assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
        content, is_error = shown(agent)["c1"]
        assert (is_error, desk.made) == (True, [])
        assert "hunter2222" not in content
        assert (await ledger.load("w1")).requests == {}


async def test_m_ap08_another_decision_is_refused_by_name_and_the_same_again_is_not(desk: Desk) -> None:
    durable = await desk.suspended(recorder_of(desk, "x"))
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    with pytest.raises(RequestClosed, match="decided first, by ann"):
        await durable.decide("w1", "approve:c1", "reject", by="ann")
    assert await durable.recover("w1") == "done"
    await durable.decide("w1", "approve:c1", "approve", by="ann")
    with pytest.raises((RequestClosed, RunConflict)):
        await durable.decide("w1", "approve:c1", "approve", by="bob")
    assert desk.made == ["x"]


@pytest.mark.parametrize("options", [{}, {"consequential": True}], ids=["repeat", "consequential"])
async def test_i15_what_was_approved_and_is_under_way_is_asked_anew_in_a_fork(
    desk: Desk, options: dict[str, Any]
) -> None:
    agent = agent_of(desk.effect("pay", approval=True, **options))
    durable = await desk.suspended(agent)
    await durable.decide("w1", "approve:c-pay", "approve", by="ann")
    await desk.abandon(agent)
    await desk.ledger.fork("w1", at=1, id="w2")
    lax = CheckpointedAgent(agent_of(desk.effect("pay", **options)), desk.ledger)
    for again in (durable, lax):
        with pytest.raises(RunSuspended) as caught:
            await again.recover("w2")
        assert list(caught.value.requests) == ["approve#2:c-pay"]
    await durable.decide("w2", "approve#2:c-pay", "reject", by="ann")
    assert await durable.recover("w2") == "done"
    assert desk.made == ["pay c-pay 1"], "the decision was about the other run, and is not used twice"


async def test_m_ap05_a_run_is_suspended_when_the_threads_of_its_tools_have_ended() -> None:
    ended: list[str] = []

    @tool(timeout=0.05)
    def slow() -> None:
        time.sleep(0.5)
        ended.append("slow")

    @tool(approval=True)
    async def pay() -> None: ...

    app = App()
    app.agent(agent_of(slow, pay))
    async with Inline(app) as inline:
        handle = await inline.ledger.submit("walker", "go", id="w1")
        await inline.idle()
        assert (await handle.load()).status is Status.SUSPENDED
        assert ended == ["slow"], "nothing of it runs beside who takes the run up"
