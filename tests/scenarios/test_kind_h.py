"""Cancellation and shutdown. The rest of the kind is told of leases, of workers and of Redis connections."""

import anyio

from tenure import Ledger
from tenure.core.run import Commit
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.faults import Fault, FaultStore, Order


async def test_b078_an_append_cancelled_in_the_queue_is_never_written_later(store: Store) -> None:
    faulty = FaultStore(store)
    async with Ledger(faulty, ttl=5) as ledger:
        await ledger.submit("k", None, id="r1")
        async with ledger.hold("r1") as lease:
            faulty.orders.append(Order(fault=Fault.DELAY, seconds=0.1, match=lambda c: isinstance(c, Commit)))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lease.record, "step:5", 5)
                await anyio.sleep(0.02)
                with anyio.move_on_after(0.05) as cancelled:
                    await lease.record("step:6", 6)
                assert cancelled.cancelled_caught
                await lease.record("step:7", 7)
            names = [name for _, name in lease.state.records]
            assert names == ["step:5", "step:7"]
            await lease.settle()
    run = await store.load("r1")
    assert run is not None
    assert verify_run(run, await store.tail("r1")).ok
