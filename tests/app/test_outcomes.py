"""What becomes of a run by how its handler ended."""

import logging
from typing import Any

import anyio
import pytest

from app.calls import fleet
from tenure import (
    ActiveRun,
    App,
    Run,
    RunFailed,
    Status,
    StepFailed,
    StoreUnavailable,
    TryLater,
)
from tenure.core import journal, rules

pytestmark = pytest.mark.anyio


async def called(app: App, input: Any = None, **options: Any) -> tuple[Run, list[dict[str, Any]]]:
    """Submit one run of the app's only kind, call it once, and return the record and its events."""
    async with fleet(app, **options) as here:
        (kind,) = app.kinds
        handle = await here.ledger.submit(kind, input, id="r")
        run = await here.call("r")
        return run, [event async for _, event in handle.events()]


async def test_returned_is_completed_and_raised_is_failed_with_code_type_and_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[int], input: int) -> int:
        if input:
            raise ValueError("no such thing")
        return 1

    async with fleet(app) as here:
        good = await here.ledger.submit(handler, 0)
        bad = await here.ledger.submit(handler, 1)
        assert (await here.call(good.id)).status is Status.COMPLETED
        await here.call(bad.id)
        assert await good.result() == 1
        with pytest.raises(RunFailed) as failed:
            await bad.result()
    assert (failed.value.failure, failed.value.detail) == ("HANDLER_FAILED", "ValueError: no such thing")
    (line,) = [r for r in caplog.records if r.name == "tenure.run" and r.levelno == logging.ERROR]
    assert line.exc_info is not None
    assert (line.run_id, line.kind, line.attempt, line.ordinal) == (bad.id, "k", 1, 1)  # type: ignore[attr-defined]


async def test_an_error_of_ours_fails_with_its_own_code() -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        def bad() -> None:
            raise OSError("gone")

        await run.step("bad", bad)

    run, _ = await called(app)
    assert run.outcome is not None
    assert run.outcome.code == StepFailed.code


async def test_retries_hand_back_with_longer_and_longer_pauses_until_none_are_left() -> None:
    app = App()

    @app.kind("k", retries=1)
    async def handler(run: ActiveRun[None], _: None) -> None:
        raise OSError(f"failure {run.lease.run.failures}")

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        run = await here.call("r")
        assert (run.status, run.failures, run.attempt, run.crashes) == (Status.QUEUED, 1, 1, 0)
        await anyio.sleep(1.02)
        run = await here.call("r")
        assert run.outcome is not None
        assert (run.status, run.outcome.message) == (Status.FAILED, "OSError: failure 1")
    assert [rules.back_off_ms(n) for n in range(1, 7)] == [1000, 4000, 16000, 60000, 60000, 60000]


async def test_try_later_and_an_outage_are_no_failures() -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[str], input: str) -> None:
        raise TryLater(after=30) if input == "later" else StoreUnavailable("away; ask again")

    for what, after_ms in (("later", 30_000), ("outage", 1000)):
        run, _ = await called(app, what)
        assert (run.status, run.failures, run.outcome) == (Status.QUEUED, 0, None)
        assert run.due_ms is not None
        assert abs(run.due_ms - run.updated_ms - after_ms) < 50


async def test_a_call_that_takes_longer_than_its_kind_allows_fails_with_a_code_of_its_own() -> None:
    app = App()

    @app.kind("k", timeout=0.02)
    async def handler(run: ActiveRun[None], _: None) -> None:
        await anyio.sleep_forever()

    run, _ = await called(app)
    assert run.outcome is not None
    assert (run.status, run.outcome.code) == (Status.FAILED, "HANDLER_TIMEOUT")


@pytest.mark.parametrize(
    "value",
    [object(), {1}, b"x", float("nan"), {"a": float("inf")}, "\ud800"],
    ids=["object", "set", "bytes", "nan", "infinity", "surrogate"],
)
async def test_b106_a_result_that_cannot_be_stored_fails_the_run_by_name(value: Any) -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> Any:
        await run.step("kept", lambda: 1)
        return value

    run, events = await called(app)
    assert run.outcome is not None
    assert (run.status, run.outcome.code) == (Status.FAILED, "INVALID_CONTENT")
    assert "$" in run.outcome.message
    assert [e["value"] for e in events if e["type"] == journal.RECORD] == [1]


async def test_an_input_that_does_not_fit_fails_the_run_and_calls_nothing_and_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, calls = App(), []

    @app.kind("k", retries=5)
    async def handler(run: ActiveRun[list[str]], input: list[str]) -> None:
        calls.append(input)

    async with fleet(app) as here:
        handle = await here.ledger.submit("k", {"secret": 1}, id="r")
        run = await here.call("r")
        with pytest.raises(RunFailed) as failed:
            await handle.result()
    assert run.outcome is not None
    assert (run.status, run.outcome.code, calls) == (Status.FAILED, "INPUT_INVALID", [])
    what = (
        "this input does not fit list[str] (list_type); submit another input, or serve k with a handler that takes it"
    )
    assert failed.value.message == f"run r failed with INPUT_INVALID: {what} (at $)", "a retry has the same input"
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert what in line.getMessage()
    assert (line.run_id, line.kind, line.attempt) == ("r", "k", 1)  # type: ignore[attr-defined]


async def test_one_failing_task_of_a_handler_goes_by_its_own_name_and_ends_the_others() -> None:
    app, ended = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        async def fails() -> None:
            raise LookupError("in a task")

        run.tasks.start_soon(fails)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    run, _ = await called(app)
    assert run.outcome is not None
    assert (run.outcome.message, ended) == ("LookupError: in a task", [True])


async def test_tasks_of_a_handler_die_with_its_call() -> None:
    app, ended = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        async def goes_on() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(True)

        run.tasks.start_soon(goes_on)
        await anyio.lowlevel.checkpoint()

    run, _ = await called(app)
    assert (run.status, ended) == (Status.COMPLETED, [True])
