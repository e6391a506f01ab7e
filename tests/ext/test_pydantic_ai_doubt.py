"""Calls of Pydantic AI's tools in doubt: a person says how they ended, or their toolset finds out."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tenure import NOT_DONE, ActiveRun, App, NotAllowed, RunFailed, Status, TryLater
from tenure.agent.doubt import resolve
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import Inline

pytestmark = pytest.mark.anyio

CALL = "a/tool:pay@1.c1"


class Place:
    """An agent that pays once, and whose first call of it is cut between its effect and its record."""

    def __init__(self, effect: str, **options: Any) -> None:
        self.paid: list[int] = []
        tools: FunctionToolset[None] = FunctionToolset(id="till")
        tools.add_function(self.pay, metadata={"tenure": {"effect": effect}})
        self.agent: Agent[None, str] = Agent(
            FunctionModel(self.answer), name="a", toolsets=[tools], capabilities=[TenureDurability(**options)]
        )
        self.app = App()

        @self.app.kind("k")
        async def handler(run: ActiveRun[Any], _: Any) -> str:
            with durable(run):
                return (await self.agent.run("pay")).output

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        if len(self.paid) == 1:
            raise TryLater  # the attempt ends here, and no record says so
        return f"paid {amount}"

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("pay", {"amount": 7}, tool_call_id="c1")])
        return ModelResponse(parts=[TextPart(str(getattr(messages[-1].parts[0], "content", "")))])


@pytest.mark.parametrize(
    "said, output, times",
    [({"result": "paid by hand"}, "paid by hand", 1), ({"repeat": True}, "paid 7", 2), ({"fail": True}, "knows", 1)],
    ids=["result", "repeat", "fail"],
)
async def test_i24_a_person_says_how_a_call_in_doubt_ended(said: dict[str, Any], output: str, times: int) -> None:
    place = Place("ask")
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("k", None, id="r")
        await inline.idle()
        assert ((await handle.load()).status, place.paid) == (Status.SUSPENDED, [7])
        (request,) = await handle.requests()
        assert request.content == {"boundary": "doubt", "call": CALL, "name": "pay", "arguments": {"amount": 7}}
        # Woken for something else, it goes on waiting.
        await handle.signal("something else")
        await inline.idle()
        assert (await handle.load()).status is Status.SUSPENDED
        await resolve(inline.ledger, "r", CALL, **said)
        assert output in str(await inline.result(handle))
        assert (await handle.verify()).ok
    assert place.paid == [7] * times


@pytest.mark.parametrize(
    "found, output, times", [("found paid", "found paid", 1), (NOT_DONE, "paid 7", 2)], ids=["done", "not done"]
)
async def test_i24_a_toolset_finds_out_how_its_call_in_doubt_ended(found: Any, output: str, times: int) -> None:
    asked: list[tuple[Any, Any]] = []

    async def look(ctx: RunContext[Any], arguments: Mapping[str, Any]) -> Any:
        asked.append((ctx.tool_call_id, dict(arguments)))
        return found

    place = Place("reconcile", reconcile={"pay": look})
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("k", None, id="r")
        assert await inline.result(handle) == output
        assert (await handle.verify()).ok
    assert (asked, place.paid) == ([("c1", {"amount": 7})], [7] * times)


async def test_i24_what_cannot_be_found_out_a_person_is_asked() -> None:
    def look(ctx: RunContext[Any], arguments: Mapping[str, Any]) -> Any:
        raise ConnectionError

    place = Place("reconcile", reconcile={"pay": look})
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("k", None, id="r")
        await inline.idle()
        assert (await handle.load()).status is Status.SUSPENDED
        await resolve(inline.ledger, "r", CALL, result="as I see it")
        assert await inline.result(handle) == "as I see it"
    assert place.paid == [7]


async def test_a_plain_function_that_looks_does_not_hold_up_the_loop() -> None:
    threads: list[int] = []

    def look(ctx: RunContext[Any], arguments: Mapping[str, Any]) -> Any:
        threads.append(threading.get_ident())
        return "found paid"

    place = Place("reconcile", reconcile={"pay": look})
    async with Inline(place.app) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found paid"
    assert threads not in ([], [threading.get_ident()])


async def test_a_tool_that_should_reconcile_and_has_no_function_is_refused() -> None:
    place = Place("reconcile")
    async with Inline(place.app) as inline:
        with pytest.raises(RunFailed) as failed:
            await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert isinstance(failed.value.__cause__, NotAllowed)
    assert place.paid == []


async def test_inside_another_tool_nobody_is_asked_and_the_outcome_stays_unknown() -> None:
    place = Place("ask")
    tools: FunctionToolset[None] = FunctionToolset(id="outer")

    async def delegate() -> str:
        """Have somebody pay."""
        return (await place.agent.run("pay")).output

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("delegate", {}, tool_call_id="d1")])
        return ModelResponse(parts=[TextPart(str(getattr(messages[-1].parts[0], "content", "")))])

    tools.add_function(delegate)
    outer = Agent(FunctionModel(answer), name="outer", toolsets=[tools], capabilities=[TenureDurability()])
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        with durable(run):
            return (await outer.run("go")).output

    async with Inline(app) as inline:
        assert "nobody knows whether it was made" in await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert place.paid == [7]
