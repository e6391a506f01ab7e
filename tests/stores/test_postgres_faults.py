"""What is said when something is wrong with PostgreSQL, and that work goes on when it is right again."""

import asyncio
import contextlib
import uuid

import anyio
import psycopg
import pytest

from conftest import StartPostgres
from stores.postgres_kit import LONG_S, Proxy, begun, connected, eventually, rows_of, until
from tenure import (
    Ledger,
    OutcomeUnknown,
    Status,
    StoreTooNew,
    StoreUnavailable,
    StoreUnsafe,
    TenureError,
    open_store,
)
from tenure.core import build
from tenure.core.run import Answer, Renew, Verdict, Why
from tenure.core.verify import verify_run
from tenure.errors import RowLocked
from tenure.store import Durability
from tenure.stores._postgres_connect import address
from tenure.stores._postgres_migrate import KNOWN, migrate
from tenure.testing.contract_case import claim, grant_of, write


@pytest.fixture
def fresh_url(postgres_url: str) -> str:
    """A schema that is not there yet."""
    return f"{postgres_url}?schema=s_{uuid.uuid4().hex}"


async def test_a_wrong_password_is_named_and_never_shown(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    async with connected(server.url) as connection:
        await connection.execute("ALTER ROLE tenure PASSWORD 'right'")
    server.allow("host all all 127.0.0.1/32 scram-sha-256")
    server.restart()
    url = server.url.replace("tenure@", "tenure:sEcret@")
    with pytest.raises(StoreUnsafe, match="refused the name or password") as refused:
        async with open_store(url):
            pass
    assert "sEcret" not in str(refused.value)
    async with open_store(server.url.replace("tenure@", "tenure:right@")) as store:
        assert "right" not in store.url
        assert (await store.commit(build.create(run="r1", kind="k", value=1))).ok


async def test_a_database_that_is_not_there_is_named(postgres_url: str) -> None:
    with pytest.raises(StoreUnsafe, match="no such database"):
        async with open_store(postgres_url.rpartition("/")[0] + "/nowhere"):
            pass


async def test_a_missing_schema_is_named_with_the_command_that_makes_it(fresh_url: str) -> None:
    with pytest.raises(StoreUnsafe, match="tenure --store URL store migrate --apply"):
        async with open_store(fresh_url):
            pass
    assert [step.number for step in await migrate(address(*split(fresh_url)))] == list(range(1, KNOWN + 1))
    assert await migrate(address(*split(fresh_url))) == []
    async with open_store(fresh_url) as store:
        assert (await store.commit(build.create(run="r1", kind="k", value=1))).ok


def split(url: str) -> tuple[str, dict[str, str]]:
    bare, _, schema = url.partition("?schema=")
    return bare, {"schema": schema}


async def test_a_migration_that_is_broken_off_has_left_nothing_and_goes_on(postgres_url: str, fresh_url: str) -> None:
    where = address(*split(fresh_url))
    async with connected(postgres_url) as other:
        await other.execute("BEGIN")
        await other.execute(f'CREATE SCHEMA "{where.schema}"'.encode())  # what the migration has to wait for
        migrating = asyncio.create_task(migrate(where))
        waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        await until(postgres_url, f"SELECT count(*) {waiting}", 1, f"%{where.schema}%")
        await rows_of(postgres_url, f"SELECT pg_terminate_backend(pid) {waiting}", f"%{where.schema}%")
        with pytest.raises(TenureError):
            await migrating
        await other.execute("ROLLBACK")
    assert await rows_of(postgres_url, "SELECT 1 FROM pg_namespace WHERE nspname = %s", where.schema) == []
    both = await asyncio.gather(migrate(where), migrate(where))
    assert sorted(step.number for done in both for step in done) == list(range(1, KNOWN + 1)), "each by one of the two"


async def test_a_schema_of_a_newer_version_is_refused_unless_it_says_that_this_one_may_use_it(fresh_url: str) -> None:
    bare, options = split(fresh_url)
    await migrate(address(bare, options))
    insert = f'INSERT INTO "{options["schema"]}".migration (number, name, reads) VALUES (%s, %s, %s)'
    await rows_of(bare, insert, 90, "harmless", KNOWN)
    async with open_store(fresh_url) as store:
        assert (await store.facts()).epoch
    await rows_of(bare, insert, 91, "another form", 91)
    with pytest.raises(StoreTooNew, match="upgrade this process"):
        async with open_store(fresh_url):
            pass


async def test_no_connection_left_is_named_and_passes(start_postgres: StartPostgres) -> None:
    server = start_postgres(max_connections=6, superuser_reserved_connections=2)
    async with connected(server.url) as connection:
        await connection.execute("CREATE ROLE worker LOGIN")
        await connection.execute("GRANT USAGE ON SCHEMA tenure TO worker")
        await connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO worker")
    url = server.url.replace("tenure@", "worker@")
    async with contextlib.AsyncExitStack() as taken:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                await taken.enter_async_context(await psycopg.AsyncConnection.connect(url))
        with pytest.raises(StoreUnavailable, match="no connection left"):
            async with open_store(url):
                pass

    async def opened() -> Answer:
        async with open_store(url) as store:
            return await store.commit(build.create(run="r1", kind="k", value=1))

    assert (await eventually(opened)).ok, "with no more rights than the page names"


async def test_a_role_without_rights_is_named(postgres_url: str) -> None:
    name = f"poor_{uuid.uuid4().hex}"
    await rows_of(postgres_url, f"CREATE ROLE {name} LOGIN")
    with pytest.raises(StoreUnsafe, match=r"lacks a right|missing"):
        async with open_store(postgres_url.replace("tenure@", f"{name}@")):
            pass


async def test_i10_a_server_that_is_killed_and_comes_back_is_no_other_history(
    start_postgres: StartPostgres, namespace: str
) -> None:
    server = start_postgres(fsync="on", full_page_writes="on")
    async with open_store(server.url, namespace=namespace) as store, Ledger(store, ttl=30) as ledger:
        assert store.level is Durability.DISK
        await ledger.submit("k", None, id="r1")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint("before")
            token = lease.token
            server.kill()
            server.start()
            await lease.checkpoint("after")
            assert (lease.token, lease.run.step) == (token, 2)
            await lease.settle()
        run = await eventually(lambda: store.load("r1"))
        assert verify_run(run, await store.tail("r1")).ok


async def test_a_server_that_hangs_is_given_up_in_time_and_taken_up_again(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    async with open_store(f"{server.url}?timeout=1") as store:
        change = build.create(run="r1", kind="k", value=1)
        await store.load("r1")
        server.freeze()
        try:
            with anyio.fail_after(LONG_S):
                with pytest.raises(OutcomeUnknown, match="same request again"):
                    await store.commit(change)
                with pytest.raises(StoreUnavailable):
                    await store.load("r1")
        finally:
            server.thaw()
        assert (await eventually(lambda: store.commit(change))).ok


async def test_a_caller_that_gives_up_does_not_wait_for_a_server_that_hangs(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    async with open_store(f"{server.url}?timeout=30") as store:
        await store.load("r1")
        server.freeze()
        try:
            for ask in (lambda: store.load("r1"), lambda: store.commit(build.create(run="r1", kind="k", value=1))):
                with anyio.fail_after(20), anyio.move_on_after(0.2) as given_up:
                    await ask()
                assert given_up.cancelled_caught
        finally:
            server.thaw()


async def test_b023_a_row_that_somebody_else_has_locked_is_unknown_to_a_renewal_and_awaited_by_a_commit(
    postgres_url: str, namespace: str
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store:
        runs = [await begun(store, f"r{number}") for number in range(10)]
        async with connected(postgres_url) as other:
            await other.execute("BEGIN")
            locked = (
                "SELECT 1 FROM tenure.run WHERE id = 'r4' AND space = (SELECT number FROM tenure.space WHERE name = %s)"
            )
            await other.execute(f"{locked} FOR UPDATE".encode(), [namespace])
            answers = await store.commit_many([Renew(grant=grant_of(run)) for run in runs])
            assert isinstance(answers[4], RowLocked)
            assert all(isinstance(a, Answer) and a.ok for n, a in enumerate(answers) if n != 4)
            waiting = asyncio.create_task(store.commit(write(grant_of(runs[4]), runs[4], step=1)))
            assert (await store.commit(write(grant_of(runs[5]), runs[5], step=1))).ok, "nobody else waits for it"
            assert not waiting.done()
            await other.execute("COMMIT")
            assert (await waiting).verdict is Verdict.LANDED


async def test_i10_a_standby_is_refused_and_promoted_the_holder_goes_on(
    start_postgres: StartPostgres, namespace: str
) -> None:
    primary = start_postgres()
    standby = start_postgres(copy_of=primary)
    with pytest.raises(StoreUnsafe, match="is a standby"):
        async with open_store(standby.url):
            pass
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://tenure@{hosts}/postgres?target_session_attrs=read-write"
    async with open_store(url, namespace=namespace) as store, Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", None, id="r1")
        await ledger.submit("k", None, id="r2")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint("before")
            token, before = lease.token, await store.facts()
            (wanted,) = (await rows_of(primary.url, "SELECT pg_current_wal_lsn()"))[0]
            await until(standby.url, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", True, wanted)
            primary.kill()
            await anyio.to_thread.run_sync(standby.promote)
            await lease.checkpoint("after")
            assert lease.token > token, "under a new grant, because the history is another"
            facts = await eventually(store.facts)
            assert (facts.epoch != before.epoch, facts.lossy) == (True, True)
            refused = await eventually(lambda: store.commit(claim("r2")))
            assert refused.why is Why.GRACE, "a stranger waits: a grant may be missing"
            await lease.settle()
        run = await eventually(lambda: store.load("r1"))
        assert (run.status, run.attempt, run.crashes) == (Status.COMPLETED, 1, 0)
        assert verify_run(run, await store.tail("r1")).ok


async def test_a_new_connection_on_which_nothing_is_said_keeps_nobody_waiting(
    postgres_url: str, namespace: str
) -> None:
    async with (
        Proxy(postgres_url, word=b"never said", passes=False, stalls=True) as proxy,
        open_store(f"{proxy.url}?timeout=1", namespace=namespace) as store,
    ):
        change = build.create(run="r1", kind="k", value=1)
        await store.commit(change)
        proxy.word = b"pg_control_system"
        await proxy.hang_up()
        with anyio.fail_after(LONG_S), pytest.raises(StoreUnavailable, match="does not answer"):
            while True:
                with contextlib.suppress(OutcomeUnknown):
                    await store.commit(change)
        proxy.word = b"never said"
        assert (await eventually(lambda: store.commit(change))).ok


async def test_who_waits_for_a_locked_row_is_told_that_the_store_was_closed(postgres_url: str, namespace: str) -> None:
    async with open_store(postgres_url, namespace=namespace) as store, connected(postgres_url) as other:
        run = await begun(store, "r1")
        await other.execute("BEGIN")
        await other.execute("SELECT 1 FROM tenure.run WHERE token = %s FOR UPDATE", [run.token])
        async with store.beside() as closing:
            waiting = asyncio.create_task(closing.commit(write(grant_of(run), run, step=1)))
            query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
            await until(postgres_url, query, 1, other.info.backend_pid)
        with anyio.fail_after(LONG_S), pytest.raises(OutcomeUnknown, match="was closed"):
            await waiting
        await other.execute("ROLLBACK")


async def test_who_reads_is_told_that_the_store_was_closed_and_not_cancelled(postgres_url: str, namespace: str) -> None:
    mark = f"closing-{namespace}"
    async with open_store(postgres_url, namespace=namespace) as store:
        session = store._opened()  # type: ignore[attr-defined]
        statement = f"SELECT pg_sleep(60), '{mark}'"
        reading = asyncio.create_task(session.on_pool(lambda connection: connection.execute(statement.encode())))
        await until(postgres_url, "SELECT count(*) FROM pg_stat_activity WHERE query = %s", 1, statement)
    with pytest.raises(OutcomeUnknown, match="the store was closed"):
        await reading
