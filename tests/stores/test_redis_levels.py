"""The durability levels: which a server offers, which is refused, and when an outcome is unknown."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis

from conftest import StartRedis
from stores.redis_kit import claim, grant_of, linked, opened, refused
from tenure.core import build
from tenure.core.run import Renew, Status, Verdict
from tenure.errors import OutcomeUnknown
from tenure.store import Diagnosable, Durability
from tenure.testing.servers import REDIS7, REDIS8, REDIS_KINDS, VALKEY9, ServerKind

each_kind = pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)


@each_kind
@pytest.mark.parametrize(
    "options, offered",
    [
        ({}, Durability.MEMORY),
        ({"save": "3600 1"}, Durability.MEMORY),
        ({"appendonly": "yes", "appendfsync": "everysec"}, Durability.LOCAL),
        ({"appendonly": "yes", "appendfsync": "always"}, Durability.DISK),
    ],
    ids=["nothing", "snapshots", "everysec", "always"],
)
async def test_i09_an_unset_level_is_the_strongest_that_the_server_offers(
    start_redis: StartRedis,
    kind: ServerKind,
    options: dict[str, str],
    offered: Durability,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_redis(kind, **options)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, logger="tenure.stores.redis"):
        async with opened(server.url) as store:
            assert store.level is offered
            assert store.beside().level is Durability.MEMORY
            assert isinstance(store, Diagnosable)
            findings = {finding.name: finding for finding in await store.diagnose()}
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert bool(warned) == (offered is Durability.MEMORY)
    assert offered.value in caplog.text
    assert findings["durability"].text == offered.value
    assert (findings["durability"].fix != "") == (offered is Durability.MEMORY)


@pytest.mark.parametrize(
    "level, options, line",
    [
        ("local", {}, "CONFIG SET appendonly yes"),
        ("disk", {"appendonly": "yes"}, "CONFIG SET appendfsync always"),
        ("replicated", {"appendonly": "yes"}, "0 of 1 replicas"),
        ("replicated-disk", {}, "CONFIG SET appendonly yes"),
    ],
)
async def test_i19_a_named_level_that_is_not_reached_is_refused_with_the_line_that_reaches_it(
    start_redis: StartRedis, level: str, options: dict[str, str], line: str
) -> None:
    server = start_redis(REDIS8, **options)  # type: ignore[arg-type]
    assert line in await refused(server.url, durability=level)


async def test_i09_replicas_that_do_not_acknowledge_leave_the_outcome_unknown(
    start_redis: StartRedis, namespace: str
) -> None:
    primary = start_redis(REDIS8, appendonly="yes")
    replica = start_redis(REDIS8, appendonly="yes", replicaof=f"127.0.0.1 {primary.port}")
    await linked(replica.url)
    url = f"{primary.url}?timeout=1"
    async with opened(url, namespace=namespace, durability="replicated", allow=("min-replicas",)) as store:
        assert store.level is Durability.REPLICATED
        await store.raise_ttl(60_000)
        assert not (await store.facts()).lossy
        answers = await store.commit_many([build.create(run=f"r{n}", kind="k", value=n) for n in range(40)])
        assert {getattr(answer, "verdict", None) for answer in answers} == {Verdict.LANDED}
        answer = await store.commit(claim("r1"))
        assert answer.run is not None
        grant, run = grant_of(answer.run), answer.run
        with redis.Redis.from_url(replica.url) as client:
            assert client.exists(store._keys.run("r1")) == 1
        replica.kill()
        change = build.commit(grant, 2, run.head, [], status=Status.COMPLETED)
        reads = asyncio.create_task(store.load("r2"))
        unknown = await asyncio.gather(
            store.commit(change), *(store.commit(claim(f"r{n}")) for n in range(2, 12)), return_exceptions=True
        )
        assert {type(answer) for answer in unknown} == {OutcomeUnknown}
        assert (await reads) is not None
        assert (await store.commit(Renew(grant=grant))).verdict is Verdict.REFUSED, "renewals never wait"
        assert (await store.commit(claim("r1"))).verdict is Verdict.REFUSED, "nor does a refusal"
        replica.start()
        await linked(replica.url)
        again = await store.commit(change)
        assert again.verdict is Verdict.ALREADY


async def test_i09_replicated_disk_waits_for_the_replica_s_log(start_redis: StartRedis, namespace: str) -> None:
    primary = start_redis(VALKEY9, appendonly="yes", appendfsync="always", min_replicas_to_write=1)
    replica = start_redis(VALKEY9, appendonly="yes", appendfsync="always", replicaof=f"127.0.0.1 {primary.port}")
    await linked(replica.url)
    async with opened(f"{primary.url}?timeout=5", namespace=namespace, durability="replicated-disk") as store:
        answer = await store.commit(build.create(run="r1", kind="k", value=1))
        assert answer.verdict is Verdict.LANDED
    old = start_redis(REDIS7, appendonly="yes")
    with redis.Redis.from_url(old.url) as client:
        second = start_redis(REDIS7, appendonly="yes", replicaof=f"127.0.0.1 {old.port}")
        await linked(second.url)
        assert client.ping()
    assert "7.2" in await refused(old.url, durability="replicated-disk")
