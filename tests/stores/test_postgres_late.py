"""Who waited for a row is judged by the time at which it has the row, not at which it asked."""

import asyncio

import anyio

from stores.postgres_kit import connected, until
from tenure import open_store
from tenure.core import build
from tenure.core.run import Verdict, Why
from tenure.testing.contract_case import claim, grant_of, write

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


async def test_i01_who_waited_for_a_row_until_its_lease_was_over_writes_nothing(
    postgres_url: str, namespace: str
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store, connected(postgres_url) as other:
        await store.commit(build.create(run="r1", kind="k", value=1))
        run = (await store.commit(claim("r1", ttl_ms=3_000))).run
        assert run is not None
        await other.execute("BEGIN")
        await other.execute("SELECT 1 FROM tenure.run WHERE token = %s FOR UPDATE", [run.token])
        waiting = asyncio.create_task(store.commit(write(grant_of(run), run, step=1)))
        await until(postgres_url, BLOCKED, 1, other.info.backend_pid)
        while (await store.facts()).now_ms <= run.lease_until_ms:  # noqa: ASYNC110 - the server's time
            await anyio.sleep(0.05)
        await other.execute("ROLLBACK")
        answer = await waiting
        assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.EXPIRED)
        assert (await store.load("r1")) == run
