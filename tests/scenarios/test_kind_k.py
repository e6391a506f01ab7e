"""What is stored, and how much of it. The rest of the kind is told of agents and of bad input."""

import os
from uuid import uuid4

import pytest

from tenure import Ledger, NotAllowed, Status
from tenure.core.ids import run_id
from tenure.store import Store


async def test_b108_what_is_kept_grows_with_what_was_added(store: Store) -> None:
    async with Ledger(store, ttl=30) as ledger:
        await ledger.submit("k", None, id="r1")
        sizes = []
        async with ledger.hold("r1") as lease:
            for _ in range(100):
                await lease.checkpoint(os.urandom(1024).hex())
                sizes.append(len((await store.tail("r1", after=lease.run.last_seq - 1))[0].body))
            await lease.settle()
        assert max(sizes[1:]) - min(sizes[1:]) < 64
        assert sum(sizes) < 1.1 * 100 * 2048


async def test_b111_one_id_has_one_spelling_everywhere(store: Store) -> None:
    made = uuid4()
    async with Ledger(store, ttl=10) as ledger:
        handle = await ledger.submit("k", 1, id=str(made).upper())
        assert handle.id == str(made)
        again = await ledger.submit("k", 1, id=made)  # type: ignore[call-overload]
        assert again.id == handle.id
        async with ledger.hold(str(made).upper()) as lease:
            await lease.settle()
        assert (await ledger.load(str(made))).status is Status.COMPLETED
    assert run_id(made) == run_id(str(made)) == run_id(str(made).upper())


async def test_a_datetime_without_a_zone_names_no_instant(store: Store) -> None:
    from datetime import datetime

    async with Ledger(store, ttl=10) as ledger:
        with pytest.raises(NotAllowed):
            await ledger.submit("k", 1, at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the fault
