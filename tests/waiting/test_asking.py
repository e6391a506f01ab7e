"""A handler asks a person: one decision, bound to what was shown, and what follows when nobody decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.from_thread
import pytest

from app.calls import Fleet
from tenure import (
    ActiveRun,
    Decision,
    Handle,
    NotAllowed,
    ReplayDrift,
    RequestClosed,
    RequestExpired,
    RunClosed,
    StaleDecision,
    Status,
    StepFailed,
    resolve,
)
from waiting.parts import Waiting, due

pytestmark = pytest.mark.anyio


@pytest.fixture
async def asking() -> AsyncIterator[tuple[Waiting, Fleet]]:
    """A run that asks a person whether to pay."""
    waiting = Waiting()

    @waiting.handler
    async def pay(run: ActiveRun[Any], cents: int) -> Any:
        decision = await run.ask("pay", {"cents": cents})
        await run.step("note", waiting.does(f"{decision.approved} {decision.by} {decision.reason}"))
        return decision.approved

    async with waiting as at:
        await at.ledger.submit("k", 100, id="r1")
        await at.call("r1")
        yield waiting, at


async def test_m_ap01_m_ap06_m_ap07_m_ap14_a_person_decides_and_the_run_goes_on(asking: tuple[Waiting, Fleet]) -> None:
    waiting, at = asking
    handle: Handle[Any] = at.ledger.handle("r1")
    (request,) = await handle.requests()
    assert (request.id, request.content["question"], request.standing) == ("ask:pay", {"cents": 100}, "open")
    assert (await handle.load()).wants == ("ask:pay",)
    await handle.decide(request, "approve", by="ann", reason="fine")
    assert (await handle.load()).status is Status.QUEUED
    (decided,) = await handle.requests()
    assert decided.decision is not None
    assert (decided.standing, decided.decision.by) == ("decided", "ann")
    assert (await at.call("r1")).status is Status.COMPLETED
    assert waiting.did == ["True ann fine"]
    expected = Decision(request="ask:pay", digest=request.digest, approved=True, by="ann", reason="fine")
    assert await handle.decisions() == [expected]
    assert await handle.requests() == []


async def test_m_ap08_i15_the_first_decision_stands_and_the_same_again_is_no_error(
    asking: tuple[Waiting, Fleet],
) -> None:
    _, at = asking
    handle: Handle[Any] = at.ledger.handle("r1")
    await handle.decide("ask:pay", "reject", by="ann")
    await handle.decide("ask:pay", "reject", by="ann")
    with pytest.raises(RequestClosed, match="decided first, by ann"):
        await handle.decide("ask:pay", "approve", by="ann")
    with pytest.raises(RequestClosed, match="decided first, by ann"):
        await handle.decide("ask:pay", "reject", by="bob")
    await at.call("r1")
    await handle.decide("ask:pay", "reject", by="ann")
    with pytest.raises(RequestClosed, match=r"decided first, by ann: rejected; the run took note of it at \d{4}-"):
        await handle.decide("ask:pay", "approve", by="bob")
    with pytest.raises(RunClosed):
        await handle.decide("ask:other", "approve", by="bob")
    assert await handle.result() is False


async def test_m_ap15_what_cannot_be_decided_says_why(asking: tuple[Waiting, Fleet]) -> None:
    _, at = asking
    handle: Handle[Any] = at.ledger.handle("r1")
    with pytest.raises(RequestClosed):
        await handle.decide("ask:other", "approve", by="ann")
    with pytest.raises(StaleDecision):
        await handle.decide("ask:pay", "approve", by="ann", digest="0" * 64)
    with pytest.raises(NotAllowed, match="'approve' or 'reject'"):
        await handle.decide("ask:pay", {"receipt": 7}, by="ann")  # type: ignore[arg-type]
    with pytest.raises(RequestClosed, match="nobody has decided"):
        await handle.revoke("ask:pay", by="ann")
    assert await at.ledger.store.inbox("r1") == []


async def test_i15_a_decision_can_be_revoked_until_it_is_consumed_and_the_run_asks_anew(
    asking: tuple[Waiting, Fleet],
) -> None:
    waiting, at = asking
    handle: Handle[Any] = at.ledger.handle("r1")
    await handle.decide("ask:pay", "approve", by="ann")
    await handle.revoke("ask:pay", by="bob", reason="wrong account")
    run = await at.call("r1")
    assert (run.status, run.wants, waiting.did) == (Status.SUSPENDED, ("ask#2:pay",), [])
    (request,) = await handle.requests()
    assert request.id == "ask#2:pay"
    with pytest.raises(RequestClosed):
        await handle.decide("ask:pay", "approve", by="ann", reason="again")
    await handle.decide(request, "reject", by="bob")
    await at.call("r1")
    with pytest.raises(RunClosed):
        await handle.revoke(request, by="ann")
    assert waiting.did == ["False bob "]


async def _asks(at: Fleet, waiting: Waiting, **options: Any) -> None:
    @waiting.handler
    async def pay(run: ActiveRun[Any], _: Any) -> Any:
        try:
            decision = await run.ask("pay", "now?", **options)
        except RequestExpired:
            return "expired"
        return [decision.approved, decision.expired]

    await at.ledger.submit("k", None, id="r1")


@pytest.mark.parametrize("policy, result", [("reject", [False, True]), ("fail", "expired")])
async def test_m_ap_l1_expiry_is_no_denial_and_the_policy_says_what_follows(policy: str, result: Any) -> None:
    waiting = Waiting()
    async with waiting as at:
        await _asks(at, waiting, expires=0.1, on_expiry=policy)
        handle: Handle[Any] = at.ledger.handle("r1")
        run = await at.call("r1")
        assert run.due_ms == run.requests["ask:pay"].expires_ms
        await due(at)
        with pytest.raises(RequestClosed):
            await handle.decide("ask:pay", "approve", by="ann")
        assert (await handle.requests())[0].standing == "expired"
        assert (await at.call("r1")).status is Status.COMPLETED
        assert await handle.result() == result


async def test_an_expired_request_is_asked_again_by_default() -> None:
    waiting = Waiting()
    async with waiting as at:
        await _asks(at, waiting, expires=0.1)
        handle: Handle[Any] = at.ledger.handle("r1")
        await at.call("r1")
        await due(at)
        run = await at.call("r1")
        assert (run.status, list(run.requests)) == (Status.SUSPENDED, ["ask#2:pay"])
        (request,) = await handle.requests()
        await handle.decide(request, "approve", by="ann")
        await at.call("r1")
        assert await handle.result() == [True, False]


async def test_m_ap11_a_decision_is_bound_to_the_question_that_was_shown() -> None:
    waiting, question = Waiting(), ["pay 1"]

    @waiting.handler
    async def pay(run: ActiveRun[Any], _: Any) -> Any:
        decision = await run.ask("pay", question[0])
        await run.sleep("nap", 0.01)
        return decision.request

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        (old,) = await handle.requests()
        question[0] = "pay 2"
        await handle.signal("anything")
        await handle.decide(old, "approve", by="ann")
        run = await at.call("r1")
        assert list(run.requests) == ["ask#2:pay"], "what was approved is not what would happen"
        (new,) = await handle.requests()
        assert (new.content["question"], new.before["question"]) == ("pay 2", "pay 1")
        await handle.decide(new, "approve", by="ann")
        await at.call("r1")
        question[0] = "pay 3"
        await due(at)
        run = await at.call("r1")
        assert run.outcome is not None
        assert (run.status, run.outcome.code) == (Status.FAILED, ReplayDrift.code.value)


async def test_a_question_that_changed_before_anybody_decided_makes_the_old_one_stale() -> None:
    waiting, question = Waiting(), ["pay 1"]

    @waiting.handler
    async def pay(run: ActiveRun[Any], _: Any) -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.wait_for, "poke")
            return (await run.ask("pay", question[0])).request

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        (old,) = await handle.requests()
        question[0] = "pay 2"
        await handle.signal("poke")
        await at.call("r1")
        with pytest.raises(StaleDecision):
            await handle.decide(old, "approve", by="ann")
        (new,) = await handle.requests()
        assert (new.id, new.digest != old.digest, new.before["question"]) == (old.id, True, "pay 1")
        await handle.decide(new, "approve", by="ann")
        await at.call("r1")
        assert await handle.result() == "ask:pay"


async def test_several_questions_are_asked_at_once_and_keep_their_order() -> None:
    waiting = Waiting()

    @waiting.handler
    async def board(run: ActiveRun[Any], _: Any) -> Any:
        found: dict[str, bool] = {}

        async def one(key: str) -> None:
            found[key] = (await run.ask(key, f"{key}?")).approved

        async with anyio.create_task_group() as tasks:
            for key in ("zoe", "ann", "bob"):
                tasks.start_soon(one, key)
        return found

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        assert [request.id for request in await handle.requests()] == ["ask:zoe", "ask:ann", "ask:bob"]
        for key, how in (("bob", "reject"), ("zoe", "approve"), ("ann", "approve")):
            await handle.decide(f"ask:{key}", how, by="me")
            await at.call("r1")
        assert await handle.result() == {"zoe": True, "ann": True, "bob": False}


async def test_i24_a_step_in_doubt_with_effect_ask_asks_a_person() -> None:
    for said, expected in (({"result": "receipt 7"}, "receipt 7"), ({"repeat": True}, "paid"), ({"fail": True}, "?")):
        waiting = Waiting()

        @waiting.handler
        async def pay(run: ActiveRun[Any], _: Any, waiting: Waiting = waiting) -> Any:
            try:
                return await run.step("pay", waiting.does("paid"), effect="ask", returns=str)
            except StepFailed as error:
                return error.type_name and "?"

        async with waiting as at:
            await at.ledger.submit("k", None, id="r1")
            await at.die("r1", lambda run: run.lease.started(["step:pay"]))
            run = await at.call("r1")
            assert (run.status, run.wants) == (Status.SUSPENDED, ("resolve:step:pay",))
            assert waiting.did == []
            await resolve(at.ledger, "r1", "pay", by="ann", **said)
            run = await at.call("r1")
            assert run.status is Status.COMPLETED
            assert await at.ledger.handle("r1").result() == expected
            assert waiting.did == (["paid"] if "repeat" in said else [])
