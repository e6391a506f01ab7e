"""What a checkpointed agent promises, line by line; lines that other tests prove carry their ids there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.parts import call, events
from tenure import (
    Agent,
    CheckpointedAgent,
    LeaseHeld,
    LeaseLost,
    Ledger,
    NotAllowed,
    RunClosed,
    RunFailed,
    Status,
    Store,
    Where,
    open_store,
    tool,
)
from tenure.core import build
from tenure.core.messages import AssistantMessage, ProviderPart, Text, assistant
from tenure.core.run import How
from tenure.testing.models import FunctionModel, ScriptedModel


@tool
async def look(at: int) -> int:
    return at


def walker(**options: Any) -> Agent[str]:
    return Agent(ScriptedModel([assistant("", call("c1", at=1)), "done"]), name="walker", tools=[look], **options)


async def test_o01_one_way_to_make_one_and_the_store_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert await CheckpointedAgent(walker()).run("go", id="w1") == "done"
    async with open_store("sqlite:///.tenure/tenure.db") as store:
        run = await store.load("w1")
    assert run is not None
    assert run.status is Status.COMPLETED, "kept by default: another process finds it"


async def test_o03_a_stream_gives_the_output_and_the_run_s_id(ledger: Ledger) -> None:
    async with CheckpointedAgent(walker(), ledger).stream("go", id="w1") as items:
        assert items.id == "w1"
        assert await items.result() == "done"


async def test_o04_o05_nothing_runs_before_a_call_or_after_it() -> None:
    before = set(threading.enumerate())
    agent = walker()
    durable = CheckpointedAgent(agent, "memory://")
    assert set(threading.enumerate()) == before, "made, and nothing was opened or started"
    assert await durable.run("go") == "done"
    left = [thread.name for thread in set(threading.enumerate()) - before if "AnyIO" not in thread.name]
    assert left == [], "recovery happens inside the call that asks for it"
    assert await look(3) == 3, "a tool is still the function"


async def test_o07_a_wrapper_does_not_take_a_wrapper() -> None:
    durable = CheckpointedAgent(walker(), "memory://")
    with pytest.raises(NotAllowed, match="takes an Agent"):
        # Strict mypy fails here if this is no error of types.
        CheckpointedAgent(durable, "memory://")  # type: ignore[arg-type]


async def test_o08_what_the_provider_ran_itself_is_not_among_the_held_calls(ledger: Ledger) -> None:
    theirs = ProviderPart(provider="p", content={"type": "server_tool_use", "id": "srv1", "name": "web_search"})
    answers: list[AssistantMessage | str] = [
        AssistantMessage(parts=(Text(text="searching"), theirs, call("c1", at=1))),
        "done",
    ]
    agent = Agent(ScriptedModel(answers), name="walker", tools=[look])
    await CheckpointedAgent(agent, ledger).run("go", id="w1")
    (held,) = [event["held"] for event in await events(ledger, "w1") if event["type"] == "assistant/message"][:1]
    assert held == ["c1"]
    model = agent.model
    assert isinstance(model, ScriptedModel)
    assert theirs in model.asked[-1].messages[1].parts, "carried verbatim"


async def test_o13_o14_o_l3_o_l4_an_ended_run_is_out_of_every_sweep_in_the_write_that_ends_it(
    ledger: Ledger, store: Store
) -> None:
    durable = CheckpointedAgent(walker(), ledger)
    await durable.run("go", id="ended")
    failing = Agent(ScriptedModel([assistant("", call("c1", at=1))]), name="walker", tools=[look], max_steps=1)
    await ledger.submit("walker", "go", id="failed")
    with pytest.raises(RunFailed):
        await CheckpointedAgent(failing, ledger).recover("failed")
    assert await store.due(["walker"]) == []
    assert await durable.recover_all() == []
    with pytest.raises(RunClosed):
        await durable.recover("ended")
    rows = await store.tail("ended")
    assert b'"status":"completed"' in rows[-1].body, "its end and its last event are one commit: no window between them"


async def test_o_l7_o_l8_o_l6_a_run_that_is_alive_does_not_look_dead_whoever_sweeps_and_when(
    ledger: Ledger, store: Store
) -> None:
    reached, go = anyio.Event(), anyio.Event()

    @tool(name="look")
    async def slow(at: int) -> int:
        reached.set()
        await go.wait()
        return at

    alive = Agent(ScriptedModel([assistant("", call("c1", at=1)), "done"]), name="walker", tools=[slow])
    async with anyio.create_task_group() as tasks, Ledger(store, ttl=30) as other:
        tasks.start_soon(lambda: CheckpointedAgent(alive, ledger).run("go", id="w1"))
        await reached.wait()
        assert await CheckpointedAgent(walker(), other).recover_all() == []
        with pytest.raises(LeaseHeld):
            await CheckpointedAgent(walker(), other).recover("w1")
        go.set()
    assert (await ledger.load("w1")).attempt == 1


async def test_o_l5_a_checkpoint_of_somebody_who_lost_the_run_is_refused(ledger: Ledger) -> None:
    await ledger.submit("walker", "go", id="w1")
    with pytest.raises(LeaseLost):
        async with ledger.hold("w1") as lease:
            await ledger.ask(build.end(run="w1", how=How.FORFEIT, token=lease.token, nonce=lease.grant.nonce))
            await lease.checkpoint("never")
    assert b"never" not in b"".join(row.body for row in await ledger.store.tail("w1"))


async def test_o_l9_o_l2_a_result_that_was_recorded_is_not_made_again_in_the_same_step(ledger: Ledger) -> None:
    made: list[str] = []
    dead = [True]

    @tool(name="look")
    async def counted(at: int) -> int:
        made.append(f"{at}")
        if at == 2 and dead and dead.pop():
            async for event in ledger.handle("w1").events(follow=True):
                if event[1]["type"] == "record":
                    break
            run = await ledger.load("w1")
            await ledger.ask(build.end(run="w1", how=How.FORFEIT, token=run.token, nonce=run.nonce))
            await ledger.store.wake("run:w1")
            await anyio.sleep_forever()
        return at

    calls = [call(f"c{n}", at=n) for n in (1, 2)]
    model = FunctionModel(lambda r: assistant("", *calls) if r.step == 1 else "done")
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[counted]), ledger)
    with pytest.raises(LeaseLost):
        await durable.run("go", id="w1")
    assert await durable.run("go", id="w1") == "done"
    assert sorted(made) == ["1", "2", "2"], "only the call in flight at the death"


async def test_o_l12_a_sweep_is_bounded_and_works_side_by_side(ledger: Ledger) -> None:
    running, most = [0], [0]

    async def answer(_: Any) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await anyio.sleep(0.05)
        running[0] -= 1
        return "done"

    for n in range(7):
        await ledger.submit("walker", "go", id=f"w{n}")
    durable = CheckpointedAgent(Agent(FunctionModel(answer), name="walker"), ledger)
    found = await durable.recover_all(limit=5, concurrency=2)
    assert len(found) == 5
    assert 1 <= most[0] <= 2
    assert len(await durable.recover_all()) == 2


async def test_o24_what_is_stored_is_no_part_of_what_was_passed(ledger: Ledger) -> None:
    value = {"list": [1]}
    await ledger.submit("k", value, id="r1")
    value["list"].append(2)
    async with ledger.hold("r1") as lease:
        assert lease.state.input == {"list": [1]}
        lease.state.input["list"].append(3)
        await lease.checkpoint(value)
        value["list"].append(4)
    async with ledger.hold("r1") as again:
        assert (again.state.input, again.last) == ({"list": [1]}, {"list": [1, 2]})


async def test_o27_suspended_runs_are_listed_newest_first_in_pages_and_a_bad_cursor_is_an_error(
    ledger: Ledger, store: Store
) -> None:
    for n in range(5):
        await ledger.submit("k", None, id=f"r{n}")
        async with ledger.hold(f"r{n}") as lease:
            await lease.suspend(signals=["go"])
    where, found, cursor = Where(status=(Status.SUSPENDED,)), list[str](), None
    while True:
        page = await store.find(where, cursor=cursor, limit=2)
        assert len(page.runs) <= 2
        found += [run.id for run in page.runs]
        if (cursor := page.cursor) is None:
            break
    assert found == ["r4", "r3", "r2", "r1", "r0"]
    with pytest.raises(NotAllowed):
        await store.find(where, cursor="no cursor of ours", limit=2)


async def test_o28_null_and_nothing_are_two_things(ledger: Ledger) -> None:
    await ledger.submit("k", None, id="null")
    await ledger.submit("k", None, id="open")
    async with ledger.hold("null") as lease:
        assert lease.last is None
        await lease.checkpoint(None)
        assert (lease.last, lease.state.checkpoints) == (None, 1)
        await lease.settle("completed", None)
    ended, waiting = await ledger.load("null"), await ledger.load("open")
    assert ended.outcome is not None
    assert await ledger.store.blob("null", ended.outcome.result) == b"null"
    assert waiting.outcome is None
