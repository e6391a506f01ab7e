"""What is looked at before a Redis store is used, and how it says what to change."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis

import tenure
from conftest import StartRedis
from stores.redis_kit import claim, grant_of, linked, opened, refused
from tenure.clock import ManualClock
from tenure.core import build, journal
from tenure.core.run import Ask, Delete, End, How, Renew, Repair, Verdict
from tenure.errors import InvalidUrl, NotAllowed, StoreTooNew, StoreUnavailable, StoreUnsafe
from tenure.store import Beat, Durability, Refused
from tenure.stores import open_store
from tenure.stores._redis_line import pack
from tenure.testing.servers import REDIS7, REDIS8, REDIS_KINDS, VALKEY9, ServerKind

ACL = Path(tenure.__file__).parents[2] / "deploy" / "redis-users.acl"

each_kind = pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)


async def test_i19_a_policy_that_evicts_any_key_is_refused_unless_allowed(start_redis: StartRedis) -> None:
    server = start_redis(REDIS7, maxmemory_policy="allkeys-lru")
    assert "CONFIG SET maxmemory-policy noeviction" in await refused(server.url)
    async with opened(server.url, allow=("eviction",)) as store:
        assert await store.load("r1") is None


@each_kind
async def test_i19_a_replica_is_refused_unless_allowed_and_then_takes_no_write(
    start_redis: StartRedis, kind: ServerKind
) -> None:
    primary = start_redis(kind)
    async with opened(primary.url) as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        replica = start_redis(kind, replicaof=f"127.0.0.1 {primary.port}")
        await linked(replica.url)
        assert "primary" in await refused(replica.url)
        async with opened(replica.url, allow=("replica",)) as reader:
            assert await reader.load("r1") == await store.load("r1")
            with pytest.raises(StoreUnsafe, match="replica"):
                await reader.commit(claim("r1"))


async def test_a_newer_layout_is_refused_by_name(redis7_url: str, namespace: str) -> None:
    async with opened(redis7_url, namespace=namespace) as store:
        await store._opened().asked(pack("HSET", store._keys.meta, "schema", 99))
    assert "schema 99" in await refused(redis7_url, StoreTooNew, namespace=namespace)


async def test_a_damaged_meta_is_never_taken_for_an_empty_store(redis7_url: str, namespace: str) -> None:
    async with opened(redis7_url, namespace=namespace) as store:
        await store._opened().asked(pack("HSET", store._keys.meta, "schema", "many"))
    assert "meta" in await refused(redis7_url, StoreUnsafe, namespace=namespace)


async def test_a_store_that_was_emptied_under_us_goes_on_with_another_epoch(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        await store.raise_ttl(9_000)
        await store.commit(build.create(run="r1", kind="k", value=1))
        before = await store.facts()
        with redis.Redis.from_url(redis_url) as client:
            client.delete(*client.scan_iter(match=f"tenure:{{{namespace}:0}}:*"))
        answers = await store.commit_many([claim("r1"), build.create(run="r2", kind="k", value=1)])
        assert [getattr(answer, "verdict", None) for answer in answers] == [Verdict.REFUSED, Verdict.LANDED]
        after = await store.facts()
        assert after.epoch != before.epoch
        assert after.max_ttl_ms == 9_000


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hush@localhost:1/zero",
        "redis://localhost:port",
        "redis://localhost?tiemout=3",
        "redis://:hush@localhost?timeout=0",
        "redis://localhost?replicas=0",
        "redis://localhost?history=maybe",
        "unix://",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_before_any_connection(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


def test_a_clock_of_its_own_is_for_tests_and_has_to_be_asked_for() -> None:
    with pytest.raises(NotAllowed, match="testing=on"):
        open_store("redis://localhost", clock=ManualClock())


async def test_no_password_is_shown_anywhere(start_redis: StartRedis) -> None:
    server = start_redis(REDIS7)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "hush-hush")
    url = server.url.replace("redis://", "redis://:hush-hush@")
    async with opened(url) as store:
        assert "hush" not in store.url + repr(store) + repr(store._wish)
        assert store.url == server.url
    wrong = server.url.replace("redis://", "redis://:wrong-word@")
    said = await refused(wrong)
    assert "wrong-word" not in said
    assert "password" in said
    assert "hush" not in await refused(url.replace(str(server.port), "1"), StoreUnavailable)


@each_kind
async def test_the_store_speaks_over_a_unix_socket(start_redis: StartRedis, kind: ServerKind) -> None:
    server = start_redis(kind, unix=True)
    async with opened(server.url) as store:
        assert (await store.commit(build.create(run="r1", kind="k", value=1))).verdict is Verdict.LANDED
        assert store.url == server.url


async def test_namespaces_and_databases_are_apart(redis7_url: str, namespace: str) -> None:
    async with (
        opened(f"{redis7_url}/1", namespace=namespace) as one,
        opened(redis7_url.replace("redis://", "valkey://") + "?db=2", namespace=namespace) as two,
    ):
        await one.commit(build.create(run="r1", kind="k", value=1))
        assert await one.load("r1") is not None
        assert await two.load("r1") is None


async def test_a_database_that_the_server_has_not_is_a_url_to_correct(redis7_url: str, namespace: str) -> None:
    assert "no such database" in await refused(f"{redis7_url}/9999", InvalidUrl, namespace=namespace)


async def test_another_loop_and_a_forked_child_are_told_to_open_their_own(redis7_url: str, namespace: str) -> None:
    async with opened(redis7_url, namespace=namespace) as store:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(store.load("r1"))
            except NotAllowed as error:
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "beside" in str(caught[0])
        if (pid := os.fork()) == 0:
            try:
                store._opened()
            except NotAllowed:
                os._exit(7)
            os._exit(1)
        ended = await anyio.to_thread.run_sync(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(ended[1]) == 7
        assert await store.load("r1") is None, "the parent's connection is untouched"


def acl_line() -> list[str]:
    (line,) = [line for line in ACL.read_text().splitlines() if line.startswith("user tenure ")]
    return line.replace(">PASSWORD", ">word").split()[1:]


@each_kind
async def test_the_acl_file_is_enough_and_not_too_much(
    start_redis: StartRedis, kind: ServerKind, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    text = ACL.read_text().replace("PASSWORD", "word")
    assert text.startswith("user default off\n")
    if kind is REDIS7:
        text = text.replace(" +waitaof", "")  # which came with 7.2
    (tmp_path / "users.acl").write_text(text.replace("user default off", "user default on nopass ~* &* +@all"))
    server = start_redis(kind, appendonly="yes", aclfile=f'"{tmp_path}/users.acl"')
    url = server.url.replace("redis://", "redis://tenure:word@")
    with caplog.at_level(logging.INFO, logger="tenure.stores.redis"):
        async with opened(url) as store, store.beside() as other:
            assert store.level is Durability.LOCAL
            await use_everything(store, other)
    assert "could not be read" in caplog.text
    assert "+config|get" in await refused(url, durability="disk")
    with redis.Redis.from_url(url) as client:
        for command in (
            "KEYS *",
            "FLUSHALL",
            "CONFIG GET *",
            "SCRIPT FLUSH",
            "SCAN 0",
            "GET elsewhere",
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("EVAL", "return redis.call('SET', 'elsewhere', 1)", "0")


async def use_everything(store: Any, other: Any) -> None:
    await store.raise_ttl(60_000)
    await store.commit(build.create(run="r1", kind="k", value="v" * 70_000))
    answer = await store.commit(claim("r1"))
    grant, run = grant_of(answer.run), answer.run
    await store.commit(build.post(run="r1", item="i", name="go", ask=Ask.SIGNAL))
    events = [journal.event(journal.CHECKPOINT, value="w" * 70_000)]
    blobs = [b"small", b"large" * 20_000]
    change = build.commit(grant, 2, run.head, events, step=1, consume=["i"], inbox_seq=1, blobs=blobs)
    assert (await store.commit(change)).verdict is Verdict.LANDED
    assert (await store.commit(change)).verdict is Verdict.ALREADY
    assert (await store.commit(Renew(grant=grant))).verdict is Verdict.LANDED
    await store.commit(Repair(run="r1", stray="r1 1 0 k"))
    assert [row.body for row in await store.tail("r1", after=1)] == [change.row.body]
    for digest, data in change.blobs.items():
        assert await store.blob("r1", digest) == data
    assert [item.consumed for item in await store.inbox("r1")] == [True]
    assert [found.id for found in (await store.find()).runs] == ["r1"]
    assert (await store.kinds(), len((await store.entries("k"))[0]), await store.due(["k"])) == (["k"], 1, [])
    await store.beat(Beat(name="w", host="h", pid=1, kinds=("k",)), ttl_ms=1)
    await store.tell_refused(Refused(run="r1", owner="w", token=1, what="commit", why="lost"))
    assert [line.run for line in await store.refused()] == ["r1"]
    await anyio.sleep(0.005)
    assert await store.beats() == []
    await other.wake("topic")
    with anyio.fail_after(5):
        assert await store.woken(["topic"], timeout=5)
    assert (await store.commit(End(run="r1", how=How.CANCEL))).verdict is Verdict.LANDED
    assert (await store.commit(Delete(run="r1"))).verdict is Verdict.LANDED
    shard = store._opened().of("r1")
    left = await shard.asked(pack("EXISTS", *(shard.keys.large("r1", name) for name in ("", "1", "2"))))
    assert left == [0]


async def test_without_info_a_store_is_refused_unless_the_history_is_off_by_name(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(REDIS8)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "tenure", *[right for right in acl_line()[1:] if right != "+info"])
    url = server.url.replace("redis://", "redis://tenure:word@")
    assert "history=off" in await refused(url)
    async with opened(f"{url}?history=off", durability="memory", namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        answer = await store.commit(claim("r1"))
        assert answer.run is not None
        assert answer.run.epoch.startswith("off.")
        assert (await store.commit(Renew(grant=grant_of(answer.run)))).verdict is Verdict.LANDED


@each_kind
@pytest.mark.parametrize("right", ["hset", "zadd", "sadd", "persist", "unlink", "rpush", "zrem", "lindex"])
async def test_a_script_that_would_stop_half_way_is_found_out_at_the_start(
    start_redis: StartRedis, kind: ServerKind, right: str
) -> None:
    server = start_redis(kind)
    rights = [one for one in acl_line()[1:] if one not in (f"+{right}", "+waitaof")]
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "tenure", *rights)
    said = await refused(server.url.replace("redis://", "redis://tenure:word@"))
    assert right in said.lower()
    assert "redis-users.acl" in said


async def test_a_missing_right_to_read_names_itself(start_redis: StartRedis) -> None:
    server = start_redis(VALKEY9)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "tenure", *[r for r in acl_line()[1:] if r != "+lrange"])
    async with opened(server.url.replace("redis://", "redis://tenure:word@")) as store:
        with pytest.raises(StoreUnsafe, match="redis-users"):
            await store.tail("r1")
