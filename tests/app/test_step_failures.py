"""Steps that fail: alike on first run and replay, void for the next call, what is never recorded, calls in doubt."""

import threading
from typing import Any

import anyio
import anyio.from_thread
import pytest

from app.calls import fleet
from tenure import (
    ActiveRun,
    App,
    LeaseLost,
    Retry,
    Status,
    StepFailed,
    StoreUnavailable,
    TryLater,
)
from tenure.core import journal

pytestmark = pytest.mark.anyio


async def events(fleet_: Any, run_id: str, type_: str) -> list[dict[str, Any]]:
    return [e async for _, e in fleet_.ledger.handle(run_id).events() if e["type"] == type_]


async def test_a_failure_is_recorded_and_raised_alike_on_first_run_and_replay() -> None:
    app = App()
    calls: list[int] = []
    caught: list[StepFailed] = []

    def bad() -> int:
        calls.append(1)
        raise ValueError("no")

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> str:
        try:
            await run.step("bad", bad)
        except StepFailed as error:
            caught.append(error)
        return "ok"

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")

        async def first(active: ActiveRun[Any]) -> None:
            with pytest.raises(StepFailed) as failed:
                await active.step("bad", bad)
            caught.append(failed.value)

        await here.die("r", first)
        run = await here.call("r")
        assert (run.status, run.attempt, calls) == (Status.COMPLETED, 2, [1])
    one, two = caught
    assert isinstance(one.__cause__, ValueError)
    assert two.__cause__ is None
    assert (one.key, one.type_name, one.detail, str(one)) == (two.key, two.type_name, two.detail, str(two))
    assert (one.type_name, one.detail) == ("ValueError", "no")


async def test_a_recorded_failure_is_void_once_the_handler_is_called_again_and_values_stay() -> None:
    app, good, bad = App(), [], []

    def fails_once() -> str:
        bad.append(1)
        if len(bad) == 1:
            raise OSError("first")
        return "second"

    @app.kind("k", retries=1)
    async def handler(run: ActiveRun[None], _: None) -> str:
        await run.step("good", lambda: good.append(1))
        return await run.step("bad", fails_once)

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")
        run = await here.call("r")
        assert (run.status, run.failures) == (Status.QUEUED, 1)
        assert run.due_ms is not None
        assert 500 < run.due_ms - run.updated_ms <= 1000
        await anyio.sleep(1.05)
        assert (await here.call("r")).status is Status.COMPLETED
        assert await handle.result() == "second"
    assert (len(good), len(bad)) == (1, 2)


async def test_retries_count_the_first_call_and_leave_one_record() -> None:
    app, calls = App(), []

    def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("again")
        return len(calls)

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> list[Any]:
        found = await run.step("flaky", flaky, retry=Retry(attempts=3, wait=0.001, on=OSError))
        with pytest.raises(StepFailed, match="KeyError"):
            await run.step("other", dict[str, int]().__getitem__, "x", retry=Retry(attempts=3, wait=5, on=OSError))
        return [found, len(calls)]

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")
        await here.call("r")
        assert await handle.result() == [3, 3]
        assert len(await events(here, "r", journal.RECORD)) == 2


async def test_a_step_that_takes_too_long_fails_with_timeout_and_its_thread_still_counts() -> None:
    app, release, busy = App(), threading.Event(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        with pytest.raises(StepFailed, match="TimeoutError"):
            await run.step("async", anyio.sleep_forever, timeout=0.01)
        with pytest.raises(StepFailed, match="TimeoutError"):
            await run.step("thread", release.wait, 20, timeout=1.0)
        busy.append(run.threads.busy)
        assert "release.wait" in run.threads.stacks() or "threading.py" in run.threads.stacks()
        release.set()
        await run.threads.ended()
        busy.append(run.threads.busy)

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        assert (await here.call("r")).status is Status.COMPLETED
    assert busy == [1, 0]


@pytest.mark.parametrize("error", [TryLater(), StoreUnavailable("away; ask again"), ValueError("retried")], ids=type)
async def test_a_run_is_handed_back_when_the_threads_of_its_steps_have_ended(error: Exception) -> None:
    app, release, raised = App(), threading.Event(), anyio.Event()

    @app.kind("k", retries=1)
    async def handler(run: ActiveRun[None], _: None) -> None:
        with pytest.raises(StepFailed, match="TimeoutError"):
            await run.step("thread", release.wait, 60, timeout=0.1)
        raised.set()
        raise error

    async with fleet(app) as here, anyio.create_task_group() as tasks:
        handle = await here.ledger.submit(handler, None, id="r")
        tasks.start_soon(here.call, "r")
        await raised.wait()
        await anyio.wait_all_tasks_blocked()
        # A successor would run beside what is left of the step.
        assert (await handle.load()).status is Status.RUNNING
        release.set()
        with anyio.fail_after(60):
            while (await handle.load()).status is not Status.QUEUED:  # noqa: ASYNC110 - handed back by another task
                await anyio.sleep(0.01)


@pytest.mark.parametrize("error", [StoreUnavailable("away; ask again"), TryLater(after=1)], ids=type)
async def test_what_says_nothing_about_the_call_is_never_recorded(error: Exception) -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        def raises() -> None:
            raise error

        await run.step("a", raises)

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        run = await here.call("r")
        assert (run.status, run.failures) == (Status.QUEUED, 0)
        assert await events(here, "r", journal.RECORD) == []


async def test_a_lost_lease_cuts_the_step_records_nothing_and_is_raised_bare() -> None:
    app, ended = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        try:
            await run.step("a", anyio.sleep_forever)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async with fleet(app, ttl=1) as here:
        await here.ledger.submit(handler, None, id="r")

        async def cancel() -> None:
            await anyio.sleep(0.05)
            await here.ledger.cancel("r", reason="enough")

        with pytest.raises(LeaseLost) as lost:
            await here.call("r", meanwhile=cancel)
        assert lost.value.reason == "cancelled"
        assert await events(here, "r", journal.RECORD) == []
    assert ended == ["CancelledError"]


@pytest.mark.parametrize("effect", ["fail", "reconcile"])
async def test_i24_a_started_call_without_result_is_in_doubt_and_not_made_again(effect: Any) -> None:
    app = App()
    made: list[str] = []
    doubts: list[str] = []

    @app.kind("k", retries=1)
    async def handler(run: ActiveRun[None], _: None) -> str:
        try:
            await run.step("pay", lambda: made.append("again"), effect=effect)
        except StepFailed as error:
            doubts.append(error.type_name)
        return "unknown"

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")

        async def first(active: ActiveRun[Any]) -> None:
            async def dies() -> None:
                made.append("first")
                raise StoreUnavailable("the process is about to die; ask again")

            with pytest.raises(StoreUnavailable):
                await active.step("pay", dies, effect=effect)

        await here.die("r", first)
        assert [e["names"] for e in await events(here, "r", journal.CALL_STARTED)] == [["step:pay"]]
        await here.call("r")
        assert await handle.result() == "unknown"
    assert (made, doubts) == (["first"], ["InDoubt"])


async def test_i24_a_call_that_failed_once_and_was_started_anew_is_in_doubt_all_the_same() -> None:
    app = App()
    made: list[str] = []
    doubts: list[str] = []

    @app.kind("k", retries=1)
    async def handler(run: ActiveRun[None], _: None) -> str:
        def pay() -> None:
            made.append(f"call {len(made) + 1}")
            raise ValueError("declined")

        try:
            await run.step("pay", pay, effect="fail")
        except StepFailed as error:
            if run.lease.run.failures == 0:
                raise
            doubts.append(error.type_name)
        return "unknown"

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")
        assert (await here.call("r")).failures == 1
        due_ms = (await handle.load()).due_ms or 0
        await anyio.sleep(max(0.0, (due_ms - (await here.ledger.store.facts()).now_ms) / 1000))

        async def second(active: ActiveRun[Any]) -> None:
            async def dies() -> None:
                made.append("call 2")
                raise StoreUnavailable("the process is about to die; ask again")

            with pytest.raises(StoreUnavailable):
                await active.step("pay", dies, effect="fail")

        await here.die("r", second)
        await here.call("r")
        assert await handle.result() == "unknown"
    assert (made, doubts) == (["call 1", "call 2"], ["InDoubt"])


async def test_i24_a_repeatable_step_writes_only_its_record_and_runs_again() -> None:
    app, made = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        await run.step("a", lambda: made.append(2))

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")

        async def first(active: ActiveRun[Any]) -> None:
            def dies() -> None:
                made.append(1)
                raise StoreUnavailable("the process is about to die; ask again")

            with pytest.raises(StoreUnavailable):
                await active.step("a", dies)

        await here.die("r", first)
        await here.call("r")
        assert await events(here, "r", journal.CALL_STARTED) == []
    assert made == [1, 2]
