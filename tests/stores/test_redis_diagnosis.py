"""What `tenure doctor` says of a Redis server: each check is shown on a server that is really set wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import redis

from conftest import StartRedis
from stores.redis_kit import Proxy, begun, linked, opened, refused
from tenure.cli.doctor import of_store
from tenure.errors import OutcomeUnknown, StoreUnavailable, StoreUnsafe
from tenure.store import Finding, Grade
from tenure.stores.redis import RedisStore
from tenure.testing.server_sets import asked, until
from tenure.testing.servers import REDIS7, REDIS8, REDIS_KINDS, VALKEY9, RedisServer, ServerKind

each_kind = pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)

LOG = {"appendonly": "yes", "appendfsync": "always"}


async def findings(store: RedisStore) -> dict[str, Finding]:
    return {finding.name: finding for finding in await store.diagnose()}


@each_kind
async def test_i19_a_server_that_is_set_well_has_nothing_to_mend(start_redis: StartRedis, kind: ServerKind) -> None:
    server = start_redis(kind, **LOG)  # type: ignore[arg-type]
    async with opened(server.url, durability="disk") as store:
        found = await findings(store)
        assert {finding.level for finding in found.values()} == {Grade.OK}
        assert "power loss: nothing" in found["losses"].text
        whole = {finding.name for finding in await of_store(store, ttl_ms=30_000, trips=3)}
        assert whole >= {
            "server",
            "durability",
            "losses",
            "append-only file",
            "eviction",
            "round trip",
            "clock",
            "history",
        }


async def begun_in_the_end(store: RedisStore, run: str) -> None:
    """Begin a run over a connection that may have been cut; how often is not asked."""
    with anyio.fail_after(30):
        while True:
            try:
                await begun(store, run)
            except (StoreUnavailable, OutcomeUnknown):
                await anyio.sleep(0.01)
            else:
                return


WRONG: dict[str, tuple[dict[str, str], str, Grade, str]] = {
    "no log": ({"appendonly": "no"}, "durability", Grade.WARNING, "CONFIG SET appendonly yes"),
    "never flushed": (LOG | {"appendfsync": "no"}, "append-only file", Grade.WARNING, "appendfsync everysec"),
    "config is denied": (LOG | {"rename-command": 'CONFIG ""'}, "append-only file", Grade.WARNING, "+config|get"),
    "evicts": (LOG | {"maxmemory-policy": "allkeys-lfu"}, "eviction", Grade.PROBLEM, "noeviction"),
    "evicts at random": (LOG | {"maxmemory-policy": "allkeys-random"}, "eviction", Grade.PROBLEM, "noeviction"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_i19_what_is_set_wrong_is_found_with_the_line_that_mends_it(start_redis: StartRedis, wrong: str) -> None:
    options, name, grade, fix = WRONG[wrong]
    server = start_redis(REDIS7, **{key.replace("-", "_"): value for key, value in options.items()})  # type: ignore[arg-type]
    async with opened(server.url, allow=("eviction",)) as store:
        finding = (await findings(store))[name]
        assert finding.level is grade
        assert fix in finding.fix


@pytest.mark.parametrize(
    "options, level, lost",
    [
        ({}, None, "when the server ends: everything"),
        ({"appendonly": "yes"}, None, "power loss: about the last second"),
        ({"appendonly": "yes", "appendfsync": "no"}, None, "half a minute or more"),
        (LOG, "disk", "power loss: nothing; when a replica is promoted: what no replica had yet (no replica"),
    ],
)
async def test_i09_what_would_be_lost_in_which_event_is_said(
    start_redis: StartRedis, options: dict[str, str], level: str | None, lost: str
) -> None:
    server = start_redis(VALKEY9, **options)  # type: ignore[arg-type]
    async with opened(server.url, durability=level) as store:
        assert lost in (await findings(store))["losses"].text


@each_kind
async def test_memory_that_is_nearly_or_quite_full_is_found_and_a_full_one_refuses_whole(
    start_redis: StartRedis, kind: ServerKind, namespace: str
) -> None:
    server = start_redis(kind, **LOG)  # type: ignore[arg-type]
    async with opened(server.url, namespace=namespace) as store:
        await begun(store)
        assert "what the host has" in (await findings(store))["memory"].text
        used = int(asked(server, "INFO", "memory")["used_memory"])
        asked(server, "CONFIG", "SET", "maxmemory", used + used // 10)
        assert (await findings(store))["memory"].level is Grade.WARNING
        asked(server, "CONFIG", "SET", "maxmemory", used // 2)
        full = (await findings(store))["memory"]
        assert (full.level, "maxmemory higher" in full.fix) == (Grade.PROBLEM, True)
        before = await store.raw("r1")
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await begun(store, "r2")
        assert await store.raw("r1") == before
        async with opened(server.url, namespace=namespace) as full_store:
            assert await full_store.raw("r2") == {}
        asked(server, "CONFIG", "SET", "maxmemory", 0)
        await begun(store, "r2")


def replicated(start_redis: StartRedis, kind: ServerKind, count: int, **options: str | int) -> list[RedisServer]:
    primary = start_redis(kind, **LOG, **options)  # type: ignore[arg-type]
    return [
        primary,
        *(start_redis(kind, replicaof=f"127.0.0.1 {primary.port}", **LOG) for _ in range(count)),  # type: ignore[arg-type]
    ]


@each_kind
async def test_i09_replicated_wants_min_replicas_and_stops_at_once_where_they_are_missing(
    start_redis: StartRedis, kind: ServerKind, namespace: str
) -> None:
    primary, replica = replicated(start_redis, kind, 1)
    await linked(replica.url)
    said = await refused(primary.url, durability="replicated", namespace=namespace)
    assert "CONFIG SET min-replicas-to-write 1" in said
    async with opened(primary.url, durability="replicated", allow=("min-replicas",), namespace=namespace) as store:
        found = (await findings(store))["replicas"]
        assert (found.level, "min-replicas-to-write 1" in found.fix) == (Grade.WARNING, True)
        asked(primary, "CONFIG", "SET", "min-replicas-to-write", 1)
        assert (await findings(store))["replicas"].level is Grade.OK
    # A replica that follows counts for writes from its first acknowledgement on.
    await until_async(lambda: asked(primary, "INFO", "replication").get("min_slaves_good_slaves") == "1")
    async with opened(f"{primary.url}?timeout=2", durability="replicated", namespace=namespace) as store:
        await begun(store)
        before = await store.raw("r1")
        replica.kill()
        await until_async(lambda: asked(primary, "INFO", "replication")["connected_slaves"] == "0")
        with pytest.raises(StoreUnavailable, match="min-replicas-to-write"):
            await begun(store, "r2")
        assert (await store.raw("r1"), await store.raw("r2")) == (before, {})
        found = (await findings(store))["replicas"]
        assert (found.level, "REPLICAOF" in found.fix) == (Grade.PROBLEM, True)
        replica.start()
        await linked(replica.url)
        await begun(store, "r2")


async def until_async(true: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(until, true)


async def test_i10_fewer_acknowledgements_than_most_servers_give_no_certainty(
    start_redis: StartRedis, namespace: str
) -> None:
    primary, *replicas = replicated(start_redis, REDIS8, 3, min_replicas_to_write=1)
    for replica in replicas:
        await linked(replica.url)
    for count, certain in ((1, False), (2, True)):
        url = f"{primary.url}?replicas={count}"
        async with opened(url, durability="replicated", namespace=namespace) as store:
            found = (await findings(store))["replicas"]
            assert (found.level is Grade.OK) == certain
            assert ("?replicas=2 or more" in found.fix) != certain
            assert (await store.facts()).lossy != certain, "a stranger waits where a grant may be missing"


async def test_i09_without_config_min_replicas_is_read_from_what_info_shows(
    start_redis: StartRedis, namespace: str
) -> None:
    hidden = {"rename_command": 'CONFIG ""'}
    for count in (0, 1):
        primary, replica = replicated(start_redis, REDIS7, 1, min_replicas_to_write=count, **hidden)
        await linked(replica.url)
        if count:
            async with opened(primary.url, durability="replicated", namespace=namespace) as store:
                assert "min-replicas-to-write set" in (await findings(store))["replicas"].text
        else:
            assert "min-replicas-to-write" in await refused(primary.url, durability="replicated", namespace=namespace)
        assert "+config|get" in await refused(primary.url, durability="disk", namespace=namespace)


async def test_a_disk_that_is_full_is_named_and_work_goes_on_when_it_is_not(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(REDIS7, save="3600 1", enable_protected_configs="yes")
    async with opened(server.url, namespace=namespace, durability="memory") as store:
        await begun(store)
        before = await store.raw("r1")
        folder = str(asked(server, "CONFIG", "GET", "dir")[1])
        asked(server, "CONFIG", "SET", "dir", "/proc")  # where nothing can be written, as on a full disk
        asked(server, "BGSAVE")
        await until_async(lambda: asked(server, "INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        with pytest.raises(StoreUnavailable, match="make room"):
            await begun(store, "r2")
        assert (await store.raw("r1"), await store.raw("r2")) == (before, {})
        asked(server, "CONFIG", "SET", "dir", folder)
        asked(server, "BGSAVE")
        await until_async(lambda: asked(server, "INFO", "persistence")["rdb_last_bgsave_status"] == "ok")
        await begun(store, "r2")


@each_kind
async def test_i19_a_server_that_comes_back_set_weaker_is_refused_until_it_is_put_right(
    start_redis: StartRedis, kind: ServerKind, namespace: str
) -> None:
    server = start_redis(kind, **LOG)  # type: ignore[arg-type]
    async with opened(server.url, namespace=namespace) as store:
        await begun(store)
        asked(server, "CONFIG", "SET", "appendfsync", "everysec")
        with redis.Redis.from_url(server.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(StoreUnsafe, match="appendfsync always"):
            await begun_in_the_end(store, "r2")
        asked(server, "CONFIG", "SET", "appendfsync", "always")
        await begun(store, "r2")


async def test_a_wrong_password_is_named_and_right_again_goes_on(start_redis: StartRedis, namespace: str) -> None:
    server = start_redis(VALKEY9, **LOG)  # type: ignore[arg-type]
    asked(server, "ACL", "SETUSER", "worker", "on", ">old-word", "allkeys", "allchannels", "allcommands")
    url = server.url.replace("redis://", "redis://worker:old-word@")
    async with opened(url, namespace=namespace) as store:
        await begun(store)
        asked(server, "ACL", "SETUSER", "worker", "resetpass", ">new-word")
        asked(server, "CLIENT", "KILL", "USER", "worker")
        with pytest.raises(StoreUnsafe, match="refused the name or password") as caught:
            await begun_in_the_end(store, "r2")
        assert "word@" not in str(caught.value)
        asked(server, "ACL", "SETUSER", "worker", ">old-word")
        await begun(store, "r2")


async def test_the_settings_in_deploy_leave_nothing_to_mend_and_keep_records_small(start_redis: StartRedis) -> None:
    text = (Path(__file__).parents[2] / "deploy" / "redis.conf").read_text()
    lines = [line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")]
    for kind in REDIS_KINDS:
        server = start_redis(kind, **{name.replace("-", "_"): value for name, value in lines})  # type: ignore[arg-type]
        async with opened(server.url, durability="disk") as store:
            assert {finding.level for finding in await store.diagnose()} == {Grade.OK}
            await begun(store)
            (record,) = asked(server, "KEYS", "*:run:r1")
            assert asked(server, "OBJECT", "ENCODING", record) == "listpack"
            assert asked(server, "MEMORY", "USAGE", record) < 1200
    suggested = dict(line[2:].partition(" ")[::2] for line in text.splitlines() if line.startswith("# min-replicas"))
    assert suggested == {"min-replicas-to-write": "1", "min-replicas-max-lag": "5"}


async def test_a_server_that_is_far_and_one_whose_clock_is_off_are_found(
    start_redis: StartRedis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(VALKEY9, **LOG)  # type: ignore[arg-type]
    async with Proxy(server.url) as far, opened(far.url, namespace=namespace) as store:
        far.delay_s = 0.2
        slow = {finding.name: finding for finding in await of_store(store, ttl_ms=1_000, trips=2)}["round trip"]
        assert (slow.level, "TENURE_TTL" in slow.fix) == (Grade.PROBLEM, True)
        far.delay_s = 0
        assert {finding.name: finding for finding in await of_store(store, ttl_ms=3_600_000, trips=2)}[
            "round trip"
        ].level is Grade.OK
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        off = {finding.name: finding for finding in await of_store(store, ttl_ms=30_000, trips=1)}["clock"]
        assert (off.level, "behind" in off.text, "NTP" in off.fix) == (Grade.WARNING, True, True)
