"""A handler waits for a time or a signal: its run is suspended meanwhile, and it is called again."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest

from tenure import (
    ActiveRun,
    RunClosed,
    RunConflict,
    RunSuspended,
    Status,
)
from tenure.suspending import suspend
from waiting.parts import Waiting, due

pytestmark = pytest.mark.anyio


async def test_a_sleeping_run_holds_no_lease_and_is_called_again_when_the_time_has_come() -> None:
    waiting = Waiting()

    @waiting.handler
    async def nap(run: ActiveRun[Any], _: Any) -> str:
        await run.step("before", waiting.does("before"))
        await run.sleep("nap", 0.3)
        return await run.step("after", waiting.does("after"))

    async with waiting as at:
        await at.ledger.submit("k", None, id="r1")
        run = await at.call("r1")
        assert (run.status, run.owner, run.requests, run.wants) == (Status.SUSPENDED, "", {}, ())
        due_ms = run.due_ms
        with pytest.raises(RunSuspended):
            await at.call("r1")
        await due(at)
        run = await at.call("r1")
        assert (run.status, run.due_ms, waiting.did) == (Status.COMPLETED, None, ["before", "after"])
        begun = [event async for _, event in at.ledger.handle("r1").events() if event["type"] == "wait/begun"]
        assert [event["ends_ms"] for event in begun] == [due_ms]


async def test_a_sleep_that_was_woken_early_goes_on_to_the_same_end() -> None:
    waiting = Waiting()

    @waiting.handler
    async def both(run: ActiveRun[Any], _: Any) -> str:
        async def wait() -> None:
            waiting.did.append(await run.wait_for("go"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await run.sleep("nap", 60)
        return "done"

    async with waiting as at:
        await at.ledger.submit("k", None, id="r1")
        first = await at.call("r1")
        assert first.wants == ("go",), "side by side, all is waited for at once"
        await at.ledger.handle("r1").signal("go", 1)
        second = await at.call("r1")
        assert (second.status, second.due_ms) == (Status.SUSPENDED, first.due_ms)
        assert (second.wants, waiting.did) == ((), [1])


async def test_a_signal_is_kept_until_it_is_waited_for_and_taken_once() -> None:
    waiting = Waiting()

    @waiting.handler
    async def two(run: ActiveRun[Any], _: Any) -> list[Any]:
        first = await run.wait_for("go", returns=dt.date)
        second = await run.wait_for("go", key="again")
        return [str(first), second]

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await handle.signal("go", "2026-01-31", id="s1")
        await handle.signal("go", "2026-01-31", id="s1")
        with pytest.raises(RunConflict):
            await handle.signal("go", "2026-02-01", id="s1")
        assert [item.id for item in await at.ledger.store.inbox("r1")] == ["signal:s1"]
        run = await at.call("r1")
        assert (run.status, run.wants) == (Status.SUSPENDED, ("go",)), "the second one is still to come"
        await handle.signal("other")
        assert (await handle.load()).status is Status.SUSPENDED
        await handle.signal("go", {"n": 2})
        assert (await at.call("r1")).status is Status.COMPLETED
        assert await handle.result() == ["2026-01-31", {"n": 2}]
        with pytest.raises(RunClosed):
            await handle.signal("go")


async def test_a_signal_that_does_not_come_in_time_is_a_timeout_on_each_replay() -> None:
    waiting = Waiting()

    @waiting.handler
    async def impatient(run: ActiveRun[Any], _: Any) -> str:
        try:
            await run.wait_for("go", timeout=0.05)
        except TimeoutError as error:
            waiting.did.append(str(error))
        await run.sleep("nap", 0.05)
        return "done"

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        await due(at)
        await at.call("r1")
        await handle.signal("go", "late")
        await due(at)
        assert (await at.call("r1")).status is Status.COMPLETED
        assert waiting.did == ["no signal 'go' came in time"] * 2


async def test_what_timed_out_gets_its_chance_again_when_the_handler_is_retried() -> None:
    waiting = Waiting(retries=1)

    @waiting.handler
    async def strict(run: ActiveRun[Any], _: Any) -> Any:
        return await run.wait_for("go", timeout=0.05)

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        await due(at)
        run = await at.call("r1")
        assert (run.status, run.failures) == (Status.QUEUED, 1)
        await due(at)
        run = await at.call("r1")
        assert run.status is Status.SUSPENDED, "the wait begins anew"
        await handle.signal("go", 7)
        await at.call("r1")
        assert await handle.result() == 7


async def test_steps_in_hand_end_before_a_run_is_suspended_and_nothing_is_cut_in_the_middle() -> None:
    waiting, gate = Waiting(), anyio.Event()

    @waiting.handler
    async def both(run: ActiveRun[Any], _: Any) -> str:
        async def work() -> str:
            await gate.wait()
            waiting.did.append("worked")
            return "worked"

        async def side() -> None:
            await run.step("work", work)
            await run.step("more", waiting.does("more"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(side)
            await run.wait_for("go")
        return "done"

    async def open_gate() -> None:
        await anyio.sleep(0.05)
        gate.set()

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        run = await at.call("r1", meanwhile=open_gate)
        assert (run.status, waiting.did) == (Status.SUSPENDED, ["worked", "more"])
        await handle.signal("go")
        assert (await at.call("r1")).status is Status.COMPLETED
        assert waiting.did == ["worked", "more"]


async def test_a_signal_that_comes_while_the_call_is_cut_is_not_slept_over(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting()

    @waiting.handler
    async def listener(run: ActiveRun[Any], _: Any) -> Any:
        waiting.did.append("called")
        return await run.wait_for("go")

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")

        async def late(*args: Any, **options: Any) -> Any:
            await handle.signal("go", "just now")
            return await suspend(*args, **options)

        monkeypatch.setattr("tenure.perform.suspend", late)
        assert (await at.call("r1")).status is Status.COMPLETED
        assert (await handle.result(), waiting.did) == ("just now", ["called", "called"])


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_plain_function_waits_as_well_on_both_loops() -> None:
    waiting = Waiting()

    @waiting.handler
    def plain(run: ActiveRun[Any], _: Any) -> Any:
        anyio.from_thread.run(partial(run.step, "one", waiting.does("one")))
        return anyio.from_thread.run(run.wait_for, "go")

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        assert (await at.call("r1")).status is Status.SUSPENDED
        assert at.seen[0].threads.busy == 0
        await handle.signal("go", 3)
        await at.call("r1")
        assert (await handle.result(), waiting.did) == (3, ["one"])


async def test_waits_have_keys_of_their_own_and_no_place_in_a_step() -> None:
    waiting = Waiting()

    @waiting.handler
    async def wrong(run: ActiveRun[Any], how: str) -> Any:
        match how:
            case "twice":
                await run.sleep("nap", 0)
                await run.sleep("nap", 0)
            case "inside":
                await run.step("s", partial(run.wait_for, "go"))
            case "policy":
                await run.ask("q", "?", on_expiry="approve")  # type: ignore[arg-type]
            case "negative":
                await run.sleep("nap", -1)
                return "at once"
        return None

    async with waiting as at:
        for how in ("twice", "inside", "policy"):
            await at.ledger.submit("k", how, id=how)
            run = await at.call(how)
            assert run.outcome is not None
            assert (run.status, run.outcome.code) == (Status.FAILED, "NOT_ALLOWED"), how
        await at.ledger.submit("k", "negative", id="r1")
        assert (await at.call("r1")).status is Status.COMPLETED


async def test_a_run_that_waits_and_is_asked_to_end_cleans_up_and_waits_for_nothing_more() -> None:
    waiting = Waiting()

    @waiting.handler
    async def tidy(run: ActiveRun[Any], _: Any) -> str:
        try:
            await run.wait_for("go")
        finally:
            await run.step("clean", waiting.does("clean"))
        return "never"

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        await handle.cancel(reason="enough", grace=30)
        run = await at.call("r1")
        assert (run.status, waiting.did) == (Status.CANCELLED, ["clean"])
