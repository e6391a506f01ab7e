"""What is damaged in the keys is refused, and stays as it was for people to look at."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import redis

from stores.redis_kit import begun, claim, key_contents, opened
from tenure.core import build, journal
from tenure.core.run import (
    Ask,
    Change,
    Delete,
    End,
    Grant,
    How,
    Reattach,
    Renew,
    Repair,
    Run,
    Verdict,
    Why,
)
from tenure.errors import CorruptRecord, StoreUnsafe
from tenure.stores._redis_line import pack


def everything(grant: Grant, run: Run) -> list[Change]:
    """A change of each sort, and those commits that touch more than one key."""
    event = [journal.event(journal.CHECKPOINT, value="x")]
    seq, prev = run.last_seq + 1, run.head
    return [
        build.create(run="new", kind="k", value="n" * 70_000),
        replace(build.create(run="new", kind="k", value=1), blobs={"d" * 64: b"blob"}),
        claim("queued"),
        Renew(grant=grant),
        build.commit(grant, seq, prev, event, step=1),
        build.commit(grant, seq, prev, event, blobs=[b"small"]),
        build.commit(grant, seq, prev, event, blobs=[b"large" * 20_000]),
        build.commit(grant, seq, prev, [journal.event("x", v="y" * 70_000)]),
        build.commit(grant, seq, prev, event, consume=["item"], inbox_seq=run.inbox_seq),
        build.commit(grant, seq, prev, event, status=run.status.COMPLETED),
        build.post(run="r1", item="other", name="n", ask=Ask.SIGNAL),
        Reattach(grant=grant, nonce="again", seq=run.last_seq, head=run.head),
        Repair(run="r1", stray="r1 1 0 k"),
        End(run="r1", how=How.CANCEL),
        Delete(run="ended"),
    ]


@pytest.mark.parametrize(
    "what",
    [
        *("run:r1", "log:r1", "inbox:r1", "blobs:r1", "big:r1", "big:r1:2", "due:k", "kinds", "meta", "history"),
        *("status:queued", "status:running", "status:completed", "status:cancelled"),
        *("run:new", "log:new", "blobs:new", "inbox:new", "big:new", "run:queued", "run:ended", "big:ended"),
    ],
)
async def test_i17_a_key_of_the_wrong_type_or_kind_leaves_everything_as_it_was(
    redis_url: str, namespace: str, what: str
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        await store.commit(build.create(run="queued", kind="k", value=1))
        await store.commit(build.create(run="ended", kind="k", value=1))
        await store.commit(End(run="ended", how=How.CANCEL))
        grant, _ = await begun(store)
        answer = await store.commit(build.post(run="r1", item="item", name="n", ask=Ask.SIGNAL))
        assert answer.run is not None
        key = f"tenure:{{{namespace}:0}}:{what}"
        with redis.Redis.from_url(redis_url) as client:
            kind = client.type(key)
            client.delete(key)
            client.rpush(key, "not", "what") if kind != b"list" else client.set(key, "not what")
        refused = 0
        for change in everything(grant, answer.run):
            before = key_contents(redis_url, namespace)
            try:
                found = await store.commit(change)
            except StoreUnsafe:
                refused += 1
            else:
                if found.verdict is Verdict.LANDED:
                    after = key_contents(redis_url, namespace)
                    assert after.get(key) == before.get(key), "it had no business with that key"
                    await put_back(redis_url, namespace, before)
                    continue
                assert found.why is Why.CORRUPT, (change, found)
                refused += 1
            assert key_contents(redis_url, namespace) == before, change
        assert refused > 0


async def put_back(url: str, namespace: str, contents: dict[str, bytes | None]) -> None:
    with redis.Redis.from_url(url) as client:
        client.delete(*client.scan_iter(match=f"tenure:{{{namespace}:0}}:*"))
        for name, data in contents.items():
            client.restore(name, 0, data or b"")


@pytest.mark.parametrize(
    "field, value",
    [
        *(("token", "many"), ("token", str(2**54)), ("version", ""), ("last_seq", "1e3"), ("lease_until_ms", "soon")),
        *(("requests", "[1"), ("requests", '{"a":1}'), ("wants", "x"), ("grants", '["1"]'), ("due_ms", "1.5")),
        *(("id", "r2"), ("touch", "-"), ("inbox_seq", "0x1"), ("outcome", "no")),
    ],
)
async def test_i26_a_record_that_cannot_be_read_is_refused_as_corrupt_and_stays(
    redis_url: str, namespace: str, field: str, value: str
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        await store._opened().asked(pack("HSET", store._keys.run("r1"), field, value))
        before = key_contents(redis_url, namespace)
        told = []
        for change in everything(grant, run)[2:]:
            if change.run == "r1":
                answer = await store.commit(change)
                told.append(answer.why)
                if answer.verdict is Verdict.LANDED:  # a renewal or a plain commit does not read every field
                    await put_back(redis_url, namespace, before)
        assert told.count(Why.CORRUPT) >= 7, told
        assert key_contents(redis_url, namespace) == before
        page = await store.find()
        if field != "id":
            with contextlib.suppress(CorruptRecord):
                assert await store.load("r1") is not None
        assert page.corrupt in ((), ("r1",))


@pytest.mark.parametrize("harm", ["RPOP", "RPUSH"])
async def test_i16_a_journal_that_is_longer_or_shorter_than_its_record_takes_no_commit(
    redis_url: str, namespace: str, harm: str
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        key = store._keys.log("r1")
        await store._opened().asked(pack("RPOP", key) if harm == "RPOP" else pack("RPUSH", key, "more"))
        before = key_contents(redis_url, namespace)
        answer = await store.commit(build.commit(grant, 2, run.head, []))
        assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.CORRUPT)
        assert key_contents(redis_url, namespace) == before
