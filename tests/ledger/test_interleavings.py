"""What happens between two steps of a holder: cancelled callers, answers that cross, a store that falls silent."""

from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from tenure import LeaseLost, Ledger, NotAllowed, OutcomeUnknown, Status, StoreUnsafe, TenureError, open_store
from tenure.clock import ManualClock
from tenure.core.run import Answer, Change, Claim, Commit, Grant, Reattach, Run, Verdict, Why
from tenure.lease import Lease
from tenure.testing.faults import Fault, FaultStore, Order
from tenure.trust import Trust


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    async with FaultStore(open_store("memory://")) as store:
        yield store


def commits(change: Change) -> bool:
    return isinstance(change, Commit)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not true():  # noqa: ASYNC110 - a fact without an event
            await anyio.sleep(0.005)


async def test_b081_a_cancelled_append_leaves_the_end_of_the_lease_on_its_way(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            store.orders.append(Order(fault=Fault.DELAY, match=commits, seconds=0.4))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lease.record, "tool:first")
                await until(lambda: any(commits(change) for change in store.sent))
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as cut:
                        cut.start_soon(lease.record, "tool:cut")
                        await anyio.wait_all_tasks_blocked()
                        tasks.start_soon(lease.settle)
                        await anyio.wait_all_tasks_blocked()
                        assert not lease.live
                        scope.cancel()
                assert not lease.live
                with pytest.raises(NotAllowed):
                    await lease.record("tool:late")
        assert set(lease.state.records) == {("", "tool:first")}


async def test_an_end_asked_again_with_other_content_is_refused(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        handle = await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            store.orders.append(Order(fault=Fault.DELAY, match=commits, seconds=0.05))
            with anyio.move_on_after(0.02):
                await lease.settle(value="first")
            with pytest.raises(NotAllowed):
                await lease.settle(value="second")
        assert await handle.result(timeout=1) == "first"


async def test_a_dropped_lease_asks_the_store_no_more(store: FaultStore) -> None:
    async with Ledger(store, ttl=2) as ledger:
        await ledger.submit("count", 1, id="r1")
        lease = await ledger.claims.claim(ledger.claims.change("r1"))
        store.orders.append(Order(fault=Fault.REQUEST_LOST, times=10_000, match=commits))
        with anyio.move_on_after(0.1):
            await lease.hand_back()
        ledger.claims.drop(lease)
        await anyio.sleep(1.1)
        sent = len(store.sent)
        await anyio.sleep(1.2)
        assert len(store.sent) == sent


async def test_a_closing_ledger_cancels_nobody_who_waits_for_a_write(store: FaultStore) -> None:
    raised: list[BaseException] = []

    async def write(lease: Lease) -> None:
        try:
            await lease.checkpoint({"a": 1})
        except BaseException as error:  # noqa: BLE001 - a cancellation is what must not come
            raised.append(error)

    async with anyio.create_task_group() as tasks, Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        lease = await ledger.claims.claim(ledger.claims.change("r1"))
        store.orders.append(Order(fault=Fault.SILENCE, match=commits))
        tasks.start_soon(write, lease)
        await until(lambda: any(commits(change) for change in store.sent))
    assert [type(error) for error in raised] == [OutcomeUnknown]


async def test_i10_a_renewal_that_meets_the_reattachment_costs_no_lease() -> None:
    clock = ManualClock()
    old = Grant(run="r1", token=1, nonce="a", epoch="one", ttl_ms=10_000)
    trust = Trust(old, clock, sent_ns=0, left_ms=10_000, on_change=None)
    after = Run(id="r1", kind="count", status=Status.RUNNING, token=2, nonce="b", epoch="two")
    refused = Answer(verdict=Verdict.REFUSED, why=Why.LOST, now_us=1, run=after)
    trust.reattaching = True
    assert trust.answered(old, refused, 1) is None
    trust.check()
    trust.reattaching = False
    assert trust.answered(old, refused, 1) is not None
    with pytest.raises(LeaseLost):
        trust.check()


async def test_i11_what_was_granted_is_renewed_while_another_claim_of_the_batch_is_asked_again(
    store: FaultStore,
) -> None:
    async with Ledger(store, ttl=1) as ledger:
        for run_id in ("a", "b"):
            await ledger.submit("count", 1, id=run_id)

        def of_a(change: Change) -> bool:
            return isinstance(change, Claim) and change.run == "a"

        store.orders.append(Order(fault=Fault.REQUEST_LOST, times=1000, match=of_a))
        first, second = await ledger.claims.claim_many([ledger.claims.change("a"), ledger.claims.change("b")])
        assert isinstance(first, OutcomeUnknown)
        assert isinstance(second, Lease)
        second.check()
        assert (await ledger.load("b")).ordinal == 1
        ledger.claims.drop(second)


async def test_bad_addresses_in_a_journal_are_named(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        handle = await ledger.submit("count", 1, id="r1")
        for after in ("x", "-1", "1.x", "1.", -1):
            with pytest.raises(NotAllowed, match="pass an address"):
                _ = [event async for event in handle.events(after=after)]
        assert [address async for address, _ in handle.events(after="0")] == ["1.0"]
        assert [address async for address, _ in handle.events(after="1.0")] == []


class Demoted(FaultStore):
    """A store whose reply to a commit is lost, and which then says for two answers that it is a replica."""

    says = 0

    async def _one(self, change: Change) -> Answer | TenureError:
        if isinstance(change, Commit) and self.says:
            self.says -= 1
            if self.says == 2:
                await self.inner.commit(change)
                return OutcomeUnknown("the reply was lost; it was ordered so")
            return StoreUnsafe("it is a replica and takes no writes; it was ordered so")
        return await super()._one(change)


async def test_i07_a_failover_that_answers_as_a_replica_for_a_while_fails_no_write() -> None:
    async with Demoted(open_store("memory://")) as store, Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            store.says = 3
            await lease.checkpoint({"n": 1})
            assert (store.says, lease.run.last_seq) == (0, 2)
            await lease.settle()


@pytest.mark.parametrize("seconds", [0.5, 0.0], ids=["landed", "not sent"])
async def test_i10_a_reattachment_whose_caller_is_cancelled_is_asked_again(store: FaultStore, seconds: float) -> None:
    def reattaches(change: Change) -> bool:
        return isinstance(change, Reattach)

    async with Ledger(store, ttl=20) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint("one")
            before = lease.grant
            await store.new_history()
            fault = Fault.DELAY if seconds else Fault.SILENCE
            store.orders.append(Order(fault=fault, match=reattaches, seconds=seconds))
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lease.checkpoint, "two")
                    await until(lambda: any(reattaches(change) for change in store.sent))
                    if seconds:  # it lands, and the answer is not waited for
                        while (await ledger.load("r1")).token == before.token:  # noqa: ASYNC110 - a fact without an event
                            await anyio.sleep(0.005)
                    scope.cancel()
            await lease.checkpoint("three")
            assert lease.token > before.token
            await lease.settle()
        values = [event["value"] async for _, event in ledger.handle("r1").events() if event["type"] == "checkpoint"]
    assert values == ["one", "two", "three"]
