"""Recovery: who goes on with a run, from where, and who leaves it to another."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent.parts import call, events
from tenure import (
    LeaseHeld,
    LeaseLost,
    Ledger,
    RunClosed,
    RunDeclined,
    RunNotFound,
    RunQuarantined,
    Status,
    Store,
)
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.model import ModelReply
from tenure.agent.runner import drive
from tenure.agent.tool import tool
from tenure.core import journal
from tenure.core.messages import assistant
from tenure.core.run import How
from tenure.retry import TryLater
from tenure.testing.models import FunctionModel, ScriptedModel
from worker.kit import dead


async def test_b139_a_failing_model_leaves_the_run_and_only_its_own_call_is_made_again(ledger: Ledger) -> None:
    sent: list[str] = []
    trouble = [True, True]

    @tool
    async def send() -> str:
        sent.append("message")
        return "sent"

    def answer(request: Any) -> Any:
        if request.step == 1:
            return assistant("", call("c1", "send"))
        return RuntimeError("provider down") if trouble and trouble.pop() else "done"

    model = FunctionModel(answer)
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[send]), ledger)
    with pytest.raises(RuntimeError):
        await durable.run("go", id="w1")
    run = await ledger.load("w1")
    assert (run.status, run.failures) == (Status.QUEUED, 1)
    for _ in range(3):
        try:
            assert await durable.recover("w1") == "done"
            break
        except RuntimeError:
            continue
        except LeaseHeld as held:
            await anyio.sleep(held.remaining_ms / 1000)
    assert sent == ["message"]
    assert [request.step for request in model.asked] == [1, 2, 2, 2]


async def test_o15_recover_says_why_it_cannot(ledger: Ledger) -> None:
    durable = CheckpointedAgent(Agent(ScriptedModel(["done"]), name="walker"), ledger)
    await durable.run("go", id="w1")
    with pytest.raises(RunClosed) as closed:
        await durable.recover("w1")
    assert closed.value.run is not None
    assert closed.value.run.outcome is not None
    with pytest.raises(RunNotFound):
        await durable.recover("nobody")
    await ledger.submit("other", "go", id="o1")
    with pytest.raises(RunDeclined, match="kind other"):
        await durable.recover("o1")
    await ledger.submit("walker", "go", id="w2")
    async with ledger.hold("w2"):
        with pytest.raises(LeaseHeld):
            await durable.recover("w2")


async def test_o19_o21_a_sweep_recovers_each_run_and_one_failure_is_one_entry(ledger: Ledger) -> None:
    def answer(request: Any) -> Any:
        text = str(request.messages)
        return ValueError("bad prompt") if "bad" in text else "done"

    agent = Agent(FunctionModel(answer), name="walker")
    for n, prompt in enumerate(["good", "bad", "good", "held", "good"]):
        await ledger.submit(agent, prompt, id=f"w{n}")
    async with ledger.hold("w3"):
        entries = await CheckpointedAgent(agent, ledger).recover_all(concurrency=2)
    assert [(entry.run_id, entry.ok) for entry in entries] == [("w0", True), ("w1", False), ("w2", True), ("w4", True)]
    assert isinstance(entries[1].error, ValueError)
    assert [entry.output for entry in entries if entry.ok] == ["done"] * 3
    assert entries[0].status is Status.COMPLETED
    again = await CheckpointedAgent(agent, ledger).recover_all(limit=1)
    assert len(again) == 1, "at most as many as asked for, of the two that are left"
    assert {entry.run_id for entry in again} <= {"w1", "w3"}, "O-13: what has settled is in no sweep"


async def test_o20_several_sweeps_share_the_work(ledger: Ledger, store: Store) -> None:
    model = FunctionModel(lambda _: "done")
    agent = Agent(model, name="walker")
    for n in range(20):
        await ledger.submit(agent, "go", id=f"w{n}")
    found: list[str] = []

    async def sweep(over: Ledger) -> None:
        found.extend(entry.run_id for entry in await CheckpointedAgent(agent, over).recover_all() if entry.ok)

    async with Ledger(store) as second, anyio.create_task_group() as tasks:
        tasks.start_soon(sweep, ledger)
        tasks.start_soon(sweep, second)
    assert sorted(found) == sorted(f"w{n}" for n in range(20))
    assert len(model.asked) == 20


async def test_a_held_call_that_cannot_be_made_here_is_left_to_another_worker(ledger: Ledger) -> None:
    @tool
    async def look(at: int) -> int:
        return at

    @tool(name="look")
    async def changed(at: str) -> str:
        return at

    agent = Agent(ScriptedModel([assistant("", call("c1", at=1)), "done"]), name="walker", tools=[look])
    await ledger.submit(agent, "go", id="w1")
    with pytest.raises(RuntimeError, match="stop here"):
        async with ledger.hold("w1") as lease:
            await _stop_before_calls(agent, lease)
    for other in (Agent(ScriptedModel([]), name="walker"), Agent(ScriptedModel([]), name="walker", tools=[changed])):
        with pytest.raises(RunDeclined, match="c1"):
            await CheckpointedAgent(other, ledger).recover("w1")
        run = await ledger.load("w1")
        assert (run.status, run.failures) == (Status.QUEUED, 1), "handed back, and no failure of the run"
        await _make_due(ledger, "w1")
    assert await CheckpointedAgent(agent, ledger).recover("w1") == "done"


async def _stop_before_calls(agent: Agent[Any], lease: Any) -> None:
    async def stop(*_: Any) -> None:
        message = "stop here"
        raise RuntimeError(message)

    from tenure.agent import calls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls.Calls, "settle", stop)
        await drive(agent, lease)


async def _make_due(ledger: Ledger, run_id: str) -> None:
    # An operator's way to a run that waits: what is cut short is the wait alone.
    space = ledger.store._space  # type: ignore[attr-defined]
    from dataclasses import replace

    shelf = space.shelves[run_id]
    shelf.run = replace(shelf.run, due_ms=shelf.run.created_ms)


async def test_o18_instructions_may_change_and_the_journal_says_when(ledger: Ledger) -> None:
    down = [True]

    def answer(request: Any) -> Any:
        return RuntimeError("down") if down and down.pop() and request.step == 2 else _next(request)

    def _next(request: Any) -> Any:
        return assistant("", call("c1")) if request.step == 1 else "done"

    @tool
    async def look() -> None:
        down.append(True)

    first = Agent(FunctionModel(answer), name="walker", tools=[look], instructions="one")
    down.clear()
    with pytest.raises(RuntimeError):
        await CheckpointedAgent(first, ledger).run("go", id="w1")
    second = Agent(FunctionModel(_next, name="better"), name="walker", tools=[look], instructions="two")
    assert await CheckpointedAgent(second, ledger).recover("w1") == "done"
    shapes = [event for event in await events(ledger, "w1") if event["type"] == "agent/shape"]
    assert [(shape["instructions"], shape["model"]) for shape in shapes] == [("one", "function"), ("two", "better")]
    assert shapes[0]["digest"] == shapes[1]["digest"]


async def test_b105_a_journal_that_cannot_be_continued_sets_the_run_aside(ledger: Ledger) -> None:
    agent = Agent(ScriptedModel(["done"]), name="walker")
    await ledger.submit(agent, "go", id="w1")
    async with ledger.hold("w1") as lease:
        broken = {"schema": 1, "role": "assistant", "parts": [{"type": "hologram"}]}
        await lease.commit([journal.event("assistant/message", step=1, message=broken)])
    with pytest.raises(RunQuarantined, match="hologram"):
        await CheckpointedAgent(agent, ledger).recover("w1")
    run = await ledger.load("w1")
    assert run.status is Status.QUARANTINED
    assert "hologram" in run.grants[-1].reason


async def test_a_message_of_a_newer_schema_is_left_to_a_newer_worker(ledger: Ledger) -> None:
    agent = Agent(ScriptedModel(["done"]), name="walker")
    await ledger.submit(agent, "go", id="w1")
    async with ledger.hold("w1") as lease:
        newer = {"schema": 9, "role": "assistant", "parts": []}
        await lease.commit([journal.event("assistant/message", step=1, message=newer)])
    with pytest.raises(RunDeclined, match="schema 9"):
        await CheckpointedAgent(agent, ledger).recover("w1")
    assert (await ledger.load("w1")).status is Status.QUEUED


async def test_o22_m_ck43_a_forfeited_run_is_taken_over_where_it_stood(ledger: Ledger, store: Store) -> None:
    made: list[str] = []
    reached = anyio.Event()

    @tool
    async def look(n: int) -> int:
        made.append(f"look {n}")
        return n

    async def answer(request: Any) -> Any:
        if request.step == 2 and request.attempt == 1:
            reached.set()
            await anyio.sleep(60)
        return assistant("", call("c1", n=1), call("c2", n=2)) if request.step == 1 else "done"

    agent = Agent(FunctionModel(answer), name="walker", tools=[look])

    async def first() -> None:
        with pytest.raises(LeaseLost):
            await CheckpointedAgent(agent, ledger).run("go", id="w1")

    async with Ledger(store) as second, anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await reached.wait()
        run = await second.load("w1")
        from tenure.core import build

        await second.ask(build.end(run="w1", how=How.FORFEIT, token=run.token, nonce=run.nonce))
        assert await CheckpointedAgent(agent, second).recover("w1") == "done"
        tasks.cancel_scope.cancel()
    assert sorted(made) == ["look 1", "look 2"]


async def test_a_tool_may_put_the_run_off(ledger: Ledger) -> None:
    early = [True]

    @tool
    async def look() -> str:
        if early and early.pop():
            raise TryLater(after=0.05)
        return "open"

    agent = Agent(ScriptedModel([assistant("", call("c1")), "done"]), name="walker", tools=[look])
    with pytest.raises(TryLater):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    run = await ledger.load("w1")
    assert (run.status, run.failures) == (Status.QUEUED, 0)
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"


async def test_i22_a_run_whose_process_died_is_recovered_alone(ledger: Ledger) -> None:
    beside: dict[str, list[int]] = {}
    going = [0]
    together = anyio.Event()

    async def answer(request: Any) -> Any:
        going[0] += 1
        beside.setdefault(request.run_id, []).append(going[0])
        if request.run_id.startswith("fresh"):
            if going[0] == 3:
                together.set()
            with anyio.fail_after(30):
                await together.wait()
        else:
            await anyio.sleep(0.05)
        going[0] -= 1
        return "done"

    agent = Agent(Slow(answer), name="walker")
    for n in range(3):
        await ledger.submit(agent, "go", id=f"dead{n}")
        await dead(ledger, f"dead{n}")
        await ledger.submit(agent, "go", id=f"fresh{n}")
    found = await CheckpointedAgent(agent, ledger).recover_all()
    assert [entry.output for entry in found] == ["done"] * 6
    assert [beside[f"dead{n}"] for n in range(3)] == [[1]] * 3
    assert max(beside[f"fresh{n}"][0] for n in range(3)) == 3


class Slow:
    """A model that takes its time."""

    name = "slow"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def ask(self, request: Any, /) -> ModelReply:
        return ModelReply(message=assistant(await self._answer(request)))


async def test_i24_a_call_that_puts_the_run_off_leaves_none_of_those_beside_it_in_doubt(ledger: Ledger) -> None:
    made: list[str] = []

    @tool
    async def later() -> str:
        made.append("later")
        if made.count("later") == 1:
            raise TryLater(after=0)
        return "now"

    @tool(effect="ask")
    async def pay() -> str:
        made.append("pay")
        await anyio.sleep(0.05)
        return "paid"

    model = ScriptedModel([assistant("", call("c1", "pay"), call("c2", "later")), "done"])
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[pay, later]), ledger)
    with pytest.raises(TryLater):
        await durable.run("go", id="w1")
    assert await durable.recover("w1") == "done"
    assert sorted(made) == ["later", "later", "pay"]
