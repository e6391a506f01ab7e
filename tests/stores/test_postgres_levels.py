"""The levels on PostgreSQL: what is offered is named, what is named and not reached stops the start."""

import asyncio

import anyio
import pytest

from conftest import StartPostgres
from stores.postgres_kit import begun, eventually, rows_of, until
from tenure import OutcomeUnknown, StoreUnsafe, open_store
from tenure.core import build
from tenure.core.run import Renew, Why
from tenure.store import Diagnosable, Durability, Grade, Store, Transactional
from tenure.stores._postgres_check import Server
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


def settings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of how the server is set, which a console says once."""
    found = [record.getMessage() for record in caplog.records if getattr(record, "setting", False)]
    caplog.clear()
    return found


async def test_i19_what_a_server_offers_is_named_and_what_it_lacks_refused(
    start_postgres: StartPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_postgres()
    async with open_store(server.url) as store:
        assert store.level is Durability.LOCAL, "it flushes nothing"
    assert ["fsync" in line for line in settings(caplog)] == [True]
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
        assert ["synchronous_commit is off" in line for line in settings(caplog)] == [True]
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


@pytest.mark.parametrize(
    "names, standbys, every",
    [
        ("", 1, False),
        ("*", 1, False),
        ("ANY 1 (*)", 1, False),
        ("a", 1, True),
        ("a", 2, False),
        ("a, b", 2, False),
        ("FIRST 1 (a, b)", 2, False),
        ("ANY 1 (a, b)", 1, False),
        ('any 2 (a, "b")', 2, True),
        ("2 (a, b)", 0, True),
    ],
)
def test_a_replica_counts_as_whole_only_where_every_one_has_to_acknowledge(
    names: str, standbys: int, *, every: bool
) -> None:
    server = Server(
        version=160000,
        standby=False,
        fsync=True,
        full_pages=True,
        commit="on",
        names=names,
        standbys=standbys,
        synchronous=standbys,
        backend_pid=1,
        read_only=False,
    )
    assert server.every_standby is every


@pytest.mark.parametrize("names, why", [("ANY 1 (walreceiver)", None), ("ANY 1 (*)", Why.GRACE)])
async def test_i10_strangers_wait_after_a_promotion_unless_every_standby_had_to_have_all(
    start_postgres: StartPostgres, names: str, why: Why | None
) -> None:
    primary = start_postgres(synchronous_commit="local")
    standby = start_postgres(copy_of=primary)
    await shows(primary, synchronous_commit="remote_write", synchronous_standby_names=names)
    await until(primary.url, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'", 1)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://tenure@{hosts}/postgres?target_session_attrs=read-write"
    async with open_store(url, durability="replicated") as store:
        await store.raise_ttl(600_000)
        for run_id in ("r1", "r2"):
            assert (await store.commit(build.create(run=run_id, kind="k", value=1))).ok
        assert (await store.commit(claim("r1", ttl_ms=600_000))).ok
        primary.kill()
        await anyio.to_thread.run_sync(standby.promote)
        stranger = claim("r2", ttl_ms=600_000)
        found = await eventually(lambda: store.commit(stranger))
        assert found.why is why
