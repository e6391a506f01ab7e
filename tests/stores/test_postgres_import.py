"""An import into PostgreSQL beside transactions that are under way."""

import asyncio

from stores.postgres_kit import connected, until
from tenure.stores import open_store
from tenure.testing.contract_import import Elsewhere


async def test_i02_an_import_that_waited_for_a_deletion_gives_a_token_above_its_floor(
    postgres_url: str, namespace: str
) -> None:
    there = Elsewhere()
    there.steps(["a"])
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    async with (
        open_store(f"{postgres_url}?timeout=60", namespace=namespace) as store,
        connected(postgres_url) as deleting,
    ):
        floor = (await store.facts()).now_us + 10**12
        await deleting.execute("BEGIN")
        await deleting.execute("UPDATE tenure.space SET floor = %s WHERE name = %s", [floor, namespace])
        bringing = asyncio.create_task(store.commit(there.change()))
        await until(postgres_url, blocked, 1, deleting.info.backend_pid)
        await deleting.execute("COMMIT")
        run = (await bringing).run
    assert run is not None
    assert run.token > floor
