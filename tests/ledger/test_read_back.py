"""A journal is read back page by page; one that cannot be trusted sets its run aside, and only by its own holder."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure import LeaseLost, Ledger, NotAllowed, RunQuarantined, Status, open_store
from tenure.core import build
from tenure.core.run import End, How
from tenure.testing.faults import Fault, FaultStore, Order


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    async with FaultStore(open_store("memory://")) as store:
        yield store


async def test_i26_a_row_that_cannot_even_be_parsed_sets_the_run_aside(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/t.db") as store, Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        with sqlite3.connect(tmp_path / "t.db") as damage:
            damage.execute("UPDATE journal SET data = x'00'")
        with pytest.raises(RunQuarantined, match="restore it or cancel it"):
            async with ledger.hold("r1"):
                pass
        run = await ledger.load("r1")
        assert run.status is Status.QUARANTINED
        assert "corrupt journal" in run.grants[-1].reason


async def test_i26_a_lost_reply_to_setting_aside_is_asked_again(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        lease = await ledger.claims.claim(ledger.claims.change("r1"))
        store.orders.append(Order(fault=Fault.REPLY_LOST, match=lambda change: isinstance(change, End)))
        await lease.quarantine("its data does not fit")
        assert lease.over
        assert (await ledger.load("r1")).status is Status.QUARANTINED


async def test_i13_who_was_taken_over_while_it_read_sets_nothing_aside(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        lease = await ledger.claims.claim(ledger.claims.change("r1"))
        await store.commit(build.end(run="r1", how=How.EVICT, token=lease.token))
        async with ledger.hold("r1") as successor:
            await successor.checkpoint({"n": 1})
            with pytest.raises(LeaseLost):
                await lease.read_back()
            successor.check()
            await successor.settle()


async def test_a_long_journal_is_folded_page_by_page(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            for number in range(120):
                await lease.checkpoint(number)
        async with ledger.hold("r1") as lease:
            assert (lease.state.checkpoints, lease.last, lease.run.last_seq) == (120, 119, 122)


async def test_a_run_cannot_be_put_to_sleep_for_ever(store: FaultStore) -> None:
    async with Ledger(store, ttl=5) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            with pytest.raises(NotAllowed, match="name a time"):
                await lease.suspend()
            assert lease.live
