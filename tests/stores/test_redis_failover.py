"""A replica is promoted: who held a run continues or stops, and strangers wait while a grant may be missing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import anyio
import pytest
import redis

from conftest import StartRedis
from stores.redis_kit import Proxy, begun, claim, grant_of, linked, opened, step, until
from tenure.core import build
from tenure.core.run import Claim, Reattach, Renew, Verdict, Why
from tenure.errors import StoreUnsafe
from tenure.testing.servers import REDIS_KINDS, RedisServer, ServerKind

TTL_MS = 1_500

each_kind = pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    primary: RedisServer
    replica: RedisServer
    link: Proxy

    async def promote(self, *, lossless: bool = False) -> str:
        with redis.Redis.from_url(self.replica.url) as far, redis.Redis.from_url(self.primary.url) as near:
            if lossless:
                await until(lambda: _offset(far, "slave_repl_offset") == _offset(near, "master_repl_offset"))
            far.replicaof("no", "one")
        return self.replica.url

    def lag(self) -> None:
        """From now on nothing reaches the replica."""
        self.link.refuse = True
        self.link.cut()


def _offset(client: redis.Redis, name: str) -> int:
    return int(client.info("replication")[name])


@contextlib.asynccontextmanager
async def paired(start_redis: StartRedis, kind: ServerKind) -> AsyncIterator[Pair]:
    log = {"appendonly": "yes", "appendfsync": "always"}
    primary = start_redis(kind, **log)  # type: ignore[arg-type]
    async with Proxy(primary.url) as link:
        place = f"127.0.0.1 {link.url.rpartition(':')[2]}"
        replica = start_redis(kind, replicaof=place, **log)  # type: ignore[arg-type]
        await linked(replica.url)
        yield Pair(primary=primary, replica=replica, link=link)


@each_kind
async def test_i10_after_a_promotion_that_lost_nothing_the_holder_continues_after_one_refusal(
    start_redis: StartRedis, namespace: str, kind: ServerKind
) -> None:
    async with paired(start_redis, kind) as pair:
        async with opened(pair.primary.url, namespace=namespace) as old:
            await old.raise_ttl(60_000)
            grant, run = await begun(old)
            flying = step(grant, run)
            assert not (await old.facts()).lossy
            url = await pair.promote(lossless=True)
        async with opened(url, namespace=namespace) as new:
            assert (await new.commit(flying)).verdict is Verdict.HISTORY
            assert (await new.commit(Renew(grant=grant))).verdict is Verdict.HISTORY
            facts = await new.facts()
            assert facts.lossy, "a promotion may have lost a grant even where every write is on disk"
            assert facts.epoch != grant.epoch
            assert (await new.commit(claim("r1"))).why is Why.HELD
            again = Reattach(grant=grant, nonce="again", seq=1, head=run.head, flying=flying.row.digest)
            answer = await new.commit(again)
            assert (answer.verdict, answer.run is not None and answer.run.crashes) == (Verdict.LANDED, 0)
            assert answer.run is not None
            assert answer.run.token > grant.token
            assert (await new.commit(step(grant_of(answer.run), answer.run))).verdict is Verdict.LANDED


@each_kind
async def test_b091_a_grant_that_the_promoted_replica_never_saw_lets_nobody_in_before_its_grace(
    start_redis: StartRedis, namespace: str, kind: ServerKind
) -> None:
    async with paired(start_redis, kind) as pair, opened(pair.primary.url, namespace=namespace) as old:
        await old.raise_ttl(TTL_MS)
        await old.commit(build.create(run="r1", kind="k", value=1))
        with redis.Redis.from_url(pair.replica.url) as far:
            await until(lambda: far.exists(old._keys.run("r1")) and far.exists(old._keys.meta))
        pair.lag()
        grant, run = await begun(old, ttl_ms=TTL_MS)  # acknowledged, and about to be forgotten
        url = await pair.promote()
        async with opened(url, namespace=namespace) as new:
            strangers = [Claim(run="r1", nonce=f"b{n}", owner="b", ttl_ms=TTL_MS) for n in range(2)]
            assert (await new.commit(strangers[0])).why is Why.GRACE
            assert (await new.commit(step(grant, run))).why is Why.LOST
            again = Reattach(grant=grant, nonce="again", seq=1, head=run.head)
            assert (await new.commit(again)).why is Why.HISTORY_LOST
            facts = await new.facts()
            await anyio.sleep((facts.since_ms + facts.max_ttl_ms - facts.now_ms) / 1000 + 0.01)
            taken = await new.commit(strangers[1])
            assert (taken.verdict, taken.why) == (Verdict.LANDED, None)
            assert taken.run is not None
            assert taken.run.token > grant.token, "tokens rise over a promotion that lost a grant"
            assert (await new.commit(step(grant, run, "late"))).why is Why.LOST
            assert (await new.commit(step(grant_of(taken.run), taken.run))).verdict is Verdict.LANDED
            assert (await old.commit(step(grant, run))).why is Why.EXPIRED, "its time was up before they let B in"


@each_kind
async def test_i10_a_commit_that_the_promoted_replica_never_saw_stops_its_holder(
    start_redis: StartRedis, namespace: str, kind: ServerKind
) -> None:
    async with paired(start_redis, kind) as pair, opened(pair.primary.url, namespace=namespace) as old:
        await old.raise_ttl(60_000)
        grant, run = await begun(old)
        with redis.Redis.from_url(pair.replica.url) as far:
            await until(lambda: far.hget(old._keys.run("r1"), "nonce") == grant.nonce.encode())
        pair.lag()
        change = step(grant, run)
        assert (await old.commit(change)).verdict is Verdict.LANDED
        told = replace(run, last_seq=2, head=change.row.digest)
        async with opened(await pair.promote(), namespace=namespace) as new:
            assert (await new.commit(step(grant, told))).verdict is Verdict.HISTORY
            again = Reattach(grant=grant, nonce="again", seq=2, head=told.head)
            assert (await new.commit(again)).why is Why.HISTORY_LOST


@each_kind
async def test_i10_a_restart_on_a_full_log_changes_the_history_and_loses_nothing(
    start_redis: StartRedis, namespace: str, kind: ServerKind
) -> None:
    server = start_redis(kind, appendonly="yes", appendfsync="always")
    async with opened(server.url, namespace=namespace) as store:
        await store.raise_ttl(60_000)
        grant, run = await begun(store, ttl_ms=100)
        before = await store.facts()
        server.kill()
        server.start()
        assert (await store.commit(step(grant, run))).verdict is Verdict.HISTORY
        after = await store.facts()
        assert (after.lossy, after.max_ttl_ms) == (False, 60_000)
        assert after.since_ms >= before.now_ms
        await anyio.sleep(0.11)
        taken = await store.commit(claim("r1"))  # no grace: every acknowledged grant is there to be seen
        assert (taken.verdict, taken.run is not None and taken.run.crashes) == (Verdict.LANDED, 0)


@each_kind
async def test_i10_a_restart_that_may_have_lost_a_grant_makes_strangers_wait(
    start_redis: StartRedis, namespace: str, kind: ServerKind
) -> None:
    server = start_redis(kind, appendonly="yes", appendfsync="everysec")
    async with opened(server.url, namespace=namespace) as store:
        await store.raise_ttl(60_000)
        await store.commit(build.create(run="r1", kind="k", value=1))
        server.restart()
        assert (await store.commit(claim("r1"))).why is Why.GRACE
        assert (await store.facts()).lossy


async def test_a_primary_that_was_demoted_is_left_and_asked_for_again(start_redis: StartRedis, namespace: str) -> None:
    kind = REDIS_KINDS[0]
    async with (
        paired(start_redis, kind) as pair,
        Proxy(pair.primary.url) as address,
        opened(address.url, namespace=namespace) as store,
    ):
        await begun(store)
        url = await pair.promote(lossless=True)
        with redis.Redis.from_url(pair.primary.url) as client:
            client.replicaof("127.0.0.1", str(pair.replica.port))
        with pytest.raises(StoreUnsafe, match="replica"):
            await store.commit(build.create(run="r2", kind="k", value=1))
        address.lead_to(url)
        assert (await store.commit(build.create(run="r2", kind="k", value=1))).verdict is Verdict.LANDED
