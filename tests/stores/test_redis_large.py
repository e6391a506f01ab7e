"""Large payloads on Redis: laid down aside, renamed by the script that names them, gone with their run."""

from __future__ import annotations

import pytest
import redis

from stores.redis_kit import begun, key_contents, opened, step
from tenure.core import build, journal
from tenure.core.run import (
    Delete,
    End,
    How,
    Verdict,
    Why,
)
from tenure.core.verify import verify_run
from tenure.errors import CorruptRecord, TenureError
from tenure.stores._redis_line import pack


@pytest.mark.parametrize("blobs", [[], [b"a" * 100_000, b"b" * 1_000_000, b"c"]], ids=["a body alone", "with blobs"])
async def test_large_payloads_keep_no_expiry_and_nothing_of_a_live_run_has_one(
    redis_url: str, namespace: str, blobs: list[bytes]
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        change = build.commit(grant, 2, run.head, [journal.event("x", v="y" * 300_000)], blobs=blobs)
        assert (await store.commit(change)).verdict is Verdict.LANDED
        again = build.commit(grant, 3, change.row.digest, [], blobs=blobs)  # the same blobs, named again
        assert (await store.commit(again)).verdict is Verdict.LANDED
        assert (await store.commit(change)).verdict is Verdict.ALREADY
        for digest, data in change.blobs.items():
            assert await store.blob("r1", digest) == data
        found = await store.load("r1")
        assert found is not None
        assert verify_run(found, await store.tail("r1")).ok
        with redis.Redis.from_url(redis_url) as client:
            names = [name for name in client.scan_iter(match=f"tenure:{{{namespace}:0}}:*") if b":stage:" not in name]
            assert len([name for name in names if b":big:r1:" in name]) == 1 + len(blobs[:2])
            assert {client.ttl(name) for name in names} == {-1}
            assert all(0 < client.ttl(name) <= 300 for name in client.scan_iter(match=f"*{namespace}:0}}:stage:*"))
        await store.commit(End(run="r1", how=How.CANCEL))
        assert (await store.commit(Delete(run="r1"))).verdict is Verdict.LANDED
        assert [name for name in key_contents(redis_url, namespace) if "r1" in name] == []


@pytest.mark.parametrize("crashes", [0, 1])
async def test_a_step_with_a_large_body_is_judged_at_a_glance_and_after_a_crash_by_the_law(
    redis_url: str, namespace: str, crashes: int
) -> None:
    def read_whole(client: redis.Redis) -> int:
        return int(client.info("commandstats").get("cmdstat_hgetall", {}).get("calls", 0))

    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        await store._opened().asked(pack("HSET", store._keys.run("r1"), "crashes", str(crashes)))
        change = step(grant, run, "y" * 300_000)
        with redis.Redis.from_url(redis_url) as client:
            before = read_whole(client)
            assert (await store.commit(change)).verdict is Verdict.LANDED
            assert read_whole(client) - before == crashes
        found = await store.load("r1")
        assert found is not None
        assert (found.step, found.crashes) == (1, 0)
        assert verify_run(found, rows := await store.tail("r1")).ok
        assert rows[-1].body == change.row.body


async def test_a_payload_that_is_gone_when_the_commit_comes_is_refused_by_name(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        before = key_contents(redis_url, namespace)
        change = build.commit(grant, 2, run.head, [journal.event("x", v="y" * 300_000)])
        with monkeypatch.context() as patch:
            patch.setattr("tenure.stores._redis_script.STAGED_SECONDS", -1, raising=True)
            with pytest.raises(TenureError):
                await store.commit(change)
        calls = list(store._opened().shards[0].stubs.calls([(0, change)]))
        calls[0].staged.clear()
        ((_, reply, _),) = await store._opened().shards[0]._call(calls)
        assert reply[:2] == [b"refused", b"staged"]
        assert key_contents(redis_url, namespace) == before
        assert (await store.commit(change)).verdict is Verdict.LANDED


@pytest.mark.parametrize("where", ["its place is taken", "the list of names is a text"])
async def test_a_large_body_that_has_no_place_is_refused_and_what_is_there_stays(
    redis_url: str, namespace: str, where: str
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        key = store._keys.large("r1", *(["2"] if where == "its place is taken" else []))
        await store._opened().asked(pack("SET", key, "there"))
        answer = await store.commit(build.commit(grant, 2, run.head, [journal.event("x", v="y" * 300_000)]))
        assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.CORRUPT)
        assert await store._opened().asked(pack("GET", key)) == [b"there"]
        assert len(await store.tail("r1")) == 1


async def test_a_large_body_that_was_lost_is_corrupt_and_never_an_empty_row(redis7_url: str, namespace: str) -> None:
    async with opened(redis7_url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value="v" * 100_000))
        await store._opened().asked(pack("DEL", store._keys.large("r1", "1")))
        with pytest.raises(CorruptRecord, match="commit 1"):
            await store.tail("r1")
