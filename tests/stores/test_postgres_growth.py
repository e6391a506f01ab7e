"""How PostgreSQL reads where there are many runs: by an index, and never all of them for one page."""

from collections.abc import AsyncIterator, Mapping

import pytest

import filled
from conftest import StartPostgres
from stores.postgres_kit import begun, rows_of, until
from tenure.core import build
from tenure.core.run import Change, Delete, How, Renew
from tenure.stores import open_store
from tenure.stores.postgres import PostgresStore
from tenure.testing.contract_case import claim, write

PAGE = {"before_ms": 1 << 62, "before_id": "", "from_ms": 0, "until_ms": 1 << 62, "kind": "", "owner": "", "limit": 101}
READS = {
    "find": PAGE,
    "find_status": {**PAGE, "statuses": ["completed", "suspended"]},
    "find_parent": {**PAGE, "parent": "somebody"},
    "entries": {"kind": "bench", "after_ms": -1, "after_id": "", "limit": 101},
    "due": {"kinds": ["bench"], "limit": 100},
}
INDEXES = {
    "find": "run_created",
    "find_status": "run_status",
    "find_parent": "run_parent",
    "entries": "run_due",
    "due": "run_due",
}


@pytest.fixture
async def store(start_postgres: StartPostgres, namespace: str) -> AsyncIterator[PostgresStore]:
    server = start_postgres()
    async with open_store(server.url, namespace=namespace) as store:
        assert isinstance(store, PostgresStore)
        await filled.fill(store, server.url, 6_000)
        yield store


async def plan_of(store: PostgresStore, name: str, values: Mapping[str, object]) -> str:
    session, given = store._opened(), {"space": store.namespace, "test_us": None, **values}
    async with session.pool.connection() as connection:
        found = await connection.execute(f"EXPLAIN {session.sql[name]}".encode(), given)
        return "\n".join(row[0] for row in await found.fetchall())


async def test_a_page_is_read_from_an_index_however_many_runs_there_are(store: PostgresStore) -> None:
    for name, values in READS.items():
        plan = await plan_of(store, name, values)
        assert "on run" in plan, (name, plan)
        assert "Seq Scan on run" not in plan, (name, plan)
        # Only the few that each status or kind gives are put in order.
        assert name in ("find_status", "due") or "Sort" not in plan, (name, plan)


async def test_a_run_is_found_by_its_key_alone_though_nothing_was_analyzed(
    start_postgres: StartPostgres, namespace: str
) -> None:
    server = start_postgres(autovacuum="off")
    async with open_store(server.url, namespace=namespace) as store:
        runs = [await begun(store, f"run-{number}") for number in range(3)]
        changes: list[list[Change]] = [
            [write(build.grant_of(run), run) for run in runs],
            [Renew(grant=build.grant_of(run)) for run in runs],
            [build.create(run=f"later-{number}", kind="k", value=number) for number in range(20)],
            [claim(f"later-{number}") for number in range(20)],
            [build.end(run=f"later-{number}", how=How.CANCEL) for number in range(2)],
            [Delete(run="later-1")],
        ]
        for asked in changes:
            assert all(getattr(answer, "ok", False) for answer in await store.commit_many(asked))
    # What a session has counted is told when it ends.
    await until(server.url, "SELECT sum(idx_scan) > 40 FROM pg_stat_user_indexes WHERE relname = 'run'", wanted=True)
    scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'run_created'"
    assert await rows_of(server.url, scans) == [(0,)]


async def test_what_is_looked_for_has_an_index_of_its_own_though_nothing_was_analyzed(
    start_postgres: StartPostgres, namespace: str
) -> None:
    async with open_store(start_postgres(autovacuum="off").url, namespace=namespace) as store:
        assert isinstance(store, PostgresStore)
        await store.commit_many([build.create(run=f"run-{n}", kind="bench", value=n) for n in range(2_000)])
        for name, index in INDEXES.items():
            plan = await plan_of(store, name, READS[name])
            assert f"using {index} on run" in plan, (name, plan)
