"""Holding a run: what the block is told, what it leaves behind, and how it ends."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from tenure import (
    InvalidContent,
    InvalidId,
    LeaseChange,
    LeaseHeld,
    LeaseLost,
    Ledger,
    NotAllowed,
    RunClosed,
    RunConflict,
    RunNotFound,
    RunQuarantined,
    RunSuspended,
    Status,
    open_store,
)
from tenure.core import build
from tenure.core.run import Ask
from tenure.core.verify import verify_run
from tenure.stores.memory import MemoryStore


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    async with open_store("memory://") as store, Ledger(store, ttl=30) as ledger:
        yield ledger


async def test_a_run_is_submitted_held_and_settled(ledger: Ledger) -> None:
    handle = await ledger.submit("count", {"to": 3}, id="r1", tags={"team": "a"})
    async with ledger.hold("r1") as lease:
        assert lease.state.input == {"to": 3}
        for number in range(3):
            await lease.checkpoint({"number": number})
        assert (lease.last, lease.run.step) == ({"number": 2}, 3)
        for status in ("done", "suspended"):
            with pytest.raises(NotAllowed, match=f"completed, failed or cancelled, not {status}"):
                await lease.settle(status)
        await lease.settle("completed", {"sum": 3})
        assert not lease.live
    assert await handle.result(timeout=1) == {"sum": 3}
    run = await handle.load()
    assert run.status is Status.COMPLETED
    assert verify_run(run, await ledger.store.tail("r1")).ok


async def test_the_same_submit_again_is_the_same_run_and_another_input_is_refused(ledger: Ledger) -> None:
    first = await ledger.submit("count", {"to": 3}, id="r1")
    again = await ledger.submit("count", {"to": 3}, id="r1")
    assert first.id == again.id
    with pytest.raises(RunConflict):
        await ledger.submit("count", {"to": 4}, id="r1")
    with pytest.raises(RunConflict):
        await ledger.submit("other", {"to": 3}, id="r1")


async def test_i04_a_second_hold_is_told_owner_and_remaining_time(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1"):
        with pytest.raises(LeaseHeld) as refused:
            async with ledger.hold("r1"):
                pass
    assert refused.value.owner == ledger.owner
    assert 0 < refused.value.remaining_ms <= 30_000


async def test_hold_waits_for_the_other_holder(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    order: list[str] = []

    async def first(started: anyio.Event) -> None:
        async with ledger.hold("r1"):
            started.set()
            await anyio.sleep(0.2)
            order.append("first")

    started = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first, started)
        await started.wait()
        async with ledger.hold("r1", wait=5) as lease:
            order.append("second")
            assert lease.run.attempt == 1
    assert order == ["first", "second"]


async def test_leaving_without_settle_hands_back_and_an_error_goes_out_bare(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        await lease.checkpoint(1)
    run = await ledger.load("r1")
    assert (run.status, run.failures, run.attempt) == (Status.QUEUED, 0, 1)
    with pytest.raises(ValueError, match="boom"):
        async with ledger.hold("r1"):
            raise ValueError("boom")
    run = await ledger.load("r1")
    assert (run.status, run.failures) == (Status.QUEUED, 1)
    events = [event async for _, event in ledger.handle("r1").events()]
    assert events[-1]["message"] == "ValueError: boom"


async def test_i05_a_cancelled_run_cancels_its_holder_and_a_broad_except_cannot_swallow_it(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")

    async def cancel_soon() -> None:
        await anyio.sleep(0.05)
        await ledger.cancel("r1", reason="enough", by="ops")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_soon)
        begun = time.monotonic()
        with pytest.raises(LeaseLost) as lost:
            async with ledger.hold("r1"):
                try:
                    await anyio.sleep(30)
                except Exception:  # noqa: BLE001 - as a tool would
                    pytest.fail("a broad except must not see the loss")
    assert lost.value.reason == "cancelled"
    assert time.monotonic() - begun < 15, "half of what it would have slept"
    run = await ledger.load("r1")
    assert run.outcome is not None
    assert (run.status, run.outcome.message, run.outcome.by) == (Status.CANCELLED, "enough", "ops")


async def test_b083_an_error_after_the_loss_goes_out_with_the_loss_attached(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    with pytest.raises(ValueError, match="late") as raised:
        async with ledger.hold("r1") as lease:
            with anyio.CancelScope(shield=True):
                await ledger.evict("r1", reason="maintenance")
                with pytest.raises(LeaseLost):
                    await lease.checkpoint(1)
            raise ValueError("late")
    assert "LEASE_LOST" in raised.value.__notes__[0]
    assert (await ledger.load("r1")).status is Status.QUEUED


async def test_i23_a_cancelled_block_hands_its_run_back(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    with anyio.move_on_after(0.1) as scope:
        async with ledger.hold("r1"):
            await anyio.sleep(30)
    assert scope.cancelled_caught
    run = await ledger.load("r1")
    assert (run.status, run.failures) == (Status.QUEUED, 0)


async def test_b014_a_blocked_loop_keeps_its_run_and_b015_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with open_store("memory://") as store, Ledger(store, ttl=2) as ledger:
        await ledger.submit("count", None, id="r1")
        async with ledger.hold("r1") as lease:
            time.sleep(2.5)  # noqa: ASYNC251 - that is the fault
            await anyio.sleep(0.2)
            lease.check()
            await lease.checkpoint(1)
        assert (await ledger.load("r1")).attempt == 1
        told = [record for record in caplog.records if "was blocked" in record.getMessage()]
        assert len(told) == 1
        assert "r1" in told[0].getMessage()
        assert "time.sleep(2.5)" in told[0].getMessage()
        assert ledger.pulse.late_renewals == 1


async def test_i20_a_loop_that_hangs_beyond_max_stall_loses_its_runs() -> None:
    changes: list[LeaseChange] = []
    async with (
        open_store("memory://") as store,
        Ledger(store, ttl=1, max_stall=0.5, on_change=changes.append) as ledger,
    ):
        await ledger.submit("count", None, id="r1")
        with pytest.raises(LeaseLost) as lost:
            async with ledger.hold("r1"):
                time.sleep(2)  # noqa: ASYNC251 - that is the fault
                await anyio.sleep(5)
        assert lost.value.reason in {"stalled", "expired"}
        assert changes


async def test_a_suspended_run_waits_and_a_post_it_wants_queues_it(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        assert await lease.suspend(signals=["go"]) == []
    with pytest.raises(RunSuspended):
        async with ledger.hold("r1"):
            pass
    await ledger.ask(build.post(run="r1", item="i1", name="go", ask=Ask.SIGNAL, value={"n": 1}))
    async with ledger.hold("r1") as lease:
        items = await lease.inbox()
        assert [item.name for item in items] == ["go"]
        await lease.consume(items)
        assert await lease.inbox() == []
        assert lease.state.consumed["i1"]["value"] == {"n": 1}


async def test_a_signal_that_came_before_the_suspension_is_not_slept_over(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        await ledger.ask(build.post(run="r1", item="i1", name="go", ask=Ask.SIGNAL, value=1))
        found = await lease.suspend(signals=["go"])
        assert [item.id for item in found] == ["i1"]
        assert lease.live


async def test_concurrent_appends_share_commits_and_every_one_is_recorded(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(lease.record, f"step:{number}", number)
        assert {lease.state.records["", f"step:{n}"]["value"] for n in range(50)} == set(range(50))
        assert lease.run.last_seq < 30
    assert verify_run(await ledger.load("r1"), await ledger.store.tail("r1")).ok


async def test_a_withdrawn_append_is_not_written_later(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await lease.record("step:never", 1)
        await lease.record("step:next", 2)
        assert ("", "step:never") not in lease.state.records


async def test_bad_input_is_refused_before_anything_is_written(ledger: Ledger) -> None:
    with pytest.raises(InvalidId):
        await ledger.submit("count", None, id="_mine")
    with pytest.raises(InvalidId):
        await ledger.submit("bad kind", None)
    with pytest.raises(InvalidContent) as refused:
        await ledger.submit("count", {"a": [1, float("nan")]}, id="r1")
    assert refused.value.path == "$.input.a[1]"
    with pytest.raises(RunNotFound):
        await ledger.load("r1")
    with pytest.raises(RunNotFound):
        async with ledger.hold("r1"):
            pass
    with pytest.raises(NotAllowed):
        Ledger(ledger.store, ttl=0.1)


async def test_a_closed_run_says_so(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        await lease.settle("failed", code="BROKEN", message="no disk")
    with pytest.raises(RunClosed):
        async with ledger.hold("r1"):
            pass


async def test_i26_a_journal_that_does_not_verify_sets_the_run_aside(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    assert isinstance(ledger.store, MemoryStore)
    rows = ledger.store._space.shelves["r1"].rows
    rows[0] = replace(rows[0], body=b'{"effects":{},"events":[]}')
    with pytest.raises(RunQuarantined):
        async with ledger.hold("r1"):
            pytest.fail("a run with an edited journal was started")
    run = await ledger.load("r1")
    assert run.status is Status.QUARANTINED
    assert "DIGEST" in run.grants[-1].reason


async def test_retry_is_a_new_run_with_the_same_input(ledger: Ledger) -> None:
    await ledger.submit("count", {"to": 1}, id="r1")
    await ledger.cancel("r1")
    again = await ledger.retry("r1")
    assert again.id == "r1-retry"
    assert (await ledger.retry("r1")).id == "r1-retry"
    async with ledger.hold(again.id) as lease:
        assert lease.state.input == {"to": 1}
        await lease.settle()


async def test_children_are_cancelled_with_their_parent(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    await ledger.submit("count", None, id="r1.a", parent="r1")
    await ledger.cancel("r1")
    assert (await ledger.load("r1.a")).status is Status.CANCELLED
