"""Waiting of Pydantic AI on a run: suspended, resumed by the answer, asked once over all attempts."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tenure import ActiveRun, App, NotAllowed, RunSuspended, Status
from tenure.errors import RunConflict
from tenure.ext.pydantic_ai import TenureApprovals, TenureDurability, durable, fail_event, resolve_event
from tenure.testing import Inline

pytestmark = pytest.mark.anyio


class Place:
    """An agent that pays for two things, each payment with an approval, and what came of it."""

    def __init__(self, *capabilities: Any, amounts: tuple[int, ...] = (1, 2)) -> None:
        self.asked = 0
        self.paid: list[int] = []
        self.amounts = amounts
        tools: FunctionToolset[None] = FunctionToolset(id="till")
        tools.add_function(self.pay, name="pay", requires_approval=True)
        output: Any = [str, DeferredToolRequests]
        self.agent: Agent[None, Any] = Agent(
            FunctionModel(self.answer),
            name="clerk",
            output_type=output,
            toolsets=[tools],
            capabilities=[*capabilities, TenureDurability()],
        )
        self.app = App()

        @self.app.kind("clerk")
        async def clerk(run: ActiveRun[Any], _: Any) -> Any:
            with durable(run):
                found = (await self.agent.run("pay")).output
            return found if isinstance(found, str) else type(found).__name__

    def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        return f"paid {amount}"

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        if len(messages) == 1:
            calls = [ToolCallPart("pay", {"amount": n}, tool_call_id=f"c{n}") for n in self.amounts]
            return ModelResponse(parts=calls)
        return ModelResponse(parts=[TextPart("; ".join(str(getattr(p, "content", "")) for p in messages[-1].parts))])


async def test_calls_are_approved_or_rejected_by_requests_of_the_run() -> None:
    place = Place(TenureApprovals())
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("clerk", None, id="r")
        await inline.idle()
        run = await handle.load()
        assert (run.status, place.asked, place.paid) == (Status.SUSPENDED, 1, [])
        open_ = await handle.requests()
        assert [entry.content["question"]["arguments"] for entry in open_] == [{"amount": 1}, {"amount": 2}]
        # One is decided while the other still waits: the run is called again, and waits again.
        await handle.decide(open_[0], "approve", by="ada")
        await inline.idle()
        assert ((await handle.load()).status, place.asked) == (Status.SUSPENDED, 1)
        await handle.decide(open_[1], "reject", by="bob", reason="too much")
        said = await inline.result(handle)
    assert said == "paid 1; The call was rejected: too much"
    assert (place.asked, place.paid) == (2, [1])


async def test_a_second_worker_without_a_decision_suspends_again_and_executes_nothing() -> None:
    place = Place(TenureApprovals(expires=60, on_expiry="reject"), amounts=(5,))
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("clerk", None, id="r")
        with pytest.raises(RunSuspended):
            await inline.result(handle, skip=False)
        await handle.signal("nobody waits for this")
        await inline.idle()
        assert ((await handle.load()).status, place.paid, place.asked) == (Status.SUSPENDED, [], 1)
        # Nobody decides in time, and this agent takes that for a no.
        assert await inline.result(handle) == "The call was rejected: nobody decided in time"
    assert (place.paid, place.asked) == ([], 2)


async def test_without_a_run_calls_stay_deferred() -> None:
    place = Place(TenureApprovals())
    assert isinstance((await place.agent.run("pay")).output, DeferredToolRequests)


class Desk:
    """Who is asked by a token, and answers at once or later."""

    def __init__(self, answer: Any = None) -> None:
        self.tokens: list[str] = []
        self.answer = answer

    def ask(self, ctx: Any, requests: DeferredToolRequests, token: str) -> Any:
        self.tokens.append(token)
        return None if self.answer is None else requests.build_results(approve_all=True)


async def test_an_event_from_outside_is_waited_for_with_the_run_suspended_and_asked_for_once() -> None:
    desk = Desk()
    place = Place(RequestInput(ask=desk.ask))
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("clerk", None, id="r")
        await inline.idle()
        assert (await handle.load()).status is Status.SUSPENDED
        (token,) = desk.tokens
        assert token.startswith("r:")
        await handle.signal("something else")
        await inline.idle()
        assert (await handle.load()).status is Status.SUSPENDED
        await resolve_event(
            inline.ledger, token, {"approvals": {"c1": True, "c2": {"kind": "tool-denied", "message": "no"}}}
        )
        assert await inline.result(handle) == "paid 1; no"
        # Something else comes too late.
        with pytest.raises(RunConflict, match="taken by other content"):
            await resolve_event(inline.ledger, token, {"approvals": {}})
    assert (desk.tokens, place.paid, place.asked) == ([token], [1], 2)


async def test_the_first_resolution_of_a_token_counts() -> None:
    desk = Desk()
    place = Place(RequestInput(ask=desk.ask), amounts=(1,))
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("clerk", None, id="r")
        await inline.idle()
        await resolve_event(inline.ledger, desk.tokens[0], {"approvals": {"c1": True}})
        await resolve_event(inline.ledger, desk.tokens[0], {"approvals": {"c1": True}})
        with pytest.raises(RunConflict):
            await fail_event(inline.ledger, desk.tokens[0], "no")
        assert await inline.result(handle) == "paid 1"


async def test_an_event_that_will_not_come_or_not_in_time_denies_the_calls() -> None:
    for fail in (True, False):
        desk = Desk()
        place = Place(RequestInput(ask=desk.ask, timeout=timedelta(days=2)), amounts=(1,))
        async with Inline(place.app) as inline:
            handle = await inline.ledger.submit("clerk", None, id="r")
            await inline.idle()
            if fail:
                await fail_event(inline.ledger, desk.tokens[0], "the desk is closed")
            said = await inline.result(handle)
            assert ("the desk is closed" if fail else "2 days") in said
        assert (place.paid, len(desk.tokens)) == ([], 1)


async def test_an_answer_given_at_once_is_recorded_and_nothing_is_waited_for() -> None:
    desk = Desk(answer=True)
    place = Place(RequestInput(ask=desk.ask))
    async with Inline(place.app) as inline:
        assert await inline.result(await inline.ledger.submit("clerk", None, id="r")) == "paid 1; paid 2"
    assert len(desk.tokens) == 1


async def test_what_is_no_token_is_refused() -> None:
    async with Inline(App(), Place().app.kinds["clerk"]) as inline:
        with pytest.raises(NotAllowed, match="no token"):
            await resolve_event(inline.ledger, "r1", None)


@pytest.mark.parametrize("effect", ["repeat", "fail"])
async def test_a_tool_that_asks_for_its_approval_itself_is_made_once_when_it_was_approved(effect: str) -> None:
    paid: list[int] = []
    place, tools = Place(amounts=(1,)), FunctionToolset[None](id="till")

    def pay(ctx: RunContext[None], amount: int) -> str:
        """Pay."""
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        paid.append(amount)
        return f"paid {amount}"

    tools.add_function(pay, name="pay", metadata={"tenure": {"effect": effect}})
    place.agent = Agent(
        FunctionModel(place.answer),
        name="clerk",
        toolsets=[tools],
        capabilities=[TenureApprovals(), TenureDurability()],
    )
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("clerk", None, id="r")
        await inline.idle()
        (request,) = await handle.requests()
        await handle.decide(request, "approve", by="ada")
        assert await inline.result(handle) == "paid 1"
        assert (await handle.verify()).ok
    assert (paid, place.asked) == ([1], 2)
