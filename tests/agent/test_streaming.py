"""A stream shows pieces that are not kept and events that are, and goes on where another one ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, assert_type

import anyio
import pytest

from tenure import Ledger, RunFailed, Status
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.model import Delta, ModelReply, ModelRequest
from tenure.agent.streaming import Landed
from tenure.agent.tool import tool
from tenure.core.messages import ToolCall, assistant
from tenure.testing.models import FunctionModel, Reply, ScriptedModel


@tool
async def look(n: int) -> int:
    return n


REPLIES: list[Reply] = [assistant("let me see", ToolCall(id="c1", name="look", arguments={"n": 1})), "all is well"]


async def test_deltas_come_before_the_event_of_their_answer(ledger: Ledger) -> None:
    durable = CheckpointedAgent(Agent(ScriptedModel(REPLIES), name="walker", tools=[look]), ledger)
    async with durable.stream("go", id="w1") as items:
        seen = [item.text if isinstance(item, Delta) else item.type async for item in items]
        out = await items.result()
    assert_type(out, str)
    assert out == "all is well"
    assert seen == [
        *("run/start", "let ", "me ", "see", "attempt/start", "agent/shape", "model/request", "assistant/message"),
        *("record", "all ", "is ", "well", "model/request", "assistant/message", "run/end"),
    ]


async def test_a_stream_is_attached_again_by_address_and_a_recorded_answer_is_one_event(ledger: Ledger) -> None:
    durable = CheckpointedAgent(Agent(ScriptedModel(REPLIES), name="walker", tools=[look]), ledger)
    async with durable.stream("go", id="w1") as items:
        first = [item async for item in items]
    landed = [item for item in first if isinstance(item, Landed)]
    async with durable.stream("go", id="w1") as items:
        again = [item async for item in items]
        assert await items.result() == "all is well"
    assert again == landed
    async with durable.stream("go", id="w1", after=landed[3].address) as items:
        assert [item async for item in items] == landed[4:]


async def test_leaving_a_stream_hands_the_run_back_and_another_goes_on(ledger: Ledger) -> None:
    model = ScriptedModel(REPLIES)
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger)
    last = "0"
    async with durable.stream("go", id="w1") as items:
        async for item in items:
            if isinstance(item, Landed):
                last = item.address
                if item.type == "assistant/message":
                    break
    run = await ledger.load("w1")
    assert run.status in (Status.QUEUED, Status.COMPLETED)
    async with durable.stream("go", id="w1", after=last) as items:
        rest = [item.type async for item in items if isinstance(item, Landed)]
        assert await items.result() == "all is well"
    assert rest[-1] == "run/end"
    assert "run/start" not in rest
    assert [request.step for request in model.asked] in ([1, 2], [1, 2, 2])


async def test_a_stream_of_a_run_that_somebody_else_holds_shows_its_events(ledger: Ledger) -> None:
    go, held = anyio.Event(), anyio.Event()

    async def answer(request: ModelRequest) -> Any:
        held.set()
        if request.step == 2:
            await go.wait()
        return REPLIES[request.step - 1]

    durable = CheckpointedAgent(Agent(FunctionModel(answer), name="walker", tools=[look]), ledger)
    seen: list[str] = []

    async def watch() -> None:
        async with durable.stream("go", id="w1") as items:
            async for item in items:
                assert isinstance(item, Landed)
                seen.append(item.type)
                if item.type == "record":
                    go.set()
            assert await items.result() == "all is well"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run, durable)
        await held.wait()
        await watch()
    assert seen[-1] == "run/end"
    assert seen.count("assistant/message") == 2


async def _run(durable: CheckpointedAgent[str]) -> None:
    assert await durable.run("go", id="w1") == "all is well"


async def test_what_ended_the_run_badly_is_raised_where_the_stream_is_read(ledger: Ledger) -> None:
    durable = CheckpointedAgent(Agent(ScriptedModel(["x", "y"]), name="numbers", output=int), ledger)
    types: list[str] = []
    with pytest.raises(RunFailed) as caught:
        async with durable.stream("go") as items:
            async for item in items:
                types.append(item.type if isinstance(item, Landed) else "")  # noqa: PERF401 - what was seen before it raised
    assert caught.value.failure == "OUTPUT_INVALID"
    assert types[-1] == "run/end"


class Mute:
    """A model that streams and never says the whole."""

    name = "mute"

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        raise NotImplementedError

    async def ask_stream(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelReply]:
        yield Delta(text="hm")


async def test_a_stream_without_a_whole_answer_is_refused_by_name(ledger: Ledger) -> None:
    durable = CheckpointedAgent(Agent(Mute(), name="walker"), ledger)
    with pytest.raises(Exception, match="without a whole answer"):
        async with durable.stream("go") as items:
            await items.result()
