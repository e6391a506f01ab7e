"""Sentinels name the primary: a store follows a failover, and says by name what keeps it from finding anybody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest
import redis

from conftest import StartRedis
from stores.redis_kit import Proxy, begun, grant_of, opened, refused, step, until
from tenure.core import build
from tenure.core.run import Answer, Change, Reattach, Verdict
from tenure.errors import InvalidUrl, OutcomeUnknown, StoreUnavailable, StoreUnsafe
from tenure.store import Durability
from tenure.stores import open_store
from tenure.stores.redis import RedisStore
from tenure.testing.server_sets import Sentinel, SentinelSet, asked
from tenure.testing.servers import REDIS8, REDIS_KINDS, VALKEY9, RedisServer, ServerKind

each_kind = pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)

T = TypeVar("T")

LOG = {"appendonly": "yes", "appendfsync": "always"}


def roles(servers: SentinelSet) -> tuple[RedisServer, RedisServer]:
    """Return the primary and its one replica; a machine that stood still may have made them change places."""
    primary = servers.primary()
    (replica,) = [server for server in servers.servers if server is not primary]
    return primary, replica


@each_kind
async def test_i10_a_store_follows_the_primary_and_the_holder_goes_on_after_a_failover(
    kind: ServerKind, namespace: str
) -> None:
    with SentinelSet(kind, replicas=1, options=LOG) as servers:
        async with opened(f"{servers.url}?timeout=2", namespace=namespace) as store:
            await store.raise_ttl(60_000)
            grant, run = await begun(store)
            primary, replica = roles(servers)
            await until(lambda: int(asked(replica, "EXISTS", store._keys.run("r1"))) == 1)
            primary.kill()
            flying = step(grant, run)
            answer = await answered(store, flying)
            assert answer.verdict is Verdict.HISTORY
            again = Reattach(grant=grant, nonce="again", seq=1, head=run.head, flying=flying.row.digest)
            back = await store.commit(again)
            assert back.run is not None
            assert (await store.commit(step(grant_of(back.run), back.run))).verdict is Verdict.LANDED
            assert servers.primary() is replica


async def test_a_failover_that_an_operator_asks_for_is_followed_by_asking_again(namespace: str) -> None:
    with SentinelSet(VALKEY9, replicas=1, options=LOG) as servers:
        async with opened(servers.url, namespace=namespace) as store:
            await begun(store)
            before = servers.primary()
            await until(lambda: _accepted(servers))
            with anyio.fail_after(120):
                number = 0
                while servers.primary() is before or asked(before, "INFO", "replication")["role"] == "master":
                    number += 1
                    await _landed(store, f"n{number}")
                    await anyio.sleep(0.05)
                await _landed(store, "after")
            assert asked(servers.primary(), "EXISTS", store._keys.run("after")) == 1
            assert (await patiently(store.load, "r1")) is not None


def _accepted(servers: SentinelSet) -> bool:
    try:
        return bool(asked(servers.sentinels[0], "SENTINEL", "FAILOVER", servers.service) == "OK")
    except redis.ResponseError:  # it does not know the replica well enough yet
        return False


async def answered(store: RedisStore, change: Change) -> Answer:
    """Ask until the failover is over; the same request each time."""
    with anyio.fail_after(150):
        while True:
            try:
                return await store.commit(change)
            except (StoreUnavailable, OutcomeUnknown):
                await anyio.sleep(0.05)


async def patiently(read: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Return what a read comes to, which has a road of its own and may find the former primary once more."""
    with anyio.fail_after(60):
        while True:
            try:
                return await read(*args)
            except StoreUnavailable:
                await anyio.sleep(0.1)


async def _landed(store: RedisStore, run_id: str) -> None:
    assert (await answered(store, build.create(run=run_id, kind="k", value=1))).ok


async def test_i19_a_failover_to_a_server_that_is_set_weaker_stops_the_store(namespace: str) -> None:
    with SentinelSet(VALKEY9, replicas=1, options=LOG) as servers:
        async with opened(servers.url, namespace=namespace, durability="disk") as store:
            await begun(store)
            primary, replica = roles(servers)
            asked(replica, "CONFIG", "SET", "appendfsync", "everysec")
            primary.kill()
            with pytest.raises(StoreUnsafe, match="CONFIG SET appendfsync always"):
                await _landed(store, "r2")
            asked(replica, "CONFIG", "SET", "appendfsync", "always")
            await _landed(store, "r2")


async def test_unreachable_sentinels_are_named_and_one_that_answers_is_enough(
    start_redis: StartRedis, namespace: str
) -> None:
    said = await refused("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster", StoreUnavailable)
    assert "127.0.0.1:1" in said
    assert "127.0.0.1:2" in said
    with SentinelSet(REDIS8, replicas=1, sentinels=1) as servers:
        (sentinel,) = servers.sentinels
        silent = start_redis(VALKEY9)
        silent.freeze()
        url = f"redis+sentinel://127.0.0.1:{silent.port},127.0.0.1:1,127.0.0.1:{sentinel.port}/{servers.service}"
        async with opened(url, namespace=namespace) as store:
            assert store.url == url
            assert (await store.commit(build.create(run="r1", kind="k", value=1))).verdict is Verdict.LANDED
        silent.thaw()
        assert "correct the service" in await refused(servers.url.replace(servers.service, "nobody"))
        asked(sentinel, "ACL", "SETUSER", "default", "resetpass", ">hush-hush")
        assert "sentinel_password" in await refused(servers.url)
        async with opened(f"{servers.url}?sentinel_password=hush-hush", namespace=namespace) as store:
            assert "hush" not in repr(store._wish) + store.url
            assert await patiently(store.load, "r1") is not None
        asked_for = f"{servers.url}?sentinel_password=wrong-word"
        assert "wrong-word" not in await refused(asked_for)


async def test_the_latest_configuration_is_believed(namespace: str) -> None:
    with SentinelSet(VALKEY9, replicas=1, options=LOG) as servers:
        old, new = roles(servers)
        old.kill()
        await until(lambda: servers.primary() is new)
        await until(lambda: asked(new, "INFO", "replication")["role"] == "master")
        with Sentinel(servers.program, options={"sentinel monitor": f"runs 127.0.0.1 {old.port} 9"}) as behind:
            await refused(f"redis+sentinel://127.0.0.1:{behind.port}/runs", StoreUnavailable)
            both = f"redis+sentinel://127.0.0.1:{behind.port},127.0.0.1:{servers.sentinels[0].port}/runs"
            async with opened(both, namespace=namespace) as store:
                assert (await store.commit(build.create(run="r1", kind="k", value=1))).verdict is Verdict.LANDED


async def test_i09_replicated_behind_sentinels_has_every_acknowledged_change_after_a_failover(namespace: str) -> None:
    with SentinelSet(REDIS8, replicas=2, options={**LOG, "min-replicas-to-write": 1}) as servers:
        async with opened(f"{servers.url}?replicas=1&timeout=2", namespace=namespace, durability="replicated") as store:
            assert store.level is Durability.REPLICATED
            for number in range(20):
                await _landed(store, f"r{number}")
            servers.primary().kill()
            with anyio.fail_after(120):
                await _landed(store, "after")
            found = (await patiently(store.find)).runs
            assert {run.id for run in found} == {f"r{number}" for number in range(20)} | {"after"}


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a,b",
        "redis+sentinel://a:port/s",
        "redis://a,b",
        "redis://a?sentinel_password=hush",
        "redis+sentinel://a/s/zero",
        "redis+sentinel://a/s?ssl_ca_certs=/x",
    ],
)
def test_a_sentinel_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


async def test_b098_a_replica_that_lags_never_says_that_a_run_is_not_there(
    start_redis: StartRedis, namespace: str
) -> None:
    primary = start_redis(VALKEY9, appendonly="yes")
    async with Proxy(primary.url) as link, opened(primary.url, namespace=namespace) as store:
        replica = start_redis(VALKEY9, replicaof=f"127.0.0.1 {link.url.rpartition(':')[2]}")
        await until(lambda: asked(replica, "INFO", "replication").get("master_link_status") == "up")
        await begun(store, "r1")
        await until(lambda: asked(replica, "EXISTS", store._keys.run("r1")) == 1)
        async with opened(replica.url, namespace=namespace, allow=("replica",)) as late:
            link.refuse = True
            link.cut()
            await begun(store, "r2")
            assert (await late.load("r1")) is not None
            with pytest.raises(StoreUnavailable, match="may lag"):
                await late.load("r2")
            with pytest.raises(StoreUnsafe, match="replica"):
                await late.commit(step(*await begun(store, "r3")))
    with redis.Redis.from_url(replica.url) as client:
        assert client.exists(store._keys.run("r2")) == 0
