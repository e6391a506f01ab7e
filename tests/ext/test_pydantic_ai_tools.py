"""Tools of Pydantic AI on a run: what is recorded of their results, and what is not; tools that may not be repeated."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    ToolFailed,
    ToolReturn,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from ext import durable_orders
from tenure import ActiveRun, App, NotAllowed, RunFailed, TryLater
from tenure.core import journal
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import Inline, crash_everywhere

pytestmark = pytest.mark.anyio


def answers(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("act", {}, tool_call_id="c1")])
    return ModelResponse(parts=[TextPart(str(getattr(messages[-1].parts[0], "content", "")))])


def agent_of(act: Any, metadata: dict[str, Any] | None = None) -> Agent[None, Any]:
    tools: FunctionToolset[None] = FunctionToolset(id="t")
    tools.add_function(act, name="act", metadata=metadata)
    output: Any = [str, DeferredToolRequests]
    return Agent(
        FunctionModel(answers), name="a", output_type=output, toolsets=[tools], capabilities=[TenureDurability()]
    )


async def played(agent: Agent[None, Any], *, deferred: DeferredToolResults | None = None) -> tuple[Any, list[str]]:
    """The output of the second attempt, and the names of the records."""
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        with durable(run):
            found = await agent.run("go")
            if deferred is not None and isinstance(found.output, DeferredToolRequests):
                history = found.all_messages()
                found = await agent.run(message_history=history, deferred_tool_results=deferred)
        if not run.lease.state.checkpoints:
            await run.lease.checkpoint("once")
            raise TryLater
        return type(found.output).__name__ if not isinstance(found.output, str) else found.output

    async with Inline(app) as inline:
        output = await inline.result(await inline.ledger.submit("k", None, id="r"))
        rows = await inline.store.tail("r", limit=100)
        events = [event for row in rows for event in journal.events_of(row)]
    return output, [e["name"] for e in events if e["type"] == journal.RECORD]


def _raising(error: Exception) -> Any:
    calls: list[int] = []

    async def act() -> str:
        calls.append(1)
        raise error

    return act, calls


def _invalid() -> Exception:
    try:
        TypeAdapter(int).validate_python("seven")
    except ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [ModelRetry("again"), ToolFailed("broken"), _invalid()],
    ids=["model retry", "tool failed", "validation error"],
)
async def test_what_a_tool_says_by_raising_is_recorded(error: Exception) -> None:
    act, calls = _raising(error)
    _, names = await played(agent_of(act))
    assert names.count("tool:act@1.c1") == 1
    assert len(calls) == 1


@pytest.mark.parametrize("value", [7, {"kind": "tool-return", "of": "the user"}, ToolReturn("x", content="y"), None])
async def test_what_a_tool_returns_is_recorded(value: Any) -> None:
    calls: list[int] = []

    async def act() -> Any:
        calls.append(1)
        return value

    _, names = await played(agent_of(act))
    assert names.count("tool:act@1.c1") == 1
    assert len(calls) == 1


@pytest.mark.parametrize("error", [ApprovalRequired(), CallDeferred()], ids=["approval required", "call deferred"])
async def test_what_says_that_the_call_was_not_made_is_not_recorded(error: Exception) -> None:
    act, calls = _raising(error)
    output, names = await played(agent_of(act))
    assert output == "DeferredToolRequests"
    assert names == ["model:1"]
    assert len(calls) == 2, "asked anew in each attempt, until there is an answer"


async def test_a_call_that_was_approved_later_is_made_and_recorded_once() -> None:
    calls: list[int] = []
    tools: FunctionToolset[None] = FunctionToolset(id="t")

    async def act() -> str:
        calls.append(1)
        return "acted"

    tools.add_function(act, name="act", requires_approval=True)
    output: Any = [str, DeferredToolRequests]
    agent: Agent[None, Any] = Agent(
        FunctionModel(answers), name="a", output_type=output, toolsets=[tools], capabilities=[TenureDurability()]
    )
    found, names = await played(agent, deferred=DeferredToolResults(approvals={"c1": True}))
    assert (found, calls) == ("acted", [1])
    assert names[0] == "model:1"
    assert sum(name.startswith("tool:act") for name in names) == 1


async def test_a_tool_that_is_left_out_is_called_in_each_attempt() -> None:
    calls: list[int] = []

    async def act() -> str:
        calls.append(1)
        return "same"

    output, names = await played(agent_of(act, {"tenure": False}))
    assert (output, names, len(calls)) == ("same", ["model:1", "model:2"], 2)


async def test_an_effect_that_is_none_is_refused() -> None:
    async def act() -> str:
        return "same"

    with pytest.raises(RunFailed) as failed:
        await played(agent_of(act, {"tenure": {"effect": "sometimes"}}))
    assert isinstance(failed.value.__cause__, NotAllowed)


async def test_what_a_toolset_offers_is_looked_up_once_a_step() -> None:
    looked: list[int] = []

    def offered(_: Any) -> FunctionToolset[None]:
        looked.append(1)
        tools: FunctionToolset[None] = FunctionToolset(id="inner")
        tools.add_function(lambda: "acted", name="act", description="Act.")
        return tools

    agent: Agent[None, str] = Agent(
        FunctionModel(answers),
        name="a",
        toolsets=[DynamicToolset(offered, id="dyn")],
        capabilities=[TenureDurability()],
    )
    output, names = await played(agent)
    assert output == "acted"
    assert {"tools:dyn@1", "tools:dyn@2", "tool:act@1.c1"} <= set(names)
    first = len(looked)
    _, _ = await played(agent)
    assert len(looked) == 2 * first, "the second attempt of a run looks nothing up"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tool_that_may_not_be_repeated_is_not_wherever_the_process_dies() -> None:
    repeats = crash_everywhere(durable_orders.repeats, "pay", sides=["before"])
    assert repeats.done_twice == {"paid"}, str(repeats)
    assert not repeats.wrong, str(repeats)
    assert dict(repeats.clean.effects) == {"asked": 2, "paid": 1}
    fails = crash_everywhere(durable_orders.fails, "pay", sides=["before"])
    assert fails.done_twice == set(), str(fails)
    # Between the announcement and the call it dies with the call unmade, and nobody makes it: that is the choice.
    assert all("paid never took place" in line for line in fails.wrong), str(fails)
