"""Forks: a run that begins where another one stood, shares nothing with it, and leaves it as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.test_loop import assert_valid
from journal.kit import LAST, answer, walk, walker
from tenure import (
    ActiveRun,
    App,
    CheckpointedAgent,
    Ledger,
    ModelRequest,
    NotAllowed,
    RunConflict,
    RunDeclined,
    RunFailed,
    Status,
    Store,
    open_store,
    tool,
)
from tenure.agent.agent import Agent
from tenure.core import journal, loop
from tenure.core.budget import held_before_ms
from tenure.core.messages import SystemMessage, ToolCall, assistant, to_json
from tenure.core.run import FIRST_SCHEMA, SCHEMA, Claim, Verdict, Why
from tenure.perform import perform
from tenure.testing.models import FunctionModel


async def _stored(store: Store, run_id: str) -> object:
    return await store.raw(run_id), await store.tail(run_id, limit=1000)


async def test_b115_a_fork_at_step_3_goes_on_from_3_and_4_to_9_stay_as_they_are(ledger: Ledger, store: Store) -> None:
    await walk(ledger)
    before = await _stored(store, "w1")
    fork = await ledger.fork("w1", at=3, id="w2")
    agent = walker()
    assert await CheckpointedAgent(agent, ledger).recover("w2") == "done"
    assert isinstance(agent.model, FunctionModel)
    assert [request.step for request in agent.model.asked] == [4, 5, 6, 7, 8, 9]
    first = [m for m in agent.model.asked[0].messages if not isinstance(m, SystemMessage)]
    assert_valid(first)
    assert [to_json(m) for m in first][-1]["parts"][0]["content"] == {"found": 3}
    assert len(first) == 7
    assert await _stored(store, "w1") == before
    run = await fork.load()
    assert (run.status, run.step, run.parent) == (Status.COMPLETED, LAST - 3, "")
    start = journal.events_of((await store.tail("w2", limit=1))[0])[0]
    origin = await store.tail("w1", after=start["fork"]["seq"] - 1, limit=1)
    assert (start["parent"], start["fork"]["run"], start["fork"]["step"]) == ("w1", "w1", 3)
    assert start["fork"]["head"] == origin[0].digest
    found = await fork.verify()
    assert (found.failures, found.inconclusive) == ((), ())


@pytest.mark.parametrize("at", range(LAST + 1))
async def test_m_ck_l1_a_fork_at_any_step_comes_to_the_same_end(ledger: Ledger, at: int) -> None:
    await walk(ledger)
    fork = await ledger.fork("w1", at=at, id=f"f{at}")
    agent = walker()
    assert await CheckpointedAgent(agent, ledger).recover(fork.id) == "done"
    assert isinstance(agent.model, FunctionModel)
    assert len(agent.model.asked) == LAST - at
    assert (await fork.verify()).ok


async def test_the_same_fork_again_is_the_same_run_and_another_one_is_refused(ledger: Ledger) -> None:
    await walk(ledger)
    assert (await ledger.fork("w1", at=3, id="w2")).id == (await ledger.fork("w1", at=3, id="w2")).id
    with pytest.raises(RunConflict):
        await ledger.fork("w1", at=4, id="w2")
    first, second = await ledger.fork("w1", at=3), await ledger.fork("w1", at=3)
    assert first.id != second.id


async def test_a_fork_of_a_fork_counts_its_steps_on(ledger: Ledger) -> None:
    await walk(ledger)
    await ledger.fork("w1", at=3, id="w2")
    assert await CheckpointedAgent(walker(), ledger).recover("w2") == "done"
    await ledger.fork("w2", at=7, id="w3")
    agent = walker()
    assert await CheckpointedAgent(agent, ledger).recover("w3") == "done"
    assert isinstance(agent.model, FunctionModel)
    assert [request.step for request in agent.model.asked] == [8, 9]
    with pytest.raises(NotAllowed, match="begins after step 3; name a later one, or fork run w1"):
        await ledger.fork("w2", at=2)


async def test_a_place_that_is_none_is_refused_with_what_there_is(ledger: Ledger) -> None:
    await walk(ledger)
    for at, said in ((10, "has 9 steps"), ("99.0", "no 99.0"), ("3.7", "no 3.7"), ("x", "no place"), (-1, "no place")):
        with pytest.raises(NotAllowed, match=said):
            await ledger.fork("w1", at=at)
    with pytest.raises(NotAllowed, match="inside a commit"):
        await ledger.fork("w1", at="2.0")


async def test_a_fork_while_its_origin_goes_on_takes_what_was_there(ledger: Ledger) -> None:
    await ledger.submit("own", "go", id="r1")
    async with ledger.hold("r1") as lease:
        await lease.checkpoint("one")
        await lease.checkpoint("two")
        await ledger.fork("r1", at=1, id="r2")
        await lease.checkpoint("three")
        async with ledger.hold("r2") as other:
            assert (other.last, other.state.input) == ("one", "go")
            await other.checkpoint("another")
        assert lease.last == "three"


async def test_a_fork_between_answer_and_results_makes_the_calls_that_have_none(ledger: Ledger) -> None:
    """The calls of the step are held in the fork as they were, under its own id for outside systems."""
    made: list[str] = []

    @tool
    async def look(context: Any = None, n: int = 0) -> int:
        made.append(f"{n}")
        return n

    def model(request: ModelRequest) -> Any:
        calls = [ToolCall(id=f"c{n}", name="look", arguments={"n": n}) for n in (1, 2)]
        return assistant("", *calls) if request.step == 1 else "done"

    agent = Agent(FunctionModel(model), name="pair", tools=[look])
    assert await CheckpointedAgent(agent, ledger).run("go", id="p1") == "done"
    events = [(address, event) async for address, event in ledger.handle("p1").events()]
    at = next(address for address, event in events if event["type"] == "assistant/message")
    await ledger.fork("p1", at=at, id="p2")
    assert await CheckpointedAgent(agent, ledger).recover("p2") == "done"
    assert sorted(made) == ["1", "1", "2", "2"]
    state = loop.fold([event async for _, event in ledger.handle("p2").events()])
    assert_valid(state.messages[:-1])


def _handlers(made: list[str], broken: list[str]) -> App:
    app = App()

    @app.kind("chain")
    async def chain(run: ActiveRun[int], n: int) -> list[int]:
        def one(key: str) -> int:
            made.append(key)
            if key in broken:
                raise ValueError(key)
            return n * 10 + int(key)

        return [await run.step(key, one, key) for key in ("1", "2", "3", "4")]

    return app


async def test_a_handler_is_retried_from_a_step_and_what_was_before_it_is_replayed(ledger: Ledger) -> None:
    made: list[str] = []
    broken = ["3"]
    app = _handlers(made, broken)
    await ledger.submit(app.kinds["chain"], 7, id="h1")
    async with ledger.hold("h1") as lease:
        await perform(app, ledger, lease)
    with pytest.raises(RunFailed):
        await ledger.handle("h1").result()
    broken.clear()
    made.clear()
    again = await ledger.retry("h1", step=3)
    assert again.id == "h1-retry-3"
    assert (await ledger.retry("h1", step=3)).id == again.id
    async with ledger.hold(again.id) as lease:
        await perform(app, ledger, lease)
    assert await again.result() == [71, 72, 73, 74]
    assert made == ["3", "4"]
    assert (await again.verify()).ok
    kept = await ledger.fork("h1", at=3, id="h2")
    async with ledger.hold(kept.id) as lease:
        await perform(app, ledger, lease)
    with pytest.raises(RunFailed) as caught:
        await kept.result()
    assert caught.value.failure == "STEP_FAILED", "a fork after the failed step has the step's failure too"
    made.clear()
    whole = await ledger.retry("h2")
    async with ledger.hold(whole.id) as lease:
        await perform(app, ledger, lease)
    assert made == [], "a retry of a fork begins where the fork began"


async def test_steps_that_landed_in_one_commit_are_not_parted(ledger: Ledger) -> None:
    await ledger.submit("own", 0, id="r1")
    async with ledger.hold("r1") as lease:
        event = journal.event(journal.CHECKPOINT, value=1)
        await lease.commit([event, event], step=2)
        await lease.checkpoint("three")
    with pytest.raises(NotAllowed, match="steps 1 to 2 landed together; name 0 or 2"):
        await ledger.fork("r1", at=1)
    assert (await ledger.fork("r1", at=2)).id


async def test_retry_from_a_step_is_for_what_has_ended(ledger: Ledger) -> None:
    await ledger.submit("own", 0, id="r1")
    with pytest.raises(RunConflict, match="goes on by itself"):
        await ledger.retry("r1", step=1)


async def test_b113_a_worker_that_cannot_read_a_restated_beginning_leaves_the_run_alone(
    ledger: Ledger, store: Store
) -> None:
    await walk(ledger)
    assert (await ledger.load("w1")).schema == FIRST_SCHEMA
    await ledger.fork("w1", at=3, id="w2")
    before = await _stored(store, "w2")
    older = Claim(run="w2", nonce="0" * 32, owner="older", ttl_ms=5000, schema=FIRST_SCHEMA)
    answered = await store.commit(older)
    assert (answered.verdict, answered.why) == (Verdict.REFUSED, Why.DECLINED)
    assert await _stored(store, "w2") == before
    assert (await ledger.load("w2")).schema == SCHEMA == 2
    assert await CheckpointedAgent(walker(), ledger).recover("w2") == "done"


async def test_b116_a_held_call_whose_tool_is_gone_is_left_to_a_worker_that_has_it(ledger: Ledger) -> None:
    await walk(ledger)
    events = [(address, event) async for address, event in ledger.handle("w1").events()]
    at = next(address for address, event in events if event["type"] == "assistant/message" and event["step"] == 3)
    await ledger.fork("w1", at=at, id="w2")
    other = Agent(FunctionModel(answer), name="walker", tools=[])
    with pytest.raises(RunDeclined, match="call c3 cannot be made here"):
        await CheckpointedAgent(other, ledger).recover("w2")
    run = await ledger.load("w2")
    assert (run.status, run.failures) == (Status.QUEUED, 0)
    fork = await ledger.fork("w1", at=at, id="w3")
    assert await CheckpointedAgent(walker(instructions="Otherwise."), ledger).recover("w3") == "done"
    shapes = [event async for _, event in fork.events() if event["type"] == "agent/shape"]
    assert [shape["instructions"] for shape in shapes] == ["Otherwise."], "what changed is journaled"


@pytest.mark.parametrize("scheme", ["sqlite", "valkey", "postgres"])
async def test_a_fork_lives_on_every_store(
    scheme: str, request: pytest.FixtureRequest, tmp_path: Path, namespace: str
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if scheme == "sqlite" else request.getfixturevalue(f"{scheme}_url")
    async with open_store(url, namespace=namespace) as store, Ledger(store) as ledger:
        await walk(ledger)
        fork = await ledger.fork("w1", at=5, id="w2")
        assert await CheckpointedAgent(walker(), ledger).recover("w2") == "done"
        assert (await fork.verify()).ok


async def test_a_fork_goes_on_with_the_time_that_its_origin_was_held(ledger: Ledger) -> None:
    await ledger.submit("own", "go", id="r1")
    for _ in range(2):
        async with ledger.hold("r1") as lease:
            await anyio.sleep(0.1)
            await lease.checkpoint("one")
    used_ms = sum(line.until_ms - line.from_ms for line in (await ledger.load("r1")).grants)
    assert used_ms >= 190
    await ledger.fork("r1", at=2, id="r2")
    await ledger.fork("r2", at=2, id="r3")
    for fork in ("r2", "r3"):
        async with ledger.hold(fork) as other:
            assert held_before_ms(other.run, other.state.held_before) == used_ms
