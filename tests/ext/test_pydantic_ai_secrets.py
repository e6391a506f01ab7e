"""Redaction and agents of Pydantic AI: a call that cannot be repeated as it was asked for is not made at all."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from ext.clerk import plainly, records
from tenure import ActiveRun, App, Redaction, TryLater
from tenure.ext.pydantic_ai import TenureApprovals, TenureDurability, durable
from tenure.testing import Inline

pytestmark = pytest.mark.anyio

SECRET = "DE02120300000000202051"
CALLS = [
    ToolCallPart("pay", {"iban": SECRET, "amount": 1}, tool_call_id="c1"),
    ToolCallPart("pay", f'{{"iban":"{SECRET}","amount":2}}', tool_call_id="c2"),
    ToolCallPart("pay", {"iban": "by name: rent", "amount": 3}, tool_call_id="c3"),
    ToolCallPart("unrecorded", {"iban": SECRET, "amount": 5}, tool_call_id="c5"),
    ToolCallPart("number", {"amount": 6}, tool_call_id="c6"),
]
ASKED = ToolCallPart("approved", {"iban": SECRET, "amount": 4}, tool_call_id="c4")


def _hidden(value: Any) -> Any:
    """What the app hides: an account number, wherever it stands, and amounts of six."""
    if isinstance(value, dict):
        return {key: "hidden" if (key, item) == ("amount", 6) else _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return "hidden" if value == SECRET else value


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(parts=[*CALLS, ASKED] if messages[0].parts[0].content == "look" else CALLS)  # type: ignore[union-attr]
    return ModelResponse(parts=[TextPart(" | ".join(str(getattr(p, "content", "")) for p in messages[-1].parts))])


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    for n, part in enumerate(answer(messages, info).parts):
        if isinstance(part, ToolCallPart):
            call = DeltaToolCall(name=part.tool_name, json_args=part.args_as_json_str())
            call.tool_call_id = part.tool_call_id
            yield {n: call}
        elif isinstance(part, TextPart):
            yield part.content


async def streaming(agent: Agent[Any, Any]) -> Any:
    async with agent.run_stream("pay") as found:
        return await found.get_output()


@pytest.mark.parametrize("ask", [plainly, streaming])
async def test_i25_a_call_whose_arguments_may_not_be_stored_is_made_in_no_attempt(
    ask: Callable[[Agent[Any, Any]], Awaitable[Any]],
) -> None:
    paid: list[int] = []
    tools: FunctionToolset[None] = FunctionToolset(id="till")

    def pay(iban: str, amount: int) -> str:
        paid.append(amount)
        return "paid"

    def number(amount: int) -> str:
        return pay("", amount)

    tools.add_function(pay)
    tools.add_function(number)
    tools.add_function(pay, name="approved", requires_approval=True)
    tools.add_function(pay, name="unrecorded", metadata={"tenure": False})
    agent: Agent[None, Any] = Agent(
        FunctionModel(answer, stream_function=stream),
        name="clerk",
        output_type=[str, DeferredToolRequests],
        toolsets=[tools],
        capabilities=[TenureApprovals(), TenureDurability()],
    )
    app = App(redact=Redaction(functions=[_hidden]))

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> Any:
        with durable(run):
            said = await ask(agent)
        if not run.lease.state.checkpoints:
            await run.lease.checkpoint("once")
            raise TryLater
        return said

    async with Inline(app) as inline:
        handle = await inline.ledger.submit("k", None, id="r")
        said = str(await inline.result(handle)).split(" | ")
        assert (await handle.verify()).ok
        found = await records(inline, "r")
    assert paid == [3]
    assert ["not stored" in text for text in said] == [True, True, False, True, True, True][: len(said)]
    assert len(said) == (6 if ask is plainly else 5)
    assert [e["name"] for e in found] == ["model:1", "tool:pay@1.c3", "model:2"], "and nobody was asked to approve"
    assert SECRET not in str(found)
