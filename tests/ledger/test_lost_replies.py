"""What a holder does when the store's word does not reach it."""

from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from tenure import LeaseChange, LeaseLost, Ledger, NotAllowed, OutcomeUnknown, Status, StoreUnavailable, open_store
from tenure.clock import ManualClock
from tenure.core.run import Change, Claim, Commit, Create, End, How, Renew
from tenure.core.verify import verify_run
from tenure.lease import Lease
from tenure.store import SLOW_BYTES_S
from tenure.testing.faults import Fault, FaultStore, Order

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    async with FaultStore(open_store("memory://")) as store:
        yield store


def a(*kinds: type) -> Callable[[Change], bool]:
    def match(change: Change) -> bool:
        return isinstance(change, kinds)

    return match


def commits(store: FaultStore) -> list[Commit]:
    return [change for change in store.sent if isinstance(change, Commit)]


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST])
async def test_i07_b070_a_lost_reply_is_asked_again_and_takes_effect_once(store: FaultStore, fault: Fault) -> None:
    async with Ledger(store, ttl=2) as ledger:
        for kind in (Create, Claim, Commit):
            store.orders.append(Order(fault=fault, match=a(kind)))
        handle = await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint({"a": 1})
            store.orders.append(Order(fault=fault, match=a(Commit)))
            await lease.settle("completed", "done")
        assert await handle.result(timeout=1) == "done"
        run = await handle.load()
        assert (run.version, run.last_seq, run.ordinal, run.attempt) == (4, 3, 1, 1)
        assert verify_run(run, await store.tail("r1")).ok
        keys = [c.row.digest for c in store.sent if isinstance(c, Commit)]
        assert len(keys) == 2 * len(set(keys))


async def test_b071_a_record_whose_write_failed_is_written_before_anything_else(store: FaultStore) -> None:
    async with Ledger(store, ttl=2) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            store.orders.append(Order(fault=Fault.REQUEST_LOST, times=3, match=a(Commit)))
            await lease.record("tool:c1", "sent")
            assert lease.state.records["", "tool:c1"]["value"] == "sent"
            await lease.settle()
        assert (await ledger.load("r1")).last_seq == 3


async def test_i05_b019_silence_ends_the_trust_before_the_lease(store: FaultStore) -> None:
    changes: list[LeaseChange] = []
    async with Ledger(store, ttl=1, on_change=changes.append) as ledger:
        await ledger.submit("count", 1, id="r1")
        store.orders.append(Order(fault=Fault.SILENCE, times=99, match=a(Renew)))
        with pytest.raises(LeaseLost) as lost:
            async with ledger.hold("r1") as lease:
                # The grant was asked for before now, so the store's lease ends a second from then, and this before it.
                assert lease.trust.deadline_ns <= ledger.clock.boot_ns() + 900_000_000
                await anyio.sleep(30)
        assert lost.value.reason == "expired"
        assert isinstance(changes[0].error, StoreUnavailable)
        assert changes[0].remaining_ms > 0
        assert isinstance(changes[-1].error, LeaseLost)


async def test_i05_no_write_starts_after_the_deadline_and_one_that_landed_is_found(store: FaultStore) -> None:
    async with Ledger(store, ttl=1) as ledger:
        await ledger.submit("count", 1, id="r1")
        store.orders.append(Order(fault=Fault.SILENCE, times=99, match=a(Renew)))
        store.orders.append(Order(fault=Fault.REPLY_LOST, times=99, match=a(Commit)))
        with pytest.raises(LeaseLost):
            async with ledger.hold("r1") as lease:
                with anyio.CancelScope(shield=True):
                    await lease.checkpoint({"a": 1})
                await anyio.sleep(30)
        await anyio.sleep(0.2)
        sent = len([c for c in store.sent if isinstance(c, Commit)])
        await anyio.sleep(0.5)
        assert len([c for c in store.sent if isinstance(c, Commit)]) == sent
        assert (await ledger.load("r1")).last_seq == 2


@pytest.mark.parametrize("dropped, size", [(False, 1), (True, 1), (False, 12 * SLOW_BYTES_S)])
async def test_i05_a_write_that_is_never_answered_is_given_up_at_the_local_deadline(
    store: FaultStore, *, dropped: bool, size: int
) -> None:
    """Also one that could be under way for twelve seconds: no renewal keeps its lease."""
    clock = ManualClock()
    raised: list[BaseException] = []

    async def write(lease: Lease) -> None:
        try:
            await lease.checkpoint("x" * size)
        except (LeaseLost, NotAllowed) as error:
            raised.append(error)

    async with Ledger(store, ttl=10, clock=clock) as ledger:
        await ledger.submit("count", 1, id="r1")
        lease = await ledger.claims.claim(ledger.claims.change("r1"))
        store.orders.append(Order(fault=Fault.SILENCE, times=99, match=a(Commit, Renew)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, lease)
            while not any(isinstance(change, Commit) for change in store.sent):  # noqa: ASYNC110 - another task sends it
                await anyio.sleep(0.001)
            if dropped:
                ledger.claims.drop(lease)
            clock.advance(seconds=9)
            await anyio.sleep(0.02)
            assert not raised
            clock.advance(seconds=1)
            with anyio.fail_after(60):
                while not raised:
                    await anyio.sleep(0.001)
                    clock.advance(ms=1)  # what is asked again waits by this clock first
            assert clock.boot_ns() < lease.trust.deadline_ns + 5_000_000_000
    assert [type(error) for error in raised] == [NotAllowed if dropped else LeaseLost]


async def test_a_large_write_is_given_the_time_to_get_there_as_long_as_renewals_keep_the_lease(
    store: FaultStore,
) -> None:
    clock = ManualClock()
    async with Ledger(store, ttl=10, clock=clock) as ledger:
        await ledger.submit("count", 1, id="r1")
        lease = await ledger.claims.claim(ledger.claims.change("r1"))
        for way, size, longer_s in (
            (lease.checkpoint, 10, 0),
            (lease.checkpoint, 4 * SLOW_BYTES_S, 4),
            (lambda result: lease.settle("completed", result), 4 * SLOW_BYTES_S, 4),
        ):
            store.orders.append(Order(fault=Fault.SILENCE, match=a(Commit)))
            sent, until_ns = len(commits(store)), lease.trust.deadline_ns + longer_s * 1_000_000_000
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(way, "x" * size)
                with anyio.fail_after(60):
                    while len(commits(store)) == sent:  # noqa: ASYNC110 - another task sends it
                        await anyio.sleep(0.001)
                    while len(commits(store)) == sent + 1:
                        await anyio.sleep(0.001)
                        if lease.trust.remaining_ms > 5_000:  # else the heartbeat has yet to answer
                            clock.advance(ms=50)
                assert clock.boot_ns() >= until_ns
            first, again = commits(store)[sent:]
            assert first is again
        assert lease.run.step == 2
        ledger.claims.drop(lease)


async def test_i21_a_claim_that_is_cancelled_leaves_no_lease_that_nobody_releases(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        await store.woken(["due"], timeout=0)
        store.orders.append(Order(fault=Fault.DELAY, seconds=0.1, match=a(Claim)))
        with anyio.move_on_after(0.15):
            async with ledger.hold("r1"):
                pytest.fail("the claim should have been cancelled")
        with anyio.fail_after(30):
            while not any(isinstance(change, End) for change in store.sent):  # noqa: ASYNC110 - another task sends it
                await anyio.sleep(0.01)
        assert await store.woken(["due"], timeout=30), "others are told that it is there to be claimed"
        async with ledger.hold("r1", wait=30) as lease:
            assert lease.run.attempt == 1


async def test_who_waits_for_a_claim_is_told_when_the_ledger_is_closed(store: FaultStore) -> None:
    """It may be a task of its own, which does not end with the ledger."""
    told: list[OutcomeUnknown] = []

    async def wants(ledger: Ledger) -> None:
        with pytest.raises(OutcomeUnknown, match="closed") as raised:
            async with ledger.hold("r1"):
                pytest.fail("nobody answered the claim")
        told.append(raised.value)

    async with anyio.create_task_group() as tasks:
        async with Ledger(store, ttl=60) as ledger:
            await ledger.submit("count", 1, id="r1")
            store.orders.append(Order(fault=Fault.SILENCE, match=a(Claim)))
            tasks.start_soon(wants, ledger)
            with anyio.fail_after(60):
                while store.orders[0].times:  # noqa: ASYNC110 - another task sends it
                    await anyio.sleep(0.001)
        with anyio.fail_after(60):
            while not told:  # noqa: ASYNC110 - another task is told
                await anyio.sleep(0.001)
    assert told[0].run_id == "r1"


async def test_b020_nothing_is_sent_for_a_lease_after_it_was_given_back(store: FaultStore) -> None:
    async with Ledger(store, ttl=1) as ledger:
        await ledger.submit("count", 1, id="r1")
        store.orders.append(Order(fault=Fault.DELAY, seconds=0.1, match=a(Renew)))
        async with ledger.hold("r1"):
            await anyio.sleep(0.4)
        sent = len(store.sent)
        await anyio.sleep(1.0)
        assert len(store.sent) == sent
        async with ledger.hold("r1") as lease:
            assert lease.run.ordinal == 2


async def test_b081_the_flag_drops_before_the_command_is_sent(store: FaultStore) -> None:
    async with Ledger(store, ttl=2) as ledger:
        await ledger.submit("count", 1, id="r1")
        store.orders.append(Order(fault=Fault.DELAY, seconds=0.2, match=a(Commit)))
        async with ledger.hold("r1") as lease, anyio.create_task_group() as tasks:
            tasks.start_soon(lease.hand_back)
            await anyio.sleep(0.1)
            assert not lease.live
        assert (await ledger.load("r1")).status is Status.QUEUED


async def test_b075_a_cancelled_hand_back_can_be_asked_again(store: FaultStore) -> None:
    async with Ledger(store, ttl=2) as ledger:
        await ledger.submit("count", 1, id="r1")
        store.orders.append(Order(fault=Fault.DELAY, seconds=0.1, match=a(Commit)))
        async with ledger.hold("r1") as lease:
            with anyio.move_on_after(0.05):
                await lease.hand_back()
        assert (await ledger.load("r1")).status is Status.QUEUED
        async with ledger.hold("r1", wait=1):
            pass


async def test_b028_an_outage_is_no_crash_of_the_runs_it_hits(store: FaultStore) -> None:
    async with Ledger(store, ttl=1) as ledger:
        await ledger.submit("count", 1, id="r1")
        before = ledger.blame
        with pytest.raises(LeaseLost):
            async with ledger.hold("r1"):
                store.down = True
                await anyio.sleep(30)
        assert (before, ledger.blame) == (True, False)
        store.down = False
        async with ledger.hold("r1", wait=3) as lease:
            assert (lease.run.attempt, lease.run.crashes) == (2, 0)


async def test_a_refused_write_is_told(store: FaultStore) -> None:
    async with Ledger(store, ttl=2) as ledger:
        await ledger.submit("count", 1, id="r1")
        with pytest.raises(LeaseLost):
            async with ledger.hold("r1") as lease:
                with anyio.CancelScope(shield=True):
                    run = await ledger.load("r1")
                    await store.inner.commit(End(run="r1", how=How.EVICT, token=run.token))
                    await lease.checkpoint({"a": 1})
        (line,) = await store.refused()
        assert (line.run, line.why, line.token) == ("r1", "evicted", run.token)
