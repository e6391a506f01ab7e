"""Who keeps PostgreSQL from removing old rows is named by doctor, with what ends it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest

from conftest import StartPostgres
from stores.postgres_kit import begun, connected, rows_of, until
from tenure import open_store
from tenure.core import build
from tenure.store import Diagnosable, Finding, Grade, Store, Transactional
from tenure.stores import _postgres_held as held
from tenure.testing.contract_case import write


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell of a second, and of one transaction where no time is known."""
    monkeypatch.setattr(held, "HELD_S", 1)
    monkeypatch.setattr(held, "HELD_XIDS", 1)


@asynccontextmanager
async def looking(url: str, application_name: str = "") -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session that looks at one moment for as long as it lasts, as pg_dump does."""
    async with await psycopg.AsyncConnection.connect(url, application_name=application_name) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await connection.execute("SELECT count(*) FROM pg_class")
        yield connection
        await connection.close()  # whatever was done to it


async def told(store: Store) -> Finding | None:
    assert isinstance(store, Diagnosable)
    found = [one for one in await store.diagnose() if one.name == "old rows"]
    assert len(found) <= 1
    return found[0] if found else None


async def until_told(store: Store) -> Finding:
    with anyio.fail_after(60):
        while (found := await told(store)) is None:  # noqa: ASYNC110 - it is the server's time
            await anyio.sleep(0.1)
    assert found.level is Grade.WARNING
    return found


async def test_a_session_that_stays_in_a_transaction_is_named_until_it_ends(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    async with open_store(server.url) as store:
        async with looking(server.url, application_name="nightly report") as other:
            pid = other.info.backend_pid
            found = await until_told(store)
            assert f"session {pid} of 'nightly report', role tenure, has been idle in a transaction for" in found.text
            await rows_of(server.url, found.fix.partition(", and ")[0])
            gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            await until(server.url, gone, 0, "nightly report")
        assert await told(store) is None


async def test_a_tool_that_keeps_its_transaction_open_is_named_too(start_postgres: StartPostgres) -> None:
    async with open_store(start_postgres().url) as store:
        run = await begun(store, "r1")
        assert isinstance(store, Transactional)
        async with store.transaction() as guarded:
            await guarded.connection.execute("CREATE TABLE effects (n int)")
            assert "idle in a transaction" in (await until_told(store)).text
            assert (await guarded.commit(write(build.grant_of(run), run))).ok
        assert await told(store) is None


async def test_a_prepared_transaction_is_named_with_what_ends_it(start_postgres: StartPostgres) -> None:
    server = start_postgres(max_prepared_transactions=2)
    async with open_store(server.url) as store:
        async with await psycopg.AsyncConnection.connect(server.url) as other:
            await other.execute("CREATE TABLE half_done (n int)")
            await other.execute("PREPARE TRANSACTION 'it''s mine'")
        found = await until_told(store)
        assert """prepared transaction "it's mine" of role tenure""" in found.text
        await rows_of(server.url, found.fix.partition(" or ")[2].partition(", ")[0])
        assert await told(store) is None


async def test_a_slot_by_which_a_standby_looks_is_named(start_postgres: StartPostgres) -> None:
    primary = start_postgres()
    await rows_of(primary.url, "SELECT pg_create_physical_replication_slot('far', true)")
    standby = start_postgres(copy_of=primary)
    standby.set(hot_standby_feedback="on", primary_slot_name="far", wal_receiver_status_interval="1")
    standby.restart()
    async with open_store(primary.url) as store, looking(standby.url):
        await until(primary.url, "SELECT xmin IS NOT NULL FROM pg_replication_slots", wanted=True)
        await begun(store, "r1")
        found = await until_told(store)
        assert "the replication slot 'far' has held back" in found.text
        assert "pg_drop_replication_slot('far')" in found.fix


async def test_who_may_not_see_when_others_began_is_told_by_how_much_they_hold_back(
    start_postgres: StartPostgres,
) -> None:
    server = start_postgres()
    async with connected(server.url) as connection:
        await connection.execute("CREATE ROLE worker LOGIN")
        await connection.execute("GRANT USAGE ON SCHEMA tenure TO worker")
        await connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO worker")
    async with open_store(server.url.replace("tenure@", "worker@")) as store, looking(server.url) as other:
        await begun(store, "r1")
        found = await until_told(store)
        assert f"session {other.info.backend_pid}" in found.text
        assert " transactions: no old version" in found.text


async def test_a_role_that_may_not_look_at_all_is_told_the_rest(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    async with connected(server.url) as connection:
        await connection.execute("CREATE ROLE worker LOGIN")
        await connection.execute("GRANT USAGE ON SCHEMA tenure TO worker")
        await connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO worker")
        await connection.execute("REVOKE SELECT ON pg_prepared_xacts FROM PUBLIC")
    async with open_store(server.url.replace("tenure@", "worker@")) as store, looking(server.url):
        assert isinstance(store, Diagnosable)
        assert "durability" in {one.name for one in await store.diagnose()}
        assert await told(store) is None
