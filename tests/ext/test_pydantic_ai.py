"""Agents of Pydantic AI on a run: each unit made once, whatever the way in which the agent is asked."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, ModelRetry, RunContext, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tenure import ActiveRun, App, ReplayDrift, RunFailed, TryLater
from tenure.core import journal
from tenure.ext._pydantic_ai_units import differing, unit_of
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import Inline

pytestmark = pytest.mark.anyio


class Place:
    """A small agent, what it called, and ways to ask it."""

    def __init__(self, *, durability: TenureDurability[Any] | None = None) -> None:
        self.asked: list[int] = []
        self.called: list[str] = []
        self.ends: dict[str, anyio.Event] = {}
        toolset: FunctionToolset[Any] = FunctionToolset(id="tools")
        toolset.add_function(self.look)
        self.agent: Agent[None, str] = Agent(
            FunctionModel(self.answer, stream_function=self.stream),
            name="clerk",
            toolsets=[toolset],
            capabilities=[durability or TenureDurability()],
        )

    async def look(self, ctx: RunContext[None], at: int) -> int:
        """Look somewhere."""
        self.called.append(f"look {at}")
        if at == 9:
            message = "not there"
            raise ModelRetry(message)
        await self.look_at(at)
        return at * 7

    async def look_at(self, at: int) -> None: ...

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen = [part.content for m in messages for part in m.parts if isinstance(part, ToolReturnPart)]
        self.asked.append(len(messages))
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {"at": n}, tool_call_id=f"c{n}") for n in (1, 2)])
        if len(messages) == 3:
            return ModelResponse(parts=[ToolCallPart("look", {"at": 9}, tool_call_id="c9")])
        return ModelResponse(parts=[TextPart(f"found {sum(n for n in seen if isinstance(n, int))}")])

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        for part in self.answer(messages, info).parts:
            if isinstance(part, ToolCallPart):
                call = DeltaToolCall(name=part.tool_name, json_args=str(part.args_as_json_str()))
                call.tool_call_id = part.tool_call_id
                yield {int(part.tool_call_id[1:]): call}
            elif isinstance(part, TextPart):
                yield part.content


async def plainly(agent: Agent[Any, str]) -> str:
    return (await agent.run("look")).output


async def by_iter(agent: Agent[Any, str]) -> str:
    async with agent.iter("look") as run:
        async for _ in run:
            pass
        assert run.result is not None
        return run.result.output


async def streaming(agent: Agent[Any, str]) -> str:
    async with agent.run_stream("look") as stream:
        return await stream.get_output()


def twice(ask: Callable[[], Awaitable[Any]]) -> App:
    """A kind that asks, and comes back once when it has its answer, so that its second attempt is all replay."""
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> Any:
        with durable(run):
            found = await ask()
        if not run.lease.state.checkpoints:
            await run.lease.checkpoint("once")
            raise TryLater
        return found

    return app


async def records(inline: Inline, run_id: str) -> list[dict[str, Any]]:
    rows = await inline.store.tail(run_id, limit=1000)
    return [e for row in rows for e in journal.events_of(row) if e["type"] == journal.RECORD]


@pytest.mark.parametrize("ask", [plainly, by_iter, streaming])
async def test_a_recovered_agent_asks_no_model_and_calls_no_tool_again(
    ask: Callable[[Agent[Any, str]], Awaitable[str]],
) -> None:
    place = Place()
    async with Inline(twice(lambda: ask(place.agent))) as inline:
        found = await inline.result(await inline.ledger.submit("k", None, id="r"))
        assert found == "found 21"
        assert (place.asked, sorted(place.called)) == ([1, 3, 5], ["look 1", "look 2", "look 9"])
        names = [(e["scope"], e["name"]) for e in await records(inline, "r")]
    assert sorted(names) == [
        ("clerk", "model:1"),
        ("clerk", "model:2"),
        ("clerk", "model:3"),
        ("clerk", "tool:look@1.c1"),
        ("clerk", "tool:look@1.c2"),
        ("clerk", "tool:look@2.c9"),
    ]


async def test_tools_that_end_in_the_other_order_are_replayed_each_for_itself() -> None:
    place, order = Place(), list[int]()
    second = anyio.Event()

    async def look_at(at: int) -> None:
        if at == 1:
            await second.wait()
        order.append(at)
        if at == 2:
            second.set()

    place.look_at = look_at  # type: ignore[method-assign]
    async with Inline(twice(lambda: plainly(place.agent))) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"
        tools = [e["name"] for e in await records(inline, "r") if e["name"].startswith("tool")]
    assert order == [2, 1]
    assert tools == ["tool:look@1.c2", "tool:look@1.c1", "tool:look@2.c9"]


async def test_agents_inside_tools_have_a_scope_of_their_own_by_the_call_that_asked_them() -> None:
    asked: list[str] = []

    def inner(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("inner")
        return ModelResponse(parts=[TextPart(str(messages[0].parts[0].content).upper())])  # type: ignore[union-attr]

    def outer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("outer")
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("ask", {"what": w}, tool_call_id=w) for w in ("a", "b")])
        said = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(" ".join(sorted(said)))])

    helper = Agent(FunctionModel(inner), name="inner", capabilities=[TenureDurability()])
    tools: FunctionToolset[None] = FunctionToolset(id="tools")

    @tools.tool_plain
    async def ask(what: str) -> str:
        return (await helper.run(what)).output

    agent = Agent(FunctionModel(outer), name="outer", toolsets=[tools], capabilities=[TenureDurability()])
    async with Inline(twice(lambda: plainly(agent))) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "A B"
        scopes = {(e["scope"], e["name"]) for e in await records(inline, "r")}
    assert sorted(asked) == ["inner", "inner", "outer", "outer"]
    assert {("outer/a/inner", "model:1"), ("outer/b/inner", "model:1"), ("outer", "tool:ask@1.a")} <= scopes


async def test_usage_is_counted_once_however_often_it_is_replayed() -> None:
    place, usages = Place(), list[tuple[int, int, int]]()

    async def ask() -> str:
        found = await place.agent.run("look")
        usages.append((found.usage.requests, found.usage.input_tokens, found.usage.tool_calls))
        return found.output

    async with Inline(twice(ask)) as inline:
        await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert len(usages) == 2
    assert usages[0] == usages[1]
    assert usages[0][0] == 3


async def test_what_is_only_replayed_is_told_to_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr("tenure.ext._pydantic_ai_held.record_durable_unit", lambda *, executed: told.append(executed))
    place = Place()
    async with Inline(twice(lambda: plainly(place.agent))) as inline:
        await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert told == [True] * 6 + [False] * 6


async def test_ids_and_the_start_of_an_agent_run_are_the_same_in_each_attempt() -> None:
    place, seen = Place(), list[tuple[str, str]]()

    async def ask() -> str:
        first = await place.agent.run("look", timeout=600)
        again = await place.agent.run("look", message_history=first.all_messages())
        seen.extend((found.run_id, found.conversation_id) for found in (first, again))
        return again.output

    async with Inline(twice(ask)) as inline:
        await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert seen[:2] == seen[2:]
    assert [run_id for run_id, _ in seen[:2]] == ["r/clerk", "r/clerk~2"]
    assert seen[0][1] == seen[1][1], "one conversation"


async def test_a_handler_that_leads_to_another_question_is_drift_and_says_in_what() -> None:
    place, app, attempts = Place(), App(), list[int]()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        attempts.append(1)
        with durable(run):
            await place.agent.run(f"look, attempt {len(attempts)}")
        raise TryLater

    async with Inline(app) as inline:
        with pytest.raises(RunFailed, match="another last message") as failed:
            await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert isinstance(failed.value.__cause__, ReplayDrift)
    assert failed.value.__cause__.key == "model:1"


def test_a_guard_names_the_first_thing_that_differs() -> None:
    assert differing(
        "number_of_messages=3 history=ab last_message=cd", "number_of_messages=3 history=x last_message=y"
    ) == ("history")
    assert differing("tool=a arguments=b", "tool=a arguments=b") is None
    assert differing(None, "tool=a") is None


def test_a_unit_of_a_kind_that_is_not_known_yet_has_a_name_all_the_same() -> None:
    unit = unit_of(object(), "clerk__newer", (), "clerk")  # type: ignore[arg-type]
    assert (unit.scope, unit.name) == ("clerk", "clerk__newer@0")


async def test_what_an_event_handler_was_shown_is_not_shown_again() -> None:
    events: list[str] = []

    async def handler(ctx: RunContext[Any], stream: Any) -> None:
        events.extend([e.event_kind async for e in stream if e.event_kind.startswith("function_tool")])

    place = Place(durability=TenureDurability(event_stream_handler=handler))
    async with Inline(twice(lambda: plainly(place.agent))) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"
    assert sorted(events) == ["function_tool_call"] * 3 + ["function_tool_result"] * 3


async def test_outside_of_a_run_the_agent_runs_as_ever() -> None:
    place = Place()
    assert await plainly(place.agent) == "found 21"
    assert await plainly(place.agent) == "found 21"
    assert len(place.asked) == 6


def test_one_engine_an_agent_a_name_and_ids() -> None:
    with pytest.raises(UserError, match="name"):
        Agent("test", capabilities=[TenureDurability()])
    with pytest.raises(UserError, match="durable execution engine"):
        Agent("test", name="a", capabilities=[TenureDurability(), TenureDurability()])
    nameless: FunctionToolset[None] = FunctionToolset([len])
    with pytest.raises(UserError, match="`id`"):
        Agent("test", name="a", toolsets=[nameless], capabilities=[TenureDurability()])


async def test_a_model_or_toolset_of_a_single_run_is_refused_where_nobody_could_find_it_again() -> None:
    place = Place()
    extra: FunctionToolset[None] = FunctionToolset([len], id="extra")

    async def with_toolset() -> str:
        return (await place.agent.run("look", toolsets=[extra])).output

    async def with_model() -> str:
        return (await place.agent.run("look", model=FunctionModel(place.answer))).output

    for ask in (with_toolset, with_model):
        async with Inline(twice(ask)) as inline:
            with pytest.raises(RunFailed) as failed:
                await inline.result(await inline.ledger.submit("k", None, id="r"))
            assert isinstance(failed.value.__cause__, UserError)
    registered = FunctionModel(place.answer)
    place = Place(durability=TenureDurability(models={"other": registered}))

    async def by_key() -> str:
        return (await place.agent.run("look", model="other")).output

    async with Inline(twice(by_key)) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"
