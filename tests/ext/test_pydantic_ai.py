"""Agents of Pydantic AI on a run: each unit made once, whatever the way in which the agent is asked."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from ext.clerk import Place, plainly, records, twice
from tenure import ActiveRun, App, Ledger, Status, Worker, open_store
from tenure.core import journal
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import Inline

pytestmark = pytest.mark.anyio


async def by_iter(agent: Agent[Any, str]) -> str:
    async with agent.iter("look") as run:
        async for _ in run:
            pass
        assert run.result is not None
        return run.result.output


async def streaming(agent: Agent[Any, str]) -> str:
    async with agent.run_stream("look") as stream:
        return await stream.get_output()


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


async def test_what_an_event_handler_was_shown_is_not_shown_again() -> None:
    events: list[str] = []

    async def handler(ctx: RunContext[Any], stream: Any) -> None:
        events.extend([e.event_kind async for e in stream if e.event_kind.startswith("function_tool")])

    place = Place(durability=TenureDurability(event_stream_handler=handler))
    async with Inline(twice(lambda: plainly(place.agent))) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"
    assert sorted(events) == ["function_tool_call"] * 3 + ["function_tool_result"] * 3


async def test_a_drain_lets_the_tool_in_hand_end_and_another_worker_goes_on_after_it() -> None:
    place, app = Place(), App()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        with durable(run):
            return await plainly(place.agent)

    async with open_store("memory://") as store, Ledger(store) as ledger:
        handle = await ledger.submit("k", None, id="r")
        begun, drained = anyio.Event(), anyio.Event()

        async def look_at(at: int) -> None:
            if at == 2 and not begun.is_set():
                begun.set()
                await drained.wait()

        place.look_at = look_at  # type: ignore[method-assign]
        async with Worker(app, ledger, drain=30) as worker, anyio.create_task_group() as tasks:
            await begun.wait()
            tasks.start_soon(worker.drain)
            while not worker.draining:  # noqa: ASYNC110 - a drain that begins rings no bell
                await anyio.sleep(0.01)
            drained.set()
        run = await handle.load()
        assert (run.status, run.failures, run.crashes) == (Status.QUEUED, 0, 0)
        assert (place.asked, sorted(place.called)) == ([1], ["look 1", "look 2"])
        async with Worker(app, ledger, drain=1):
            assert await handle.result(timeout=30) == "found 21"
    assert (place.asked, sorted(place.called)) == ([1, 3, 5], ["look 1", "look 2", "look 9"])


async def test_a_lost_lease_stops_the_agent_in_a_tool_and_nothing_more_is_written() -> None:
    place, app, seen = Place(), App(), list[BaseException]()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        with durable(run):
            try:
                return await plainly(place.agent)
            except BaseException as error:
                seen.append(error)
                raise

    async with open_store("memory://") as store, Ledger(store) as ledger:
        handle = await ledger.submit("k", None, id="r")
        begun = anyio.Event()

        async def look_at(at: int) -> None:
            begun.set()
            await anyio.sleep_forever()

        place.look_at = look_at  # type: ignore[method-assign]
        async with Worker(app, ledger, drain=1) as worker:
            await begun.wait()
            await handle.cancel(reason="enough")
            with anyio.fail_after(30):
                while worker.slots.executions:  # noqa: ASYNC110 - an execution that ends rings no bell
                    await anyio.sleep(0.01)
        rows = await store.tail("r", limit=100)
    names = [e["name"] for row in rows for e in journal.events_of(row) if e["type"] == journal.RECORD]
    assert names == ["model:1"]
    assert len(seen) == 1
    assert place.asked == [1]


async def test_what_was_asked_plainly_is_replayed_by_a_stream_and_the_other_way_round() -> None:
    for ways in ([plainly, streaming], [streaming, plainly]):
        place = Place()

        async def ask(place: Place = place, ways: list[Any] = ways) -> str:
            return str(await ways.pop(0)(place.agent))

        async with Inline(twice(ask)) as inline:
            assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"
        assert (place.asked, len(place.called)) == ([1, 3, 5], 3)
