"""A holder whose store restarts or loses what it acknowledged: it goes on, or stops for good."""

import anyio
import pytest

from conftest import StartRedis
from tenure import HistoryLost, Ledger, open_store
from tenure.core.verify import verify_run
from tenure.testing.servers import VALKEY9


@pytest.mark.slow
async def test_i10_a_holder_goes_on_after_a_restart_that_lost_nothing(start_redis: StartRedis, namespace: str) -> None:
    server = start_redis(VALKEY9, appendonly="yes", appendfsync="always")
    async with open_store(server.url, namespace=namespace) as store, Ledger(store, ttl=10) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint({"n": 1})
            before = lease.grant
            await anyio.to_thread.run_sync(server.restart)
            with anyio.fail_after(10):
                await lease.checkpoint({"n": 2})
            assert lease.grant.epoch != before.epoch
            assert lease.token > before.token
            assert lease.run.attempt == 1
            await lease.settle("completed", 2)
        run = await ledger.load("r1")
        assert [line.ended for line in run.grants] == ["reattached", "completed"]
        assert verify_run(run, await store.tail("r1")).ok
        assert lease.state.checkpoints == 2


@pytest.mark.slow
async def test_i10_a_heartbeat_that_meets_a_new_history_has_the_holder_reattach(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(VALKEY9, appendonly="yes", appendfsync="always")
    async with open_store(server.url, namespace=namespace) as store, Ledger(store, ttl=3) as ledger:
        await ledger.submit("count", 1, id="r1")
        async with ledger.hold("r1") as lease:
            before = lease.grant
            await anyio.to_thread.run_sync(server.restart)
            with anyio.fail_after(10):
                while lease.grant is before:  # noqa: ASYNC110 - the committer reattaches by itself
                    await anyio.sleep(0.02)
            lease.check()
            await lease.settle()


@pytest.mark.slow
async def test_i10_a_store_that_lost_what_it_had_told_ends_its_holder(start_redis: StartRedis, namespace: str) -> None:
    server = start_redis(VALKEY9, appendonly="no", save="")
    async with open_store(server.url, namespace=namespace) as store, Ledger(store, ttl=10) as ledger:
        await ledger.submit("count", 1, id="r1")
        with pytest.raises(HistoryLost):
            async with ledger.hold("r1") as lease:
                await lease.checkpoint({"n": 1})
                await anyio.to_thread.run_sync(server.restart)
                await lease.checkpoint({"n": 2})
