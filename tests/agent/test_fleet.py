"""An agent as a kind of an app: a worker goes on with it like with any handler, and drains it between steps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent.parts import call, events
from tenure import Agent, App, CheckpointedAgent, Ledger, RunCancelled, RunFailed, Status, tool
from tenure.active import ActiveRun
from tenure.agent.tool import Tool
from tenure.core.messages import assistant
from tenure.perform import perform
from tenure.testing.models import FunctionModel, ScriptedModel


def app_with(agent: Agent[Any], **options: Any) -> App:
    app = App()
    app.agent(agent, **options)
    return app


async def work(app: App, ledger: Ledger, run_id: str, seen: list[ActiveRun[Any]] | None = None) -> None:
    async with ledger.hold(run_id) as lease:
        await perform(app, ledger, lease, began=([] if seen is None else seen).append)


@tool
async def look(n: int) -> int:
    return n


async def test_a_worker_finishes_what_an_agent_in_another_process_began(ledger: Ledger) -> None:
    down = [True]

    def answer(request: Any) -> Any:
        if request.step == 1:
            return assistant("", call("c1", n=1))
        return RuntimeError("down") if down and down.pop() else "done"

    agent = Agent(FunctionModel(answer), name="walker", tools=[look])
    with pytest.raises(RuntimeError):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    await work(app_with(agent), ledger, "w1")
    assert await ledger.handle("w1", agent).result() == "done"
    assert [request.step for request in agent.model.asked] == [1, 2, 2]  # type: ignore[attr-defined]


async def test_an_agent_finishes_what_a_worker_began(ledger: Ledger) -> None:
    down = [True]
    agent = Agent(FunctionModel(lambda _: RuntimeError("x") if down and down.pop() else "done"), name="walker")
    await ledger.submit(agent, "go", id="w1")
    await work(app_with(agent, retries=1), ledger, "w1")
    run = await ledger.load("w1")
    assert (run.status, run.failures) == (Status.QUEUED, 1)
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"


async def test_an_agent_that_gives_up_fails_its_run_with_its_own_code(ledger: Ledger) -> None:
    agent = Agent(ScriptedModel(["x", "y"]), name="numbers", output=int)
    handle = await ledger.submit(agent, "go", id="n1")
    await work(app_with(agent), ledger, "n1")
    with pytest.raises(RunFailed) as caught:
        await handle.result()
    assert caught.value.failure == "OUTPUT_INVALID"


async def test_a_suspended_agent_has_ended_its_lease_by_itself(ledger: Ledger) -> None:
    @tool(effect="ask")
    async def pay() -> str:
        return "paid"

    agent = Agent(ScriptedModel([assistant("", call("c1", "pay")), "done"]), name="walker", tools=[pay])
    await ledger.submit(agent, "go", id="w1")
    await _started_and_lost(ledger, agent)
    await work(app_with(agent), ledger, "w1")
    assert (await ledger.load("w1")).status is Status.SUSPENDED
    await CheckpointedAgent(agent, ledger).resolve("w1", "c1", result="paid before")
    await work(app_with(agent), ledger, "w1")
    assert await ledger.handle("w1", agent).result() == "done"


async def _started_and_lost(ledger: Ledger, agent: Agent[Any]) -> None:
    """A first attempt that announced its call and was handed back before there was a result."""

    async def lost(*_: Any, **__: Any) -> Any:
        message = "the worker goes away"
        raise ConnectionAbortedError(message)

    from tenure.agent.calls import Calls

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionAbortedError):
        patch.setattr(Calls, "_make", lost)
        await CheckpointedAgent(agent, ledger).recover("w1")


def slow_tool(reached: anyio.Event, go: anyio.Event, **options: Any) -> Tool[..., Any]:
    async def slow() -> str:
        reached.set()
        await go.wait()
        return "late"

    return tool(**options)(slow)


async def test_i23_a_drain_lets_the_calls_in_hand_end_and_asks_the_model_nothing_more(ledger: Ledger) -> None:
    reached, go = anyio.Event(), anyio.Event()
    model = ScriptedModel([assistant("", call("c1", "slow")), "done"])
    agent = Agent(model, name="walker", tools=[slow_tool(reached, go, effect="fail")])
    await ledger.submit(agent, "go", id="w1")
    seen: list[ActiveRun[Any]] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, app_with(agent), ledger, "w1", seen)
        await reached.wait()
        seen[0].steps.draining = True
        go.set()
    run = await ledger.load("w1")
    assert (run.status, run.failures) == (Status.QUEUED, 0)
    assert [e["name"] for e in await events(ledger, "w1") if e["type"] == "record"] == ["tool:c1"]
    assert len(model.asked) == 1
    assert await CheckpointedAgent(agent, ledger).recover("w1") == "done"


async def test_an_agent_that_is_asked_to_end_starts_nothing_more(ledger: Ledger) -> None:
    reached, go = anyio.Event(), anyio.Event()
    model = ScriptedModel([assistant("", call("c1", "slow")), "never"])
    agent = Agent(model, name="walker", tools=[slow_tool(reached, go)])
    handle = await ledger.submit(agent, "go", id="w1")
    seen: list[ActiveRun[Any]] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, app_with(agent), ledger, "w1", seen)
        await reached.wait()
        await ledger.cancel("w1", reason="enough", grace=30)
        with anyio.fail_after(5):
            while not seen[0].steps.cancel_asked:  # noqa: ASYNC110 - it is told by another task, by polling
                await anyio.sleep(0.01)
        go.set()
    with pytest.raises(RunCancelled, match="enough"):
        await handle.result()
    assert len(model.asked) == 1
