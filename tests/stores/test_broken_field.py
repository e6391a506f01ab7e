"""One field of a record is broken: who has to read it is told, a plain commit on a server does not read it."""

from __future__ import annotations

import pytest

from stores.postgres_kit import rows_of
from tenure.core import build
from tenure.core.run import Renew, Status, Verdict, Why
from tenure.errors import CorruptRecord
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores._redis_line import pack
from tenure.stores.redis import RedisStore
from tenure.testing.contract_case import claim, grant_of, signal, write

BROKEN = "no JSON"
_POSTGRES = (
    "UPDATE tenure.run SET tags = %s WHERE id = 'r1' AND space = (SELECT number FROM tenure.space WHERE name = %s)"
    " RETURNING 1"
)


async def break_tags(store: Store, url: str) -> None:
    if isinstance(store, RedisStore):
        assert await store._read(pack("HSET", store._keys.run("r1"), "tags", BROKEN)) == [0]
    else:
        assert await rows_of(url, _POSTGRES, BROKEN, store.namespace) == [(1,)]


@pytest.mark.parametrize("server", ["redis7", "redis8", "valkey9", "postgres_url"])
async def test_i26_a_plain_commit_does_not_read_a_field_that_is_broken_and_leaves_it_as_it_is(
    server: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    served = request.getfixturevalue(server)
    url = getattr(served, "url", served)
    async with open_store(url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        run = (await store.commit(claim())).run
        assert run is not None
        await break_tags(store, url)
        assert (await store.commit(write(grant_of(run), run, step=1))).verdict is Verdict.LANDED
        assert (await store.commit(Renew(grant=grant_of(run)))).verdict is Verdict.LANDED
        found = await store.raw("r1")
        assert (found["tags"], found["last_seq"], found["step"]) == (BROKEN, "2", "1")
        (row,) = await store.tail("r1", after=1)
        ending = build.commit(grant_of(run), 3, row.digest, [], status=Status.COMPLETED)
        for change in (ending, signal()):  # these read it whole
            assert (await store.commit(change)).why is Why.CORRUPT
        with pytest.raises(CorruptRecord):
            await store.load("r1")
        assert await store.raw("r1") == found
