"""An agent under a lease in one process: what is written when, and what a caller is told."""

from __future__ import annotations

from typing import Any, assert_type

import anyio
import pytest

from agent.parts import call, events
from tenure import (
    Handle,
    LeaseLost,
    Ledger,
    NotAllowed,
    RunConflict,
    RunFailed,
    Status,
)
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.model import ModelReply, ModelRequest
from tenure.agent.tool import ToolContext, tool
from tenure.core.messages import assistant
from tenure.core.verify import verify_run
from tenure.testing.models import FunctionModel, ScriptedModel


async def test_o09_o11_m_ck47_a_step_is_one_checkpoint_and_a_run_is_its_journal(ledger: Ledger) -> None:
    seen: list[ToolContext] = []

    @tool
    async def look(context: ToolContext, at: int) -> dict[str, int]:
        seen.append(context)
        return {"at": at}

    model = ScriptedModel([assistant("", call("c1", at=1), call("c2", at=2)), assistant("", call("c3", at=3)), "done"])
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[look], instructions="Walk."), ledger)
    out = await durable.run("go", id="w1", tags={"for": "test"})
    assert_type(out, str)
    assert out == "done"
    run = await ledger.load("w1")
    assert (run.status, run.kind, run.step, run.tags) == (Status.COMPLETED, "walker", 3, {"for": "test"})
    found = await events(ledger, "w1")
    types = [event["type"] for event in found]
    assert types.count("assistant/message") == 3, "O-09: one checkpoint for each step"
    first = types.index("assistant/message")
    assert types[: first + 1] == ["run/start", "attempt/start", "agent/shape", "model/request", "assistant/message"]
    assert found[first]["held"] == ["c1", "c2"]
    assert [e["name"] for e in found if e["type"] == "record"][2:] == ["tool:c3"]
    assert types[-1] == "run/end"
    assert {c.key for c in seen} == {"w1:c1", "w1:c2", "w1:c3"}, "M-CK47"
    assert {c.token for c in seen} == {run.token}
    assert verify_run(run, await ledger.store.tail("w1")).ok


async def test_o10_m_ck42_the_calls_are_saved_before_any_of_them_is_made(ledger: Ledger) -> None:
    saved: list[list[str]] = []

    @tool
    async def look() -> None:
        found = await events(ledger, "w1")
        saved.append([e["type"] for e in found if e["type"] in ("assistant/message", "record")])

    model = ScriptedModel([assistant("", call("c1")), assistant("", call("c2")), "done"])
    await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1")
    assert saved == [["assistant/message"], ["assistant/message", "record", "assistant/message"]]


async def test_i14_the_same_id_again_is_the_result_and_nothing_is_asked_again(ledger: Ledger) -> None:
    model = ScriptedModel(["[1, 2]"])
    durable = CheckpointedAgent(Agent(model, name="numbers", output=list[int]), ledger)
    out = await durable.run("go", id="n1")
    assert_type(out, list[int])
    assert out == await durable.run("go", id="n1") == [1, 2]
    assert len(model.asked) == 1
    with pytest.raises(RunConflict):
        await durable.run("something else", id="n1")


async def test_two_callers_of_one_id_get_one_run(ledger: Ledger) -> None:
    async def slow(request: Any) -> str:
        await anyio.sleep(0.1)
        return "once"

    model = FunctionModel(slow)
    durable = CheckpointedAgent(Agent(model, name="walker"), ledger)
    outs: list[str] = []

    async def one() -> None:
        outs.append(await durable.run("go", id="w1"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    assert outs == ["once", "once"]
    assert len(model.asked) == 1


async def test_the_step_limit_is_a_failure_with_its_own_code(ledger: Ledger) -> None:
    @tool
    async def look() -> None: ...

    model = FunctionModel(lambda request: assistant("", call(f"c{request.step}")))
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[look], max_steps=3), ledger)
    with pytest.raises(RunFailed) as caught:
        await durable.run("go", id="w1")
    assert caught.value.failure == "STEP_LIMIT"
    assert len(model.asked) == 3
    assert (await ledger.load("w1")).status is Status.FAILED
    with pytest.raises(RunFailed):
        await durable.run("go", id="w1")


async def test_an_answer_that_does_not_fit_is_repaired_once(ledger: Ledger) -> None:
    model = ScriptedModel(["seven", "7"])
    durable = CheckpointedAgent(Agent(model, name="numbers", output=int), ledger)
    assert await durable.run("go", id="n1") == 7
    assert model.asked[0].output_schema == {"type": "integer"}
    assert "does not fit" in str(model.asked[1].messages[-1])
    never = CheckpointedAgent(Agent(ScriptedModel(["seven", "eight"]), name="numbers", output=int), ledger)
    with pytest.raises(RunFailed) as caught:
        await never.run("go", id="n2")
    assert caught.value.failure == "OUTPUT_INVALID"


async def test_i05_a_lost_lease_stops_the_agent_and_is_raised_bare(ledger: Ledger) -> None:
    started = anyio.Event()
    ended: list[str] = []

    @tool
    async def long() -> None:
        started.set()
        try:
            await anyio.sleep(60)
        except Exception:  # noqa: BLE001 - a tool that swallows everything
            ended.append("swallowed")
        finally:
            ended.append("cancelled")

    model = ScriptedModel([assistant("", call("c1", "long"))])
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[long]), ledger)
    caught: list[BaseException] = []

    async def run() -> None:
        try:
            await durable.run("go", id="w1")
        except LeaseLost as lost:
            caught.append(lost)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await started.wait()
        await ledger.cancel("w1", reason="enough")
    assert [type(error) for error in caught] == [LeaseLost]
    assert ended == ["cancelled"]


async def test_an_answer_that_cannot_be_stored_fails_the_run_by_name(ledger: Ledger) -> None:
    model = ScriptedModel([assistant("\ud800")])
    with pytest.raises(RunFailed) as caught:
        await CheckpointedAgent(Agent(model, name="walker"), ledger).run("go", id="w1")
    assert caught.value.failure == "INVALID_CONTENT"


async def test_an_agent_opens_what_it_is_not_given() -> None:
    agent = Agent(ScriptedModel(["done"]), name="walker")
    assert await CheckpointedAgent(agent, "memory://").run("go") == "done"
    async with CheckpointedAgent(agent, "memory://") as durable:
        assert await durable.run("go", id="w1") == await durable.run("go", id="w1") == "done"
    with pytest.raises(ValueError, match="of the block"):
        async with CheckpointedAgent(agent, "memory://"):
            message = "of the block"
            raise ValueError(message)
    with pytest.raises(RuntimeError):
        await CheckpointedAgent(Agent(ScriptedModel([RuntimeError()]), name="walker"), "memory://").run("go")


async def test_the_output_type_flows_through_every_door(ledger: Ledger) -> None:
    agent = Agent(ScriptedModel(["[1]"]), name="numbers", output=list[int])
    handle = await ledger.submit(agent, "go", id="n1")
    assert_type(handle, Handle[list[int]])
    durable = CheckpointedAgent(agent, ledger)
    assert_type(durable, CheckpointedAgent[list[int]])
    (entry,) = await durable.recover_all()
    assert_type(entry.output, list[int] | None)
    assert entry.output == await handle.result() == [1]
    await ledger.submit(agent, "go", id="n2")
    assert_type(await durable.recover("n2"), list[int])


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_agent_runs_on_either_loop(anyio_backend: str) -> None:
    @tool
    def look(at: int) -> int:
        return at

    calls = [call(f"c{n}", at=n) for n in range(3)]
    agent = Agent(ScriptedModel([assistant("", *calls), "done"]), name="walker", tools=[look])
    async with CheckpointedAgent(agent, "memory://") as durable:
        assert await durable.run("go", id="w1") == "done"
        async with durable.stream("go", id="w2") as items:
            assert await items.result() == "done"


class Talkative:
    """A model that answers with what is no answer."""

    name = "talkative"

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def ask(self, request: ModelRequest, /) -> Any:
        return self._answer


@pytest.mark.parametrize("given", ["gpt-4", None, FunctionModel, object()])
def test_what_is_no_model_is_refused_when_the_agent_is_made(given: Any) -> None:
    with pytest.raises(NotAllowed, match="is no model: one has a name and an async ask"):
        Agent(given, name="walker")


def test_what_is_no_function_is_no_tool() -> None:
    with pytest.raises(NotAllowed, match="7 is among the tools of an agent; a tool is a function"):
        Agent(ScriptedModel(["done"]), name="walker", tools=[7])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "model, said",
    [
        (Talkative(None), "model talkative answered with NoneType; its ask returns a ModelReply"),
        (Talkative({"text": "hush"}), "model talkative answered with dict; its ask returns a ModelReply"),
        (Talkative(ModelReply(message="hush")), "model talkative answered with str; its ask"),  # type: ignore[arg-type]
        (FunctionModel(lambda _: 7), "the rule of a model answered with int"),  # type: ignore[arg-type,return-value]
    ],
)
async def test_an_answer_that_is_none_names_the_model_and_not_what_it_said(
    ledger: Ledger, model: Any, said: str
) -> None:
    with pytest.raises(NotAllowed, match=said) as failed:
        await CheckpointedAgent(Agent(model, name="walker"), ledger).run("go")
    assert "hush" not in failed.value.message
