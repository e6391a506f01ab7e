"""How PostgreSQL reads where there are many runs: by an index, and never all of them for one page."""

from collections.abc import AsyncIterator

import pytest

import filled
from conftest import StartPostgres
from tenure.stores import open_store
from tenure.stores.postgres import PostgresStore

PAGE = {"before_ms": 1 << 62, "before_id": "", "from_ms": 0, "until_ms": 1 << 62, "kind": "", "owner": "", "limit": 101}
READS = {
    "find": PAGE,
    "find_status": {**PAGE, "statuses": ["completed", "suspended"]},
    "find_parent": {**PAGE, "parent": "somebody"},
    "entries": {"kind": "bench", "after_ms": -1, "after_id": "", "limit": 101},
    "due": {"kinds": ["bench"], "limit": 100},
}


@pytest.fixture
async def store(start_postgres: StartPostgres, namespace: str) -> AsyncIterator[PostgresStore]:
    server = start_postgres()
    async with open_store(server.url, namespace=namespace) as store:
        assert isinstance(store, PostgresStore)
        await filled.fill(store, server.url, 6_000)
        yield store


async def test_a_page_is_read_from_an_index_however_many_runs_there_are(store: PostgresStore) -> None:
    session = store._opened()
    for name, values in READS.items():
        given = {"space": store.namespace, "test_us": None, **values}
        async with session.pool.connection() as connection:
            found = await connection.execute(f"EXPLAIN {session.sql[name]}".encode(), given)
            plan = "\n".join(row[0] for row in await found.fetchall())
        assert "on run" in plan, (name, plan)
        assert "Seq Scan on run" not in plan, (name, plan)
        # Only the few that each status or kind gives are put in order.
        assert name in ("find_status", "due") or "Sort" not in plan, (name, plan)
