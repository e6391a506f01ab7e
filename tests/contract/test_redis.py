"""The Redis store keeps the contract on each kind of server, with the server's own clock."""

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from conftest import StartRedis
from tenure.clock import ManualClock
from tenure.core.run import Run, Why
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores._redis_import import Parts
from tenure.stores._redis_line import pack
from tenure.stores.redis import RedisStore
from tenure.testing.contract import StoreContract
from tenure.testing.contract_case import claim, signal, write
from tenure.testing.contract_import import Elsewhere
from tenure.testing.servers import REDIS8


class RedisCase(StoreContract):
    """What both classes below can do: turn the history, and damage what is stored."""

    url: str

    async def turn_history(self, store: Store) -> None:
        assert isinstance(store, RedisStore)
        await store.new_history()

    async def lose_index_entry(self, store: Store, run: Run) -> None:
        assert isinstance(store, RedisStore)
        shard = store._opened().of(run.id)
        await shard.asked(pack("ZREM", shard.keys.due(run.kind), f"{run.id} {run.token} {run.priority}"))

    async def break_record(self, store: Store, run_id: str) -> None:
        assert isinstance(store, RedisStore)
        shard = store._opened().of(run_id)
        await shard.asked(pack("HSET", shard.keys.run(run_id), "token", "many"))

    def address(self, store: Store) -> str:
        return self.url

    async def test_nothing_of_a_live_run_expires(self, store: Store) -> None:
        assert isinstance(store, RedisStore)
        grant, run = await self.begin(store, value="v" * 100_000)
        run = await self.lands(store, write(grant, run, "x" * 100_000, blobs=[b"y" * 100_000, b"z"]))
        await self.lands(store, signal(value="s" * 100_000))
        (keys,) = await store._read(pack("KEYS", f"tenure:{{{store.namespace}:*}}:*"))
        assert len(keys) > 5
        assert {key: ttl for key in keys for ttl in await store._read(pack("TTL", key)) if ttl != -1} == {}

    async def test_nothing_of_a_run_that_was_imported_expires(self, store: Store) -> None:
        assert isinstance(store, RedisStore)
        there = Elsewhere()
        there.steps(["small", "x" * 100_000], blobs=[b"y" * 100_000, b"z"])
        there.land(signal())
        await self.lands(store, there.change())
        (keys,) = await store._read(pack("KEYS", f"tenure:{{{store.namespace}:*}}:*"))
        found = {key: ttl for key in keys for ttl in await store._read(pack("TTL", key))}
        assert len(found) > 5
        assert {key: ttl for key, ttl in found.items() if ttl != -1} == {}, "nor is anything left that waited"

    async def test_an_import_waits_for_all_its_parts(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        there = Elsewhere()
        there.steps(["a", "b"])
        change = there.change()
        rows = Parts._rows
        with monkeypatch.context() as patch:
            patch.setattr(Parts, "_rows", lambda parts: list(rows(parts))[1:])
            await self.refuses(store, change, Why.STAGED)
        assert await store.load("r1") is None
        assert await store.tail("r1") == []
        await self.lands(store, change)


class TestRedis(RedisCase):
    """On a clock that the test moves: so time-outs cost nothing, and the server's clock is shown below."""

    sequences = 200
    lacks: ClassVar = {"restart": "shown on a server of its own below"}

    @pytest.fixture
    async def store(self, redis_url: str, namespace: str) -> AsyncIterator[Store]:
        self.url, self.clock = f"{redis_url}?testing=on", ManualClock()
        async with open_store(self.url, namespace=namespace, clock=self.clock) as store:
            yield store

    async def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms=ms)


class TestRedisOnALogThatIsAlwaysWritten(RedisCase):
    """On the server's own clock, at the level `disk`, with restarts."""

    sequences = 80
    least_landed = 2
    lacks: ClassVar = {"advance_ms": "the server's clock is the clock"}

    @pytest.fixture
    async def store(self, start_redis: StartRedis, namespace: str) -> AsyncIterator[Store]:
        self.server = start_redis(REDIS8, appendonly="yes", appendfsync="always")
        self.url = self.server.url
        async with open_store(self.url, namespace=namespace) as store:
            yield store

    async def restart(self, store: Store) -> Store:
        self.server.kill()
        self.server.start()
        return store

    async def test_i10_a_restart_does_not_cut_short_the_grace_of_the_history_before(self, store: Store) -> None:
        await store.raise_ttl(60_000)
        await self.create(store)
        await self.turn_history(store)
        assert (await store.facts()).lossy
        self.server.restart()
        await self.refuses(store, claim(), Why.GRACE)
        assert (await store.facts()).lossy


class TestRedisInShards(RedisCase):
    """One server, the runs spread over five tags."""

    lacks: ClassVar = {"restart": "shown on a server of its own above"}

    @pytest.fixture
    async def store(self, valkey_url: str, namespace: str) -> AsyncIterator[Store]:
        self.url, self.clock = f"{valkey_url}?testing=on&shards=5", ManualClock()
        async with open_store(self.url, namespace=namespace, clock=self.clock) as store:
            yield store

    async def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    async def test_generated_sequences_are_answered_as_the_rules_answer(self, store: Store) -> None:
        pytest.skip("the rules know one floor and each shard has its own; within a shard the scripts are the same")

    async def test_i10_an_import_is_another_history_for_who_holds_other_runs(self, store: Store) -> None:
        pytest.skip("history is kept for each shard: who holds runs of others is not concerned")
