"""What is recorded beside a conversation stays, whatever becomes of it: a handler's steps, an attempt's start."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from agent.parts import Bench
from journal.kit import LAST, answer, walker
from tenure import ActiveRun, App, CheckpointedAgent, Context, Ledger, Store
from tenure.core import journal
from tenure.core.journal import fold
from tenure.core.messages import Message, user
from tenure.testing import Inline
from tenure.testing.models import FunctionModel


class Errand:
    """A handler with a step before its agent and a sleep after it, and the agent as a kind of its own."""

    def __init__(self) -> None:
        self.app = App()
        self.agent = walker()
        self.packed = 0

        def pack() -> int:
            self.packed += 1
            return self.packed

        @self.app.kind("errand")
        async def errand(run: ActiveRun[str], _: str) -> str:
            packed = await run.step("pack", pack)
            said = await self.agent.drive(run)
            await run.sleep("rest", 3600)
            return f"{packed} {said}"

        self.errand = errand
        self.alone = self.app.agent(self.agent)

    @property
    def asked(self) -> list[int]:
        assert isinstance(self.agent.model, FunctionModel)
        return [request.step for request in self.agent.model.asked]


async def test_i14_a_step_before_the_agent_is_made_once_though_the_context_was_replaced_and_the_run_slept() -> None:
    errand = Errand()
    async with Inline(errand.app) as inline:
        handle = await inline.submit(errand.errand, "go", id="e1")
        assert await inline.result(handle) == "1 done"
        assert errand.packed == 1
        assert errand.asked == list(range(1, LAST + 1)), "an agent that has answered asks nobody"
        types = [event["type"] async for _, event in handle.events()]
        assert types.count("context/replace") > 0
        found = await handle.verify()
        assert (found.failures, found.inconclusive) == ((), ())


async def test_b115_a_fork_of_such_a_run_has_the_steps_of_its_handler() -> None:
    errand = Errand()
    async with Inline(errand.app) as inline:
        await inline.result(await inline.submit(errand.errand, "go", id="e1"))
        fork = await inline.ledger.fork("e1", at=LAST - 1, id="e2")
        assert await inline.result(fork) == "1 done"
        assert errand.packed == 1
        assert (await fork.verify()).ok


async def test_only_a_run_that_is_the_agent_s_alone_is_read_from_where_its_context_was_replaced() -> None:
    errand = Errand()
    async with Inline(errand.app) as inline:
        driven = await inline.submit(errand.errand, "go")
        alone = await inline.submit(errand.alone, "go")
        await inline.result(driven)
        await inline.result(alone)
        assert (await driven.load()).base_seq == 1
        assert (await alone.load()).base_seq > 1


async def test_m_ck45_a_replacement_that_is_the_first_thing_an_attempt_writes_verifies(
    ledger: Ledger, store: Store
) -> None:
    bench = Bench(ledger, store)

    async def summing(context: Context) -> Sequence[Message] | None:
        if context.step != 3:
            return None
        reply = await context.ask([user("sum up")])
        if not bench.reached.is_set():
            bench.reached.set()
            await anyio.sleep(60)
        return [user(reply.message.text), *context.messages[1:]]

    agent = walker(fn=lambda request: "in short" if request.aside else answer(request), context=summing)
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, ledger).recover("w1") == "done"
    assert isinstance(agent.model, FunctionModel)
    assert sum(bool(request.aside) for request in agent.model.asked) == 1, "the summary had landed"
    run = await ledger.load("w1")
    first = [event["type"] for event in journal.events_of((await store.tail("w1", after=run.base_seq - 1))[0])]
    assert first == ["attempt/start", "context/replace"]
    found = await ledger.handle("w1").verify()
    assert (found.failures, found.inconclusive) == ((), ())
    state = fold(await store.tail("w1", after=run.base_seq - 1, limit=1000))
    assert state.held_before == fold(await store.tail("w1", limit=1000)).held_before
    assert state.held_before[0] == 2, "the time in which it was held is counted from the second grant on"
