"""What a worker believes of its lease: never more than the store can hold it to."""

from pathlib import Path
from typing import Self

import anyio
import pytest

from tenure import LeaseChange, LeaseLost, Ledger, StoreUnavailable, open_store
from tenure.clock import ManualClock
from tenure.core.run import Grant, Renew
from tenure.testing.faults import Fault, FaultStore, Order
from tenure.trust import Trust, margin_ms


async def test_i05_an_answer_gives_no_more_trust_than_one_ttl() -> None:
    # A store clock set back stretches the lease until `repair` cuts it to now + ttl and lets somebody in after that.
    clock = ManualClock()
    grant = Grant(run="r", token=1, nonce="n", epoch="e", ttl_ms=10_000)
    most_ms = grant.ttl_ms - margin_ms(grant.ttl_ms)
    trust = Trust(grant, clock, sent_ns=clock.boot_ns(), left_ms=3_610_000, on_change=None)
    assert trust.remaining_ms == most_ms
    clock.advance(ms=1_000)
    trust.believe(clock.boot_ns(), 3_609_000)
    assert trust.remaining_ms == most_ms
    clock.advance(ms=most_ms)
    assert not trust.live


async def test_i20_leases_on_one_file_renew_by_the_clock_and_not_by_each_others_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    async with (
        FaultStore(open_store(url)) as one,
        FaultStore(open_store(url)) as two,
        Ledger(one, ttl=30) as ledger,
        Ledger(two, ttl=30) as other,
    ):
        await ledger.submit("count", 1, id="r1")
        await other.submit("count", 1, id="r2")
        async with ledger.hold("r1") as lease, other.hold("r2"):
            for number in range(10):  # writes that ring on the other's file watch
                await lease.record(f"tool:{number}", number)
                await anyio.sleep(0.15)
        renewals = [change for store in (one, two) for change in store.sent if isinstance(change, Renew)]
        assert len(renewals) <= 4


async def test_i20_a_renewal_without_an_answer_extends_no_trust() -> None:
    clock = ManualClock()
    grant = Grant(run="r", token=1, nonce="n", epoch="e", ttl_ms=10_000)
    trust = Trust(grant, clock, sent_ns=clock.boot_ns(), left_ms=10_000, on_change=None)
    clock.advance(ms=6_000)
    left_ms = trust.remaining_ms
    trust.unanswered(StoreUnavailable("no answer; ask again"))
    assert trust.remaining_ms == left_ms


async def test_i05_a_holder_is_stopped_at_its_deadline_although_it_asks_for_nothing() -> None:
    async with FaultStore(open_store("memory://")) as store, Ledger(store, ttl=3) as ledger:
        await ledger.submit("count", 1, id="r1")
        store.orders.append(Order(fault=Fault.SILENCE, times=99, match=lambda change: isinstance(change, Renew)))
        with anyio.fail_after(30), pytest.raises(LeaseLost, match="kept the lease on run r1 alive"):
            async with ledger.hold("r1"):
                await anyio.sleep_forever()


class OpensNever(FaultStore):
    """A store beside which nothing can be opened: the server takes the connection and says nothing."""

    def beside(self) -> FaultStore:
        return StuckStore(self.inner.beside())


class StuckStore(FaultStore):
    async def __aenter__(self) -> Self:
        await anyio.sleep_forever()
        raise AssertionError


async def test_i20_a_heartbeat_whose_store_hangs_while_it_opens_tells_its_holders_in_time() -> None:
    changes: list[LeaseChange] = []
    async with (
        open_store("memory://") as store,
        Ledger(OpensNever(store), ttl=2, on_change=changes.append) as ledger,
    ):
        await ledger.submit("k", None, id="r1")
        with pytest.raises(LeaseLost) as lost:
            async with ledger.hold("r1"):
                await anyio.sleep(30)
    assert lost.value.reason == "expired"
    assert any(isinstance(change.error, StoreUnavailable) for change in changes[:-1])
