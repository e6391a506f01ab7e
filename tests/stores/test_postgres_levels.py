"""The levels on PostgreSQL: what is offered is named, what is named and not reached stops the start."""

import asyncio

import anyio
import pytest

from conftest import StartPostgres
from stores.postgres_kit import begun, rows_of, until
from tenure import OutcomeUnknown, StoreUnsafe, open_store
from tenure.core import build
from tenure.core.run import Renew
from tenure.store import Diagnosable, Durability, Grade, Store, Transactional
from tenure.testing.contract_case import claim, grant_of, write
from tenure.testing.servers import PostgresServer


async def shows(server: PostgresServer, **options: str) -> None:
    """Set options and wait until new sessions have them."""
    server.set(**options)
    server.reload()
    for name, value in options.items():
        await until(server.url, f"SHOW {name}", value)


async def refused(url: str, durability: str | None, match: str) -> None:
    with pytest.raises(StoreUnsafe, match=match):
        async with open_store(url, durability=durability):
            pass


async def test_i19_what_a_server_offers_is_named_and_what_it_lacks_refused(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    async with open_store(server.url) as store:
        assert store.level is Durability.LOCAL, "it flushes nothing"
    await refused(server.url, "disk", "fsync or full_page_writes is off")
    await refused(server.url, "replicated", "ANY 1")
    server.set(fsync="on", full_page_writes="on")
    server.restart()
    async with open_store(server.url) as store:
        assert store.level is Durability.DISK
        assert isinstance(store, Diagnosable)
        found = {one.name: one for one in await store.diagnose()}
        assert found["durability"].text == "disk: a commit waits for its own disk"
        assert {one.level for one in found.values()} == {Grade.OK}
    await shows(server, synchronous_commit="off")
    await refused(server.url, None, "synchronous_commit off")
    await refused(server.url, "disk", "synchronous_commit")
    async with open_store(server.url, allow=["async-commit"]) as store:
        assert store.level is Durability.MEMORY
        assert isinstance(store, Diagnosable)
        (problem,) = [one for one in await store.diagnose() if one.level is Grade.PROBLEM]
        assert "ALTER SYSTEM" in problem.fix
    await shows(server, synchronous_commit="local")
    await refused(server.url, "replicated", "synchronous_commit is local")


async def test_i09_a_commit_that_no_standby_acknowledged_is_unknown_until_one_does(
    start_postgres: StartPostgres,
) -> None:
    primary = start_postgres(synchronous_commit="local")
    await shows(primary, synchronous_commit="remote_write")
    standby = start_postgres(copy_of=primary)
    await refused(primary.url, "replicated", "ANY 1")
    await shows(primary, synchronous_standby_names="ANY 1 (*)")
    attached = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
    await until(primary.url, attached, 1)
    async with open_store(f"{primary.url}?timeout=2", durability="replicated") as store:
        assert (await store.commit(build.create(run="r1", kind="k", value=1))).ok
        run = (await store.commit(claim("r1", ttl_ms=600_000))).run
        assert run is not None
        standby.freeze()
        change = build.create(run="r2", kind="k", value=1)
        with pytest.raises(OutcomeUnknown):
            await store.commit(change)
        assert (await store.commit(Renew(grant=grant_of(run)))).ok, "heartbeats never wait for standbys"
        standby.thaw()
        with anyio.fail_after(60):
            while True:
                try:
                    assert (await store.commit(change)).ok
                    break
                except OutcomeUnknown:
                    await anyio.sleep(0.05)
    async with open_store(primary.url, durability="replicated") as store:
        await a_transaction_is_not_acknowledged_either(store, primary.url, standby)
    standby.kill()
    await until(primary.url, attached, 0)
    await refused(primary.url, "replicated", "none of them is synchronous")


async def a_transaction_is_not_acknowledged_either(store: Store, url: str, standby: PostgresServer) -> None:
    """Whoever has the wait for the standbys cancelled gets a warning, and a COMMIT that looks like any other."""
    assert isinstance(store, Transactional)
    run = await begun(store, "r3")
    change = write(grant_of(run), run, step=1)
    async with store.transaction() as guarded:
        standby.freeze()
        try:
            landing = asyncio.create_task(guarded.commit(change))
            waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'"
            await until(url, f"SELECT count(*) {waits}", 1)
            await rows_of(url, f"SELECT pg_cancel_backend(pid) {waits}")
            with pytest.raises(OutcomeUnknown, match="did not acknowledge"):
                await landing
        finally:
            standby.thaw()
        assert (await guarded.commit(change)).ok
