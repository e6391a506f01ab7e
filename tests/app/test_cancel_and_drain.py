"""Runs that are asked to end, lose their parent, or are drained."""

import anyio
import pytest

from app.calls import fleet
from tenure import (
    ActiveRun,
    App,
    CancelRequested,
    RunCancelled,
    RunConflict,
    Status,
    TryLater,
    Where,
)
from tenure.core import journal
from tenure.core.run import Outcome

pytestmark = pytest.mark.anyio


async def test_b055_asked_to_end_the_next_step_raises_clean_up_is_recorded_and_the_run_is_cancelled() -> None:
    app, told = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> str:
        n = 0
        try:
            while True:
                n += 1
                await run.step(f"work-{n}", anyio.sleep, 0.01)
        except CancelRequested as error:
            told.append(error)
            await run.step("clean", lambda: "up")
            await run.step("more", lambda: "up")
        return "ignored"

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")

        async def ask() -> None:
            await anyio.sleep(0.05)
            await handle.cancel(reason="enough", by="somebody", grace=60)

        run = await here.call("r", meanwhile=ask)
        assert run.outcome is not None
        assert run.status is Status.CANCELLED
        assert run.outcome == Outcome(code="cancelled", message="enough", by="somebody")
        names = [e["name"] async for _, e in handle.events() if e["type"] == journal.RECORD]
        assert names[-2:] == ["step:clean", "step:more"]
        assert len(told) == 1
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result()


async def test_when_its_time_of_grace_is_over_the_holder_itself_sends_the_plain_cancel() -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        await anyio.sleep_forever()

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")

        async def ask() -> None:
            await anyio.sleep(0.05)
            await handle.cancel(reason="enough", by="somebody", grace=0.3)

        with anyio.fail_after(5), pytest.raises(Exception, match="cancelled"):
            await here.call("r", meanwhile=ask)
        run = await handle.load()
        assert run.status is Status.CANCELLED
        late = "enough (its time of grace is over)"
        assert run.outcome == Outcome(code="cancelled", message=late, by="somebody")


async def test_a_child_is_submitted_once_over_attempts_and_cancelled_with_its_parent() -> None:
    app, children = App(), []

    @app.kind("parent")
    async def parent(run: ActiveRun[None], _: None) -> None:
        children.append(await run.submit("part-1", child, 7))
        with pytest.raises(Exception, match="used twice"):
            await run.submit("part-1", child, 7)
        if len(children) == 1:
            raise TryLater
        await anyio.sleep_forever()

    @app.kind("child")
    async def child(run: ActiveRun[int], input: int) -> int:
        return input

    async with fleet(app) as here:
        await here.ledger.submit(parent, None, id="p")
        await here.call("p")

        async def cancel() -> None:
            await anyio.sleep(0.05)
            await here.ledger.cancel("p", reason="enough")

        with pytest.raises(Exception, match="cancelled"):
            await here.call("p", meanwhile=cancel)
        assert [handle.id for handle in children] == ["p.part-1"] * 2
        (found,) = [run async for run in here.ledger.find(Where(kind="child"))]
        assert (found.id, found.parent, found.status) == ("p.part-1", "p", Status.CANCELLED)


async def test_a_child_of_the_same_key_with_other_input_is_a_conflict() -> None:
    app = App()

    @app.kind("parent")
    async def parent(run: ActiveRun[int], input: int) -> None:
        await run.submit("part", "child", input)

    async with fleet(app) as here:
        await here.ledger.submit("child", 8, id="p.part")
        await here.ledger.submit(parent, 7, id="p")
        run = await here.call("p")
        assert run.outcome is not None
        assert run.outcome.code == RunConflict.code


async def test_a_drain_lets_the_steps_in_hand_end_and_starts_no_other() -> None:
    app, started, ended = App(), [], []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        async def work(key: str, seconds: float) -> None:
            started.append(key)
            await anyio.sleep(seconds)
            ended.append(key)

        async def side(n: int) -> None:
            for m in range(3):
                await run.step(f"{n}.{m}", work, f"{n}.{m}", 0.05 + 0.05 * n)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(side, 0)
            tasks.start_soon(side, 1)

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")

        async def drain() -> None:
            while not here.seen:
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.02)
            here.seen[0].drain()

        run = await here.call("r", meanwhile=drain)
        assert (run.status, run.failures, run.attempt) == (Status.QUEUED, 0, 1)
        records = {e["name"] async for _, e in handle.events() if e["type"] == journal.RECORD}
    assert started == ended == ["0.0", "1.0"]
    assert records == {"step:0.0", "step:1.0"}


async def test_a_handler_may_catch_everything_and_still_not_keep_a_lost_lease() -> None:
    app, swallowed = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> str:
        for n in range(3):
            try:
                await run.step(f"s{n}", anyio.sleep, 30)
            except Exception as error:  # noqa: BLE001 - that is the point
                swallowed.append(type(error).__name__)
        return "went on"

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")

        async def evict() -> None:
            await anyio.sleep(0.05)
            await here.ledger.evict("r", reason="test")

        with pytest.raises(Exception, match="LEASE_LOST"):
            await here.call("r", meanwhile=evict)
        assert (await handle.load()).status is Status.QUEUED
    assert swallowed == []
