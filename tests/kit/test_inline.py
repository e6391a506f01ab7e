"""Runs in line: with a loop and without, time skipped, errors as they were raised."""

from pathlib import Path

import anyio
import pytest

from kit import orders
from tenure import ActiveRun, App, Ledger, RunFailed, RunSuspended, Status, Worker, open_store
from tenure.testing import Inline, ManualClock, run_inline, run_inline_async


def test_a_run_in_line_needs_no_loop_and_no_server() -> None:
    assert run_inline(orders.plain, 1) == 2
    assert run_inline(orders.scales, "weigh") == "together 3"


@pytest.mark.anyio
async def test_a_run_in_line_may_be_called_where_a_loop_runs() -> None:
    assert run_inline(orders.plain, 1) == 2
    assert await run_inline_async(orders.plain, 2) == 3


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_run_in_line_may_be_called_where_trio_runs(anyio_backend: str) -> None:
    assert run_inline(orders.plain, 1) == 2
    assert await run_inline_async(orders.careful, 2, id="o", deps="d") == "d: 2 under o:charge"


def test_a_run_in_line_has_the_lifespan_and_the_kinds_of_its_app() -> None:
    assert run_inline(orders.parent, 3, app=orders.app, id="p") == "child says till: 3 under p.child:charge"


def test_what_a_handler_raised_is_the_cause() -> None:
    with pytest.raises(RunFailed, match="no such order") as raised:
        run_inline(orders.plain, -1)
    assert isinstance(raised.value.__cause__, LookupError)


def test_two_days_of_waiting_are_skipped() -> None:
    clock = ManualClock()
    assert run_inline(orders.patient, 4, clock=clock) == 5
    assert clock.boot_ns() >= 2 * 24 * 3600 * 1_000_000_000


@pytest.mark.anyio
async def test_advancing_the_clock_wakes_a_sleeping_run() -> None:
    async with Inline(orders.app) as inline:
        assert inline.clock is not None
        handle = await inline.submit(orders.patient, 1)
        late = await inline.submit(orders.plain, 1, at=3600)
        await inline.idle()
        run = await handle.load()
        assert (run.status.value, run.step, run.failures, run.crashes) == ("queued", 2, 0, 0)
        with pytest.raises(RunSuspended, match="172800 s"):
            await inline.result(handle, skip=False)
        inline.clock.advance(hours=1)
        assert await inline.result(late, skip=False) == 2
        inline.clock.advance(days=2)
        assert await inline.result(handle, skip=False) == 2


def test_a_run_that_sleeps_is_not_waited_for() -> None:
    clock = ManualClock()
    assert run_inline(orders.naps, None, clock=clock) == "rested"
    assert clock.boot_ns() >= 2 * 24 * 3600 * 1_000_000_000


@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_advancing_the_clock_wakes_a_run_that_sleeps_under_a_real_worker(scheme: str, tmp_path: Path) -> None:
    clock = ManualClock()
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/t.db"
    async with open_store(url, clock=clock) as store, Ledger(store) as ledger, Worker(orders.app, ledger, drain=1):
        handle = await ledger.submit(orders.naps, None, id="r")
        with anyio.fail_after(30):
            while (await handle.load()).status is not Status.SUSPENDED:  # noqa: ASYNC110 - the worker rings no bell here
                await anyio.sleep(0.02)
        clock.advance(days=1, hours=23)
        assert (await handle.load()).status is Status.SUSPENDED
        clock.advance(hours=1)
        assert await handle.result(timeout=60) == "rested"


def test_a_run_that_waits_for_somebody_says_so() -> None:
    with pytest.raises(RunSuspended, match="a decision or a signal"):
        run_inline(orders.waits, None)


def test_retries_of_a_kind_cost_no_time() -> None:
    app, seen = App(), list[int]()

    @app.kind("flaky", retries=2)
    async def flaky(run: ActiveRun[None], _: None) -> int:
        seen.append(run.attempt)
        if len(seen) < 3:
            raise ConnectionError
        return len(seen)

    assert run_inline(flaky, None) == 3
