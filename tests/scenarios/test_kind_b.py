"""Heartbeats and renewals: a lease is lost or kept for reasons that have nothing to do with the run's health."""

import inspect
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from conftest import StartRedis
from tenure import App, LeaseChange, LeaseLost, Ledger, Status, StoreUnavailable, Worker, open_store
from tenure.core.run import Claim, Commit, End, How, Renew, Run, Verdict
from tenure.store import Store
from tenure.testing.contract_case import claim
from tenure.testing.faults import Fault, FaultStore, Order
from tenure.testing.servers import VALKEY9

TTL_MS = 1_000  # the longest that a ledger here has announced; a longer claim would be refused for that alone


@asynccontextmanager
async def sweeping(store: Store, kind: str = "k") -> AsyncIterator[list[Run]]:
    """A second worker that looks all the time and takes what it is given; what it took is in the list."""
    taken: list[Run] = []

    async def sweep() -> None:
        while True:
            for hint in await store.due([kind]):
                answer = await store.commit(claim(hint.run, token=hint.token, owner="sweeper", ttl_ms=TTL_MS))
                if answer.verdict is Verdict.LANDED and answer.run is not None:
                    taken.append(answer.run)
            await anyio.sleep(0.02)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweep)
        yield taken
        tasks.cancel_scope.cancel()


async def until(fact: Callable[[], Awaitable[bool]], *, seconds: float = 10) -> None:
    with anyio.fail_after(seconds):
        while not await fact():  # noqa: ASYNC110 - a fact that a store tells
            await anyio.sleep(0.01)


def renewals(changes: list[object]) -> int:
    return sum(isinstance(change, Renew) for change in changes)


async def test_b014_b015_a_blocking_tool_loses_no_run_and_is_named(
    store_url: str, namespace: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.submit("k", None, id="r1")
    taken: list[Run] = []
    over = threading.Event()

    async def elsewhere() -> None:
        async with open_store(store_url, namespace=namespace) as store, sweeping(store) as found:
            while not over.is_set():  # noqa: ASYNC110 - set from another thread
                await anyio.sleep(0.02)
            taken.extend(found)

    sweeper = threading.Thread(target=lambda: anyio.run(elsewhere))
    async with ledger.hold("r1") as lease:
        sweeper.start()
        time.sleep(2.5)  # noqa: ASYNC251 - that is the fault: two and a half leases long
        await anyio.sleep(0.2)
        await lease.checkpoint("tool ran")
        await lease.settle("completed")
        over.set()
    await anyio.to_thread.run_sync(sweeper.join)
    assert taken == []
    run = await ledger.load("r1")
    assert (run.status, run.ordinal, run.step) == (Status.COMPLETED, 1, 1)
    told = [record.getMessage() for record in caplog.records if "was blocked" in record.getMessage()]
    assert len(told) == 1
    assert "r1" in told[0]
    assert ledger.pulse.late_renewals == 1


async def test_b016_beats_are_a_third_of_the_lease_and_no_look_sees_a_held_run(ledger: Ledger, other: Store) -> None:
    assert not [name for name in inspect.signature(Ledger).parameters if "beat" in name or "interval" in name]
    await ledger.submit("k", None, id="r1")
    async with ledger.hold("r1") as lease:
        left = []
        for _ in range(20):
            assert (await other.commit(claim(ttl_ms=TTL_MS))).why == "held"
            assert await other.due(["k"]) == []
            left.append(lease.remaining_ms)
            await anyio.sleep(0.1)
        assert min(left) > 0


@pytest.mark.slow
async def test_b019_b024_a_server_that_answers_nothing_ends_the_trust_before_the_lease(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(VALKEY9)
    changes: list[LeaseChange] = []
    async with (
        open_store(server.url, namespace=namespace) as store,
        Ledger(store, ttl=1.5, on_change=changes.append) as ledger,
    ):
        await ledger.submit("k", None, id="r1")
        begun = until_ns = stopped = stopped_ns = 0
        with pytest.raises(LeaseLost) as lost:
            async with ledger.hold("r1") as lease:
                await lease.checkpoint("alive")
                begun, until_ns = time.monotonic_ns(), lease.run.lease_until_ms * 1_000_000
                server.freeze()
                try:
                    await anyio.sleep(30)
                finally:
                    stopped_ns, stopped = time.time_ns(), time.monotonic_ns()
        assert lost.value.reason == "expired"
        assert (stopped - begun) / 1e9 < 1.5
        # The server's clock is this machine's. A renewal may have landed just before, and none after that.
        assert stopped_ns < until_ns + 1_500_000_000 // 3
        assert any(isinstance(change.error, StoreUnavailable) for change in changes[:-1])
        server.thaw()


async def test_b020_nothing_is_renewed_after_a_release(store: Store, other: Store) -> None:
    faulty = FaultStore(store)
    async with Ledger(faulty, ttl=1) as ledger:
        await ledger.submit("k", None, id="r1")
        faulty.orders.append(Order(fault=Fault.DELAY, seconds=0.1, match=lambda change: isinstance(change, Renew)))
        async with ledger.hold("r1") as lease:
            with anyio.fail_after(5):
                while not renewals([*faulty.sent]):  # noqa: ASYNC110 - a request is to be on its way
                    await anyio.sleep(0.005)
            await lease.hand_back()
            sent = len(faulty.sent)
        await anyio.sleep(1.2)
        assert len(faulty.sent) == sent
        answer = await other.commit(claim(ttl_ms=TTL_MS))
        assert answer.verdict is Verdict.LANDED
        assert answer.run is not None
        assert answer.run.token > lease.token


async def test_b021_a_run_that_was_lost_in_an_outage_and_held_again_is_renewed(store: Store) -> None:
    faulty = FaultStore(store)
    async with Ledger(faulty, ttl=1) as ledger:
        await ledger.submit("k", None, id="r1")
        with pytest.raises(LeaseLost):
            async with ledger.hold("r1"):
                faulty.down = True
                await anyio.sleep(30)
        faulty.down = False
        async with ledger.hold("r1", wait=5) as lease:
            before = renewals([*faulty.sent])
            await anyio.sleep(3)
            assert renewals([*faulty.sent]) - before >= 2
            lease.check()
            await lease.checkpoint("alive")
        run = await ledger.load("r1")
        assert (run.ordinal, run.attempt, run.crashes) == (2, 2, 0)


async def test_b022_renewals_do_not_queue_behind_the_application(ledger: Ledger, other: Store, store: Store) -> None:
    await ledger.submit("k", "x" * 500_000, id="r1")
    over = False

    async def use() -> None:
        while not over:
            await store.tail("r1")
            await anyio.lowlevel.checkpoint()

    async with ledger.hold("r1") as lease, sweeping(other) as taken, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(use)
        await anyio.sleep(3)
        over = True
        lease.check()
        assert taken == []


async def test_b023_a_lock_held_by_somebody_else_is_no_lost_lease(tmp_path: object, namespace: str) -> None:
    path = f"{tmp_path}/tenure.db"
    async with open_store(f"sqlite:///{path}", namespace=namespace) as store, Ledger(store, ttl=3) as ledger:
        await ledger.submit("k", None, id="r1")
        async with ledger.hold("r1") as lease:
            blocker = sqlite3.connect(path, isolation_level=None)
            blocker.execute("BEGIN IMMEDIATE")
            await anyio.sleep(1.5)
            lease.check()
            blocker.execute("ROLLBACK")
            blocker.close()
            await anyio.sleep(2.5)
            await lease.checkpoint("alive after more than a lease")
        assert (await ledger.load("r1")).ordinal == 1


async def test_b025_no_lease_is_taken_before_there_is_a_slot(store: Store) -> None:
    app = App()
    order: list[tuple[str, int, float]] = []

    @app.kind("k")
    async def handle(run: object, input: float) -> None:
        order.append(("begin", run.attempt, time.monotonic()))  # type: ignore[attr-defined]
        await anyio.sleep(input)
        order.append(("end", run.attempt, time.monotonic()))  # type: ignore[attr-defined]

    faulty = FaultStore(store)
    async with Ledger(faulty, ttl=1) as ledger, Worker(app, ledger, concurrency=1):
        first = await ledger.submit("k", 2.5, id="r1")
        await until(lambda: _is(ledger, "r1", Status.RUNNING))
        second = await ledger.submit("k", 0, id="r2")
        await first.result(timeout=20)
        await second.result(timeout=20)
        assert [what for what, _, _ in order] == ["begin", "end", "begin", "end"], "executions overlapped"
        assert [attempt for _, attempt, _ in order] == [1, 1, 1, 1]
        assert sum(isinstance(change, Claim) and change.run == "r2" for change in faulty.sent) == 1


async def _is(ledger: Ledger, run_id: str, status: Status) -> bool:
    return (await ledger.load(run_id)).status is status


@pytest.mark.parametrize("late", [Renew, Commit])
async def test_b026_a_renewal_during_completion_disturbs_neither(store: Store, late: type) -> None:
    faulty = FaultStore(store)
    changes: list[LeaseChange] = []
    async with Ledger(faulty, ttl=1, on_change=changes.append) as ledger:
        for number in range(3):
            handle = await ledger.submit("k", None, id=f"r{number}")
            async with ledger.hold(f"r{number}") as lease:
                before = renewals([*faulty.sent])
                order = Order(fault=Fault.DELAY, seconds=0.15, match=lambda change: isinstance(change, late))
                faulty.orders.append(order)
                with anyio.fail_after(5):
                    # Settle while a renewal is on its way; or send the settlement so late that a renewal passes it.
                    while late is Renew and renewals([*faulty.sent]) == before:  # noqa: ASYNC110 - sent by a thread
                        await anyio.sleep(0.005)
                await anyio.sleep(0.25 if late is Commit else 0)
                await lease.settle("completed", number)
            assert await handle.result(timeout=5) == number
            events = [event["type"] async for _, event in handle.events()]
            assert events.count("run/end") == 1
    assert [change for change in changes if isinstance(change.error, LeaseLost)] == []


async def test_b028_an_outage_and_a_loss_are_told_apart(store: Store, other: Store) -> None:
    faulty = FaultStore(store)
    changes: list[LeaseChange] = []
    async with Ledger(faulty, ttl=1, on_change=changes.append) as ledger:
        await ledger.submit("k", None, id="r1")
        with pytest.raises(LeaseLost):
            # Shielded, because the loss cancels the block as soon as somebody says that the run was evicted.
            async with ledger.hold("r1"):
                faulty.down = True
                with anyio.fail_after(5, shield=True):
                    while not changes:  # noqa: ASYNC110 - told by the heartbeat's thread
                        await anyio.sleep(0.005)
                assert isinstance(changes[0].error, StoreUnavailable)
                assert changes[0].remaining_ms > 0
                faulty.down = False
                with anyio.CancelScope(shield=True):
                    held = await other.load("r1")
                    assert held is not None
                    evicted = await other.commit(End(run="r1", how=How.EVICT, token=held.token))
                    assert evicted.verdict is Verdict.LANDED
                    answer = await other.commit(claim(ttl_ms=TTL_MS))
                await anyio.sleep(30)
        await anyio.sleep(0.05)
        assert answer.run is not None
        assert isinstance(changes[-1].error, LeaseLost)
        assert changes[-1].error.reason == "evicted", "though another one holds it already"
        assert changes[-1].current_token == answer.run.token
