"""Calls in doubt: what is written before they are made, and what a takeover does about each policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agent.parts import Bench, agent_of, call, shown
from tenure import (
    InvalidContent,
    LeaseHeld,
    LeaseLost,
    Ledger,
    NotAllowed,
    RequestClosed,
    RunSuspended,
    Status,
    Store,
)
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.tool import NOT_DONE, Tool, ToolContext, tool
from tenure.core import build
from tenure.core.messages import assistant
from tenure.core.run import Ask
from tenure.testing.models import ScriptedModel


@pytest.fixture
def bench(ledger: Ledger, store: Store) -> Bench:
    return Bench(ledger, store)


async def test_i24_calls_that_may_not_be_repeated_are_announced_together_and_others_are_not(bench: Bench) -> None:
    tools = [
        bench.effect("look", block=False),
        bench.effect("pay", block=False, effect="fail"),
        bench.effect("send", block=False, consequential=True),
    ]
    agent = agent_of(*tools)
    assert await CheckpointedAgent(agent, bench.ledger).run("go", id="w1") == "done"
    (started,) = await bench.events("call/started")
    assert started["names"] == ["tool:c-pay", "tool:c-send"]


async def test_m_ck44_b140_a_call_that_may_be_repeated_runs_again_under_its_id(bench: Bench) -> None:
    agent = agent_of(bench.effect("look"))
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert bench.made == ["look c-look 1", "look c-look 2"]
    assert await bench.events("call/started") == []


async def test_b138_a_call_that_may_not_be_repeated_ends_as_unknown(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", effect="fail"))
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert bench.made == ["pay c-pay 1"]
    content, is_error = shown(agent)["c-pay"]
    assert is_error
    assert "outcome of this call is unknown" in content
    assert "cancel" not in content


async def test_a_held_call_that_was_not_started_is_not_in_doubt(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", block=False, effect="fail"))
    await bench.ledger.submit(agent, "go", id="w1")
    with pytest.MonkeyPatch.context() as patch:
        from tenure.agent import calls

        async def stop(*_: Any) -> None:
            await bench.forfeit()
            await anyio.sleep(60)

        patch.setattr(calls.Calls, "settle", stop)
        with pytest.raises(LeaseLost):
            await CheckpointedAgent(agent, bench.ledger).run("go", id="w1")
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert bench.made == ["pay c-pay 2"]


def _reconciled(made: Tool[..., Any], found: Callable[[ToolContext], Any]) -> Tool[..., Any]:
    async def look(context: ToolContext) -> Any:
        return found(context)

    made.reconcile(look)
    return made


async def test_i24_reconcile_finds_the_result_and_nothing_is_repeated(bench: Bench) -> None:
    agent = agent_of(_reconciled(bench.effect("pay", effect="reconcile"), lambda context: f"found {context.key}"))
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert bench.made == ["pay c-pay 1"]
    assert shown(agent)["c-pay"] == ("found w1:c-pay", False)


async def test_i24_reconcile_may_say_that_nothing_happened(bench: Bench) -> None:
    agent = agent_of(_reconciled(bench.effect("pay", effect="reconcile"), lambda _: NOT_DONE))
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert bench.made == ["pay c-pay 1", "pay c-pay 2"]
    assert len(await bench.events("call/started")) == 2, "it is in doubt again until its record has landed"


async def test_i24_reconcile_that_cannot_tell_asks_a_person(bench: Bench) -> None:
    def broken(_: ToolContext) -> Any:
        message = "bank unreachable"
        raise ConnectionError(message)

    agent = agent_of(_reconciled(bench.effect("pay", effect="reconcile"), broken))
    await bench.abandon(agent)
    with pytest.raises(RunSuspended):
        await CheckpointedAgent(agent, bench.ledger).recover("w1")
    await CheckpointedAgent(agent, bench.ledger).resolve("w1", "c-pay", result="paid")
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert bench.made == ["pay c-pay 1"]


@pytest.mark.parametrize("options", [{"effect": "ask"}, {"consequential": True}])
async def test_b140_a_person_is_asked_and_the_run_waits_without_a_worker(bench: Bench, options: dict[str, Any]) -> None:
    agent = agent_of(bench.effect("pay", **options), bench.effect("look", block=False))
    durable = CheckpointedAgent(agent, bench.ledger)
    await bench.abandon(agent)
    with pytest.raises(RunSuspended, match="tenure resolve w1 c-pay") as caught:
        await durable.recover("w1")
    assert caught.value.run is not None
    run = await bench.ledger.load("w1")
    assert (run.status, run.wants, run.owner) == (Status.SUSPENDED, ("resolve:c-pay",), "")
    assert "look c-look 1" in bench.made, "its siblings do not wait for it"
    with pytest.raises(RunSuspended):
        await durable.run("go", id="w1")
    await durable.resolve("w1", "c-pay", result={"receipt": 7}, by="ann")
    run = await bench.ledger.load("w1")
    assert run.status is Status.QUEUED, "whoever is free goes on"
    assert await durable.recover("w1") == "done"
    assert [line for line in bench.made if line.startswith("pay")] == ["pay c-pay 1"]
    assert shown(agent)["c-pay"] == ({"receipt": 7}, False)
    (consumed,) = await bench.events("inbox/consumed")
    assert consumed["value"]["by"] == "ann"
    assert (await bench.ledger.load("w1")).requests == {}


async def test_resolve_fail_gives_the_call_up(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", effect="ask"))
    durable = CheckpointedAgent(agent, bench.ledger)
    await bench.abandon(agent)
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    await durable.resolve("w1", "c-pay", fail=True)
    assert await durable.recover("w1") == "done"
    assert bench.made == ["pay c-pay 1"]
    assert "unknown" in shown(agent)["c-pay"][0]


async def test_resolve_repeat_makes_the_call_again_and_another_death_asks_again(bench: Bench) -> None:
    block = [True, True]

    async def fn(context: ToolContext) -> str:
        bench.made.append(context.call_id)
        if block and block.pop():
            bench.reached.set()
            await anyio.sleep(60)
        return "paid"

    agent = agent_of(tool(name="pay", effect="ask")(fn))
    durable = CheckpointedAgent(agent, bench.ledger)
    await bench.abandon(agent)
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    await durable.resolve("w1", "c-pay", repeat=True)
    bench.reached = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def second() -> None:
            with pytest.raises(LeaseLost):
                await durable.recover("w1")

        tasks.start_soon(second)
        await bench.reached.wait()
        await bench.forfeit()
    with pytest.raises(LeaseHeld) as later:
        await durable.recover("w1")
    await anyio.sleep(later.value.remaining_ms / 1000)  # its second death in one step: due by back-off
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    assert (await bench.ledger.load("w1")).wants == ("resolve:c-pay#2",)
    await durable.resolve("w1", "c-pay", repeat=True)
    assert await durable.recover("w1") == "done"
    assert bench.made == ["c-pay"] * 3
    assert shown(agent)["c-pay"] == ("paid", False)


async def test_the_first_word_wins_and_only_what_is_asked_can_be_resolved(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", effect="ask"))
    durable = CheckpointedAgent(agent, bench.ledger)
    await bench.abandon(agent)
    with pytest.raises(RequestClosed, match="nobody asks"):
        await durable.resolve("w1", "c-pay", fail=True)
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    with pytest.raises(NotAllowed, match="exactly one"):
        await durable.resolve("w1", "c-pay")
    with pytest.raises(NotAllowed, match="exactly one"):
        await durable.resolve("w1", "c-pay", repeat=True, fail=True)
    with pytest.raises(InvalidContent):
        await durable.resolve("w1", "c-pay", result=object())
    await durable.resolve("w1", "c-pay", fail=True, by="ann")
    await durable.resolve("w1", "c-pay", fail=True, by="ann")
    with pytest.raises(RequestClosed, match="decided first, by ann"):
        await durable.resolve("w1", "c-pay", repeat=True, by="bob")
    with pytest.raises(RequestClosed):
        await durable.resolve("w1", "c-other", fail=True)
    assert await durable.recover("w1") == "done"


async def test_a_word_that_says_nothing_is_consumed_and_asked_for_again(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", effect="ask"))
    durable = CheckpointedAgent(agent, bench.ledger)
    await bench.abandon(agent)
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    run = await bench.ledger.load("w1")
    name = "resolve:c-pay"
    digest = run.requests[name].digest
    await bench.ledger.ask(build.post(run="w1", item=name, name=name, ask=Ask.DECIDE, value=["?"], request=digest))
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    assert (await bench.ledger.load("w1")).wants == ("resolve:c-pay#2",)
    await durable.resolve("w1", "c-pay", result=1)
    assert await durable.recover("w1") == "done"


async def test_a_word_that_was_revoked_is_consumed_and_asked_for_again(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", effect="ask"))
    durable = CheckpointedAgent(agent, bench.ledger)
    await bench.abandon(agent)
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    await durable.resolve("w1", "c-pay", repeat=True)
    name, digest = "resolve:c-pay", (await bench.ledger.load("w1")).requests["resolve:c-pay"].digest
    await bench.ledger.ask(build.post(run="w1", item="taken back", name=name, ask=Ask.REVOKE, request=digest))
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    assert (await bench.ledger.load("w1")).wants == ("resolve:c-pay#2",)
    assert bench.made == ["pay c-pay 1"]


async def test_m_ck43_a_result_that_was_recorded_is_never_in_doubt(bench: Bench) -> None:
    agent = agent_of(bench.effect("pay", block=False, effect="fail"), bench.effect("look"))
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, bench.ledger).recover("w1") == "done"
    assert [line for line in bench.made if line.startswith("pay")] == ["pay c-pay 1"]
    assert shown(agent)["c-pay"] == ("pay done", False)


async def test_a_timeout_of_a_call_that_may_not_be_repeated_says_that_nobody_knows(ledger: Ledger) -> None:
    @tool(timeout=0.01, effect="fail")
    async def pay() -> None:
        await anyio.sleep(60)

    model = ScriptedModel([assistant("", call("c1", "pay")), "done"])
    agent = Agent(model, name="walker", tools=[pay])
    assert await CheckpointedAgent(agent, ledger).run("go") == "done"
    content, is_error = shown(agent)["c1"]
    assert is_error
    assert content == "TimeoutError: no answer within 0.01 s; whether it took effect is not known"
