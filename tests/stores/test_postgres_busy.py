"""Busy runs on PostgreSQL: a renewal does not wait for a row, so it often meets one that its own holder writes."""

import logging

import anyio
import pytest

from stores.postgres_kit import connected
from tenure import LeaseChange, Ledger, StoreUnavailable, open_store
from tenure.heartbeat import beat
from tenure.stores.postgres import PostgresStore

RUNS = 16


async def test_i20_a_renewal_that_meets_the_commit_of_its_own_holder_is_not_worth_a_word(
    postgres_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tenure.lease")
    changes: list[LeaseChange] = []
    met = 0
    async with (
        open_store(postgres_url, namespace=namespace) as store,
        store.beside() as aside,
        Ledger(store, ttl=30, on_change=changes.append) as ledger,
    ):
        assert isinstance(aside, PostgresStore)
        ask = aside.commit_many

        async def counted(*args: object) -> object:
            nonlocal met
            answers = await ask(*args)  # type: ignore[arg-type]
            met += sum(isinstance(answer, StoreUnavailable) for answer in answers)
            return answers

        aside.commit_many = counted  # type: ignore[method-assign, assignment]
        ready = anyio.Event()

        async def busy(name: str) -> None:
            async with ledger.hold(name) as lease:
                while not ready.is_set():
                    await lease.checkpoint(name)
                await lease.hand_back()

        names = [f"r{number}" for number in range(RUNS)]
        for name in names:
            await ledger.submit("count", 1, id=name)
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(busy, name)
            with anyio.fail_after(60):
                while met < RUNS:
                    await beat(aside, ledger.pulse, ledger.clock, ttl_ms=30_000)
                    await anyio.sleep(0.01)
            ready.set()
        assert (_said(caplog), changes) == ([], [])
        async with ledger.hold("r0"), connected(postgres_url) as other:
            await other.execute("BEGIN")
            where = "space = (SELECT number FROM tenure.space WHERE name = %s)"
            await other.execute(f"SELECT 1 FROM tenure.run WHERE {where} FOR UPDATE".encode(), [namespace])
            await beat(aside, ledger.pulse, ledger.clock, ttl_ms=30_000)
            assert "another transaction holds the row of run r0" in "".join(_said(caplog))
            await other.execute("ROLLBACK")
        assert [change.run_id for change in changes] == ["r0"]


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of leases; of its disk the server's store has something to say too."""
    return [record.getMessage() for record in caplog.records if record.name == "tenure.lease"]
