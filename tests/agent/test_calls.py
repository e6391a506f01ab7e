"""Calls and their results: side by side, checked, recorded as values, given back in order."""

from __future__ import annotations

import time
from typing import Any, cast

import anyio
import pytest

from agent.parts import call, events, shown_results
from tenure import (
    LeaseLost,
    Ledger,
    NotAllowed,
    Store,
)
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.tool import tool
from tenure.core import canonical, journal
from tenure.core.messages import AssistantMessage, assistant
from tenure.core.run import Commit
from tenure.retry import Retry
from tenure.testing.faults import Fault, FaultStore, Order
from tenure.testing.models import FunctionModel, ScriptedModel


async def test_m_ck45_parallel_calls_run_side_by_side_and_are_given_back_in_order(ledger: Ledger) -> None:
    both = anyio.Event()
    waiting: list[int] = []

    @tool
    async def meet(n: int) -> int:
        waiting.append(n)
        if len(waiting) == 2:
            both.set()
        with anyio.fail_after(5):
            await both.wait()
        if n == 1:
            await anyio.sleep(0.02)
        return n

    model = ScriptedModel([assistant("", call("c1", "meet", n=1), call("c2", "meet", n=2)), "done"])
    await CheckpointedAgent(Agent(model, name="walker", tools=[meet]), ledger).run("go", id="w1")
    names = [event["name"] for event in await events(ledger, "w1") if event["type"] == "record"]
    assert names == ["tool:c2", "tool:c1"], "each result is recorded as soon as it is there"
    assert await shown_results(model) == [("c1", 1, False), ("c2", 2, False)]


async def test_concurrent_results_share_commits(ledger: Ledger) -> None:
    @tool
    async def look(n: int) -> int:
        return n

    calls = [call(f"c{n}", n=n) for n in range(20)]
    model = ScriptedModel([assistant("", *calls), "done"])
    await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1")
    rows = await ledger.store.tail("w1")
    records = [[e for e in journal.events_of(row) if e["type"] == "record"] for row in rows]
    assert sum(map(len, records)) == 20
    assert sum(1 for found in records if found) < 20


async def test_arguments_that_do_not_validate_are_fed_back_and_recorded(ledger: Ledger) -> None:
    made: list[int] = []

    @tool
    def look(at: int) -> int:
        made.append(at)
        return at

    first = assistant("", call("c1", at="x"), call("c2", "fly"), call("c3", at=3))
    model = ScriptedModel([first, "done"])
    assert await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1") == "done"
    results = await shown_results(model)
    assert [(call_id, bad) for call_id, _, bad in results] == [("c1", True), ("c2", True), ("c3", False)]
    assert results[0][1].startswith("InvalidArguments: ")
    assert "$.at" in results[0][1]
    assert results[1][1] == "UnknownTool: there is no tool named 'fly'; there are: look"
    assert made == [3]


class Unknown:
    """A type that pydantic does not know."""


@pytest.mark.parametrize(
    "value, path",
    [
        (object(), "$"),
        ({"a": [1, {2, 3}]}, "$.a[1]"),
        ({"a": b"x"}, "$.a"),
        (float("nan"), "$"),
        ([float("inf")], "$[0]"),
        ("\ud800", "$"),
        ("x" * (5 * 1024 * 1024), "over the limit"),
    ],
    ids=["object", "set", "bytes", "nan", "inf", "surrogate", "b110 too large"],
)
async def test_b106_b110_a_result_that_cannot_be_stored_is_a_recorded_error_with_its_path(
    ledger: Ledger, value: Any, path: str
) -> None:
    made: list[int] = []

    @tool
    async def look() -> Any:
        made.append(1)
        return value

    model = ScriptedModel([assistant("", call("c1")), "done"])
    assert await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1") == "done"
    ((_, content, is_error),) = await shown_results(model)
    assert is_error
    assert content.startswith("InvalidContent: ")
    assert path in content
    assert made == [1]


async def test_b106_a_result_type_that_nobody_knows_is_refused_before_anything_is_written(ledger: Ledger) -> None:
    made: list[int] = []

    @tool
    async def look() -> Unknown:
        made.append(1)
        return Unknown()

    model = ScriptedModel([assistant("", call("c1")), "done"])
    with pytest.raises(NotAllowed, match="Unknown cannot be stored"):
        await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go")
    assert not made
    assert not model.asked
    assert not [run async for run in ledger.find()]


async def test_m_ck43_errors_and_timeouts_of_tools_are_values(ledger: Ledger) -> None:
    @tool
    def broken() -> None:
        message = "no such file"
        raise FileNotFoundError(message)

    @tool(timeout=0.01)
    async def slow() -> None:
        await anyio.sleep(10)

    @tool
    async def quitter() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep(1)
        raise anyio.get_cancelled_exc_class()

    names = ["broken", "slow", "quitter"]
    model = ScriptedModel([assistant("", *(call(name, name) for name in names)), "done"])
    durable = CheckpointedAgent(Agent(model, name="walker", tools=[broken, slow, quitter]), ledger)
    assert await durable.run("go", id="w1") == "done"
    assert await shown_results(model) == [
        ("broken", "FileNotFoundError: no such file", True),
        ("slow", "TimeoutError: no answer within 0.01 s", True),
        ("quitter", "Cancelled: the tool cancelled itself", True),
    ]


async def test_a_tool_is_tried_again_as_its_retry_says_and_recorded_once(ledger: Ledger) -> None:
    tries: list[int] = []

    @tool(retry=Retry(attempts=3, wait=0))
    async def look() -> int:
        tries.append(1)
        if len(tries) < 3:
            message = "not yet"
            raise ConnectionError(message)
        return 7

    model = ScriptedModel([assistant("", call("c1")), "done"])
    await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1")
    assert len(tries) == 3
    assert [e["value"] for e in await events(ledger, "w1") if e["type"] == "record"] == [7]


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_b071_a_result_whose_record_meets_an_outage_is_recorded_before_anything_else(
    store: Store, fault: Fault
) -> None:
    made: list[int] = []
    shaky = FaultStore(store)

    @tool
    async def look() -> int:
        made.append(1)
        shaky.orders.append(Order(fault=fault, times=2, match=lambda change: isinstance(change, Commit)))
        return 7

    model = ScriptedModel([assistant("", call("c1")), "done"])
    async with Ledger(cast("Store", shaky), ttl=5) as ledger:
        assert await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1") == "done"
    assert made == [1]
    assert await shown_results(model) == [("c1", 7, False)]
    assert shaky.orders[0].times == 0, "it did go wrong"


async def test_errors_of_a_tools_own_runs_are_the_tools_business(ledger: Ledger) -> None:
    @tool
    async def look() -> None:
        message = "the lease on run other is gone"
        raise LeaseLost(message, reason="expired", run_id="other")

    model = ScriptedModel([assistant("", call("c1")), "done"])
    assert await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1") == "done"
    assert (await shown_results(model))[0][1].startswith("LeaseLost: ")


async def test_a_sync_tool_does_not_block_the_loop(ledger: Ledger) -> None:
    @tool
    def slow() -> str:
        time.sleep(0.2)
        return "slept"

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.01)
            turns += 1

    model = ScriptedModel([assistant("", call("c1", "slow")), "done"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await CheckpointedAgent(Agent(model, name="walker", tools=[slow]), ledger).run("go", id="w1")
        tasks.cancel_scope.cancel()
    assert turns >= 5


async def test_o12_i26_what_the_model_saw_is_what_the_journal_says(ledger: Ledger) -> None:
    @tool
    async def look() -> dict[str, Any]:
        return {"b": 1, "a": (1, 2)}

    model = ScriptedModel([assistant("hm", call("c1")), "done"])
    await CheckpointedAgent(Agent(model, name="walker", tools=[look]), ledger).run("go", id="w1")
    ((_, content, _),) = await shown_results(model)
    assert content == {"a": [1, 2], "b": 1}, "a first run sees what a replay would see"
    answers = [message for message in model.asked[-1].messages if isinstance(message, AssistantMessage)]
    assert [answer.text for answer in answers] == ["hm"]
    assert canonical.encode(content)


async def test_m_bu01_no_more_calls_are_under_way_than_the_agent_says(ledger: Ledger) -> None:
    under_way, most = [0], [0]

    @tool
    async def look(n: int) -> int:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        await anyio.sleep(0.02)
        under_way[0] -= 1
        return n

    calls = [call(f"c{n}", n=n) for n in range(7)]
    model = FunctionModel(lambda r: assistant("", *calls) if r.step == 1 else "done")
    assert await CheckpointedAgent(Agent(model, name="w", tools=[look], parallel=2), ledger).run("go") == "done"
    assert most == [2]
    with pytest.raises(NotAllowed, match="parallel 0"):
        Agent(model, name="w", parallel=0)
