"""The run in whose name code runs, and the gate before a step's calls."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from agent.parts import call, events
from tenure import (
    ActiveRun,
    Agent,
    App,
    CheckpointedAgent,
    Ledger,
    NotAllowed,
    RunCancelled,
    Status,
    StepBoundary,
    TryLater,
    Worker,
    current_run,
    tool,
)
from tenure.core.messages import assistant
from tenure.testing.models import FunctionModel


def here(what: str) -> tuple[Any, ...]:
    run = current_run()
    run.check()
    return what, run.id, run.kind, run.attempt, run.token, run.effect_key(), run.effect_key("mail"), run.deps


async def test_tools_know_their_run_call_and_token_in_tasks_and_threads(ledger: Ledger) -> None:
    seen: list[tuple[Any, ...]] = []

    @tool
    async def tasks() -> None:
        async def one() -> None:
            seen.append(here("task"))

        async with anyio.create_task_group() as group:
            group.start_soon(one)

    @tool
    def thread() -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(here("thread"))

    calls = [call("c1", "tasks"), call("c2", "thread")]
    model = FunctionModel(lambda r: assistant("", *calls) if r.step == 1 else "done")
    await CheckpointedAgent(Agent(model, name="walker", tools=[tasks, thread]), ledger).run("go", id="w1")
    token = (await ledger.load("w1")).token
    assert sorted(seen) == [
        ("task", "w1", "walker", 1, token, "w1:c1", "w1:c1:mail", None),
        ("thread", "w1", "walker", 1, token, "w1:c2", "w1:c2:mail", None),
    ]
    with pytest.raises(NotAllowed, match="there is no run here"):
        current_run()


async def test_handlers_and_the_tools_of_their_agents_share_what_the_lifespan_gave(ledger: Ledger) -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(_: App) -> Any:
        yield "deps"

    app, seen = App(lifespan=lifespan), list[tuple[Any, ...]]()

    @tool
    def look() -> None:
        seen.append(here("tool"))

    @app.kind("plain")
    async def plain(run: ActiveRun[Any], input: Any) -> None:
        def step() -> None:
            seen.append(here("step"))

        await run.step("s", step)

    model = FunctionModel(lambda r: assistant("", call("c1")) if r.step == 1 else "done")
    walker = app.agent(Agent(model, name="walker", tools=[look]))
    async with Worker(app, ledger, drain=1):
        for kind, run_id in ((plain, "r1"), (walker, "r2")):
            await (await ledger.submit(kind, "go", id=run_id)).result(timeout=30)
    assert [(found[0], found[1], found[5], found[-1]) for found in seen] == [
        ("step", "r1", "r1", "deps"),
        ("tool", "r2", "r2:c1", "deps"),
    ]


async def test_o02_o06_the_gate_is_passed_when_the_calls_have_landed_and_none_was_made(ledger: Ledger) -> None:
    made: list[str] = []
    passed: list[StepBoundary] = []

    @tool
    async def look(at: int) -> int:
        made.append(f"look {at}")
        return at

    async def gate(boundary: StepBoundary) -> None:
        types = [event["type"] for event in await events(ledger, "w1")]
        assert types.count("assistant/message") == boundary.step
        assert types.count("record") == boundary.step - 1
        made.append(f"gate {boundary.step} of {current_run().id}")
        passed.append(boundary)
        await anyio.lowlevel.checkpoint()

    model = FunctionModel(lambda r: assistant("", call(f"c{r.step}", at=r.step)) if r.step < 3 else "done")
    agent = Agent(model, name="walker", tools=[look], before_calls=gate)
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    assert made == ["gate 1 of w1", "look 1", "gate 2 of w1", "look 2"]
    assert [boundary.calls[0].id for boundary in passed] == ["c1", "c2"]


async def test_o06_a_gate_may_put_the_run_off_and_no_call_is_made(ledger: Ledger) -> None:
    made: list[int] = []

    @tool
    async def look(at: int) -> int:
        made.append(at)
        return at

    closed = [True]

    def gate(_: StepBoundary) -> None:
        if closed and closed.pop():
            raise TryLater(after=0)

    model = FunctionModel(lambda r: assistant("", call("c1", at=1)) if r.step == 1 else "done")
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[look], before_calls=gate), ledger)
    with pytest.raises(TryLater):
        await durable.run("go", id="w1")
    run = await ledger.load("w1")
    assert (run.status, run.failures, made) == (Status.QUEUED, 0, [])
    assert await durable.run("go", id="w1") == "done"
    assert (made, len(model.asked)) == ([1], 2), "O-16: the step's model call is not made again"


async def test_o06_a_gate_that_ends_the_run_itself_is_the_end(ledger: Ledger) -> None:
    @tool
    async def look(at: int) -> int:
        raise AssertionError

    async def gate(_: StepBoundary) -> None:
        await current_run().lease.settle(Status.CANCELLED, code="cancelled", message="not today")

    model = FunctionModel(lambda r: assistant("", call("c1", at=1)))
    app = App()
    walker = app.agent(Agent(model, name="walker", tools=[look], before_calls=gate))
    async with Worker(app, ledger, drain=1):
        handle = await ledger.submit(walker, "go", id="w1")
        with pytest.raises(RunCancelled):
            await handle.result(timeout=30)
        run = await handle.load()
    assert run.outcome is not None
    assert run.outcome.message == "not today"
