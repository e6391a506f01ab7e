"""A Cluster: each shard goes by its tag, wherever its slot is; a slot that is down stops its own runs and no others."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import anyio
import pytest
import redis

from stores.redis_kit import begun, claim, grant_of, opened, refused, step, until
from stores.test_redis_open import acl_line, use_everything
from tenure.core import build
from tenure.core.run import Commit, Delete, End, How, Renew, Status, Verdict
from tenure.errors import CorruptRecord, InvalidUrl, OutcomeUnknown, StoreUnavailable, StoreUnsafe
from tenure.store import Where
from tenure.stores import open_store
from tenure.stores._redis_line import pack
from tenure.stores.redis import RedisStore
from tenure.testing.server_sets import ClusterSet, asked
from tenure.testing.servers import REDIS7, REDIS_KINDS, VALKEY9, RedisServer, ServerKind

SHARDS = 12
"""So many that they are never all on one node."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterSet]:
    """Three nodes whose slots stay where they are."""
    with ClusterSet(VALKEY9) as nodes:
        yield nodes


async def begun_on_each(store: RedisStore, shards: int = SHARDS) -> list[tuple[str, Commit]]:
    """Create and claim a run in each shard; return each id with the run's next commit."""
    found = dict[int, tuple[str, Commit]]()
    number = 0
    while len(found) < shards:
        run_id, number = f"r{number}", number + 1
        shard = store._opened().shards.index(store._opened().of(run_id))
        if shard not in found:
            found[shard] = run_id, step(*await begun(store, run_id))
    return [found[shard] for shard in range(shards)]


async def test_a_run_is_worked_on_in_the_node_of_its_tag(cluster: ClusterSet, namespace: str) -> None:
    async with opened(f"{cluster.url}?shards={SHARDS}", namespace=namespace) as store:
        used = set()
        for run_id, change in await begun_on_each(store):
            assert (await store.commit(change)).verdict is Verdict.LANDED
            key = store._opened().of(run_id).keys.run(run_id)
            node = cluster.holder(key)
            assert asked(node, "HGET", key, "last_seq") == "2"
            assert len(await store.tail(run_id)) == 2
            used.add(node.port)
        assert len(used) > 1, "the shards are spread over the nodes"


async def test_claims_looks_listings_and_ends_reach_all_shards(cluster: ClusterSet, namespace: str) -> None:
    async with opened(f"{cluster.url}?shards={SHARDS}", namespace=namespace) as store:
        await store.raise_ttl(60_000)
        names = [f"r{number:02}" for number in range(30)]
        answers = await store.commit_many([build.create(run=name, kind=f"k{name[-1]}", value=1) for name in names])
        assert {getattr(answer, "verdict", None) for answer in answers} == {Verdict.LANDED}
        kinds = await store.kinds()
        assert kinds == sorted({f"k{name[-1]}" for name in names})
        hints = await store.due(kinds)
        assert sorted(hint.run for hint in hints) == names
        assert len(await store.due(kinds, limit=7)) == 7
        assert await store.next_due_ms(kinds) is not None
        found, cursor = list[str](), ""
        while True:
            page, cursor = await store.entries("k1", cursor=cursor)
            found += [name for name, _ in page]
            if not cursor:
                break
        assert sorted(found) == ["r01", "r11", "r21"]
        claims = await store.commit_many([claim(name) for name in names])
        runs = [answer.run for answer in claims if not isinstance(answer, Exception) and answer.run is not None]
        renewed = await store.commit_many([Renew(grant=grant_of(run)) for run in runs])
        assert [getattr(answer, "verdict", None) for answer in renewed] == [Verdict.LANDED] * 30
        listed, at = list[str](), None
        while True:
            listing = await store.find(Where(status=(Status.RUNNING,)), cursor=at, limit=7)
            listed += [run.id for run in listing.runs]
            if (at := listing.cursor) is None:
                break
        assert sorted(listed) == names
        assert len(listed) == 30
        ends = await store.commit_many([End(run=name, how=How.CANCEL) for name in names])
        gone = await store.commit_many([Delete(run=name) for name in names])
        assert {getattr(answer, "verdict", None) for answer in [*ends, *gone]} == {Verdict.LANDED}
        assert (await store.facts()).max_ttl_ms == 60_000
        async with opened(f"{cluster.url}", namespace=namespace) as other, store.beside() as waking:
            assert len(other._opened().shards) == SHARDS, "who names no number takes the one that is there"
            await waking.wake("topic")
            with anyio.fail_after(10):
                while not await store.woken(["topic"], timeout=0.2):
                    await waking.wake("topic")


async def test_a_record_that_cannot_be_read_is_listed_on_the_page_where_it_stands(
    redis7_url: str, namespace: str
) -> None:
    async with opened(f"{redis7_url}?shards=5", namespace=namespace) as store:
        for number in range(12):
            await store.commit(build.create(run=f"r{number:02}", kind="k", value=1))
        await store._opened().of("r05").asked(pack("HSET", store._opened().of("r05").keys.run("r05"), "token", "many"))
        with pytest.raises(CorruptRecord):
            await store.load("r05")
        corrupt, runs, at = list[str](), list[str](), None
        while True:
            page = await store.find(cursor=at, limit=3)
            corrupt += page.corrupt
            runs += [run.id for run in page.runs]
            if (at := page.cursor) is None:
                break
        assert corrupt == ["r05"]
        assert sorted([*runs, "r05"]) == [f"r{number:02}" for number in range(12)]


async def test_the_number_of_shards_is_fixed_at_the_first_opening(redis_url: str, namespace: str) -> None:
    async with opened(f"{redis_url}?shards=3", namespace=namespace) as store:
        await begun(store)
    for asked_for in (1, 2, 4):
        said = await refused(f"{redis_url}?shards={asked_for}", namespace=namespace)
        assert "?shards=3" in said
    async with opened(redis_url, namespace=namespace) as store:
        assert (await store.load("r1")) is not None
    for url in (f"{redis_url}?shards=0", f"{redis_url}?shards=1000", f"{redis_url}?shards=many"):
        with pytest.raises(InvalidUrl, match="shards"):
            open_store(url)


def move(nodes: ClusterSet, key: str, *, whole: bool = True) -> tuple[RedisServer, RedisServer]:
    """Move the slot of a key to the next node, as a resharding does; not `whole` stops before the new owner is told."""
    old = nodes.holder(key)
    new = nodes.nodes[(nodes.nodes.index(old) + 1) % len(nodes.nodes)]
    slot = asked(old, "CLUSTER", "KEYSLOT", key)
    asked(new, "CLUSTER", "SETSLOT", slot, "IMPORTING", nodes.id_of(old))
    asked(old, "CLUSTER", "SETSLOT", slot, "MIGRATING", nodes.id_of(new))
    while names := asked(old, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        asked(old, "MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *names)
    if whole:
        for node in (new, old, *nodes.nodes):
            asked(node, "CLUSTER", "SETSLOT", slot, "NODE", nodes.id_of(new))
    return old, new


@pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)
async def test_i10_a_slot_that_moves_is_followed_and_changes_the_history(kind: ServerKind, namespace: str) -> None:
    with ClusterSet(kind, options={"appendonly": "yes", "appendfsync": "always"}) as nodes:
        async with opened(nodes.url, namespace=namespace) as store:
            grant, run = await begun(store)
            change = step(grant, run)
            key = store._opened().of("r1").keys.run("r1")
            _, new = move(nodes, key)
            answer = await store.commit(change)
            assert answer.verdict is Verdict.HISTORY, "the node it came to has a history of its own"
            assert asked(new, "EXISTS", key) == 1
            assert (await store.load("r1")) is not None
            assert (await store.commit(build.create(run="r2", kind="k", value=1))).verdict is Verdict.LANDED


async def test_a_slot_on_its_way_answers_or_asks_to_try_again_and_nothing_is_torn(namespace: str) -> None:
    with ClusterSet(REDIS7) as nodes:
        async with opened(nodes.url, namespace=namespace) as store:
            change = step(*await begun(store))
            keys = store._opened().of("r1").keys
            move(nodes, keys.run("r1"), whole=False)
            assert (await store.load("r1")) is not None, "its keys are asked for where they are now"
            assert (await store.commit(Renew(grant=change.grant))).verdict is Verdict.HISTORY
            with pytest.raises(StoreUnavailable, match="moves this slot"):
                await store.commit(build.create(run="r2", kind="k", value=1))
            slot = asked(nodes.nodes[0], "CLUSTER", "KEYSLOT", keys.meta)
            target = nodes.nodes[(nodes.nodes.index(nodes.holder(keys.meta)) + 1) % 3]
            for node in (target, *nodes.nodes):
                asked(node, "CLUSTER", "SETSLOT", slot, "NODE", nodes.id_of(target))
            assert (await store.commit(build.create(run="r2", kind="k", value=1))).verdict is Verdict.LANDED


@pytest.mark.parametrize("coverage", ["yes", "no"])
async def test_a_slot_that_is_down_is_named_stops_its_own_runs_and_goes_on_when_it_is_back(
    namespace: str, coverage: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"appendonly": "yes", "appendfsync": "always", "cluster-require-full-coverage": coverage}
    with ClusterSet(VALKEY9, options=kept) as nodes:
        async with opened(f"{nodes.url}?shards={SHARDS}&timeout=2", namespace=namespace) as store:
            changes = [change for _, change in await begun_on_each(store)]
            down = nodes.holder(store._opened().shards[0].keys.meta)
            apart = [nodes.holder(shard.keys.meta) is not down for shard in store._opened().shards]
            assert True in apart
            down.kill()
            with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                await store.commit(changes[0])
            others = [change for change, far in zip(changes, apart, strict=True) if far]
            if coverage == "yes":
                await until(lambda: _down(nodes, down))
                with pytest.raises(StoreUnavailable, match="Cluster does not serve"):
                    await store.commit(others[0])
            else:
                answers = await store.commit_many([changes[0], *others])
                assert isinstance(answers[0], StoreUnavailable)
                assert [getattr(answer, "verdict", None) for answer in answers[1:]] == [Verdict.LANDED] * len(others)
                with caplog.at_level(logging.WARNING, logger="tenure.stores.redis"):
                    assert await store.due(["k"]) == []
                    assert await store.due(["k"]) == []
                assert len([line for line in caplog.messages if "does not answer" in line]) == apart.count(False)
                with pytest.raises(StoreUnavailable):
                    await store.find()
            down.start()
            await until(lambda: all(asked(node, "CLUSTER", "INFO")["cluster_state"] == "ok" for node in nodes.nodes))
            for change in changes:
                answer = await store.commit(change)
                assert answer.verdict in (Verdict.LANDED, Verdict.ALREADY, Verdict.HISTORY)
            assert len((await store.find()).runs) == SHARDS


def _down(nodes: ClusterSet, down: RedisServer) -> bool:
    up = [node for node in nodes.nodes if node is not down]
    return all(asked(node, "CLUSTER", "INFO")["cluster_state"] == "fail" for node in up)


async def test_a_shard_that_hangs_does_not_hold_up_the_renewals_of_the_others(namespace: str) -> None:
    with ClusterSet(VALKEY9, options={"cluster-node-timeout": 60_000}) as nodes:
        async with opened(f"{nodes.url}?shards={SHARDS}&timeout=30", namespace=namespace) as store:
            changes = [change for _, change in await begun_on_each(store)]
            frozen = nodes.holder(store._opened().shards[0].keys.meta)
            hang = [nodes.holder(shard.keys.meta) is frozen for shard in store._opened().shards]
            frozen.freeze()
            try:
                with anyio.fail_after(20):  # its time-out is 30 s
                    answers = await store.commit_many([Renew(grant=change.grant) for change in changes])
            finally:
                frozen.thaw()
            assert [isinstance(answer, OutcomeUnknown) for answer in answers] == hang
            assert {getattr(a, "verdict", None) for a, h in zip(answers, hang, strict=True) if not h} == {
                Verdict.LANDED
            }


async def test_a_replica_that_is_promoted_in_a_cluster_is_found_without_being_told(namespace: str) -> None:
    with ClusterSet(VALKEY9, replicas=3, options={"appendonly": "yes"}) as nodes:
        async with opened(f"{nodes.url}?timeout=2", namespace=namespace) as store:
            grant, run = await begun(store)
            key = store._opened().of("r1").keys.run("r1")
            down = nodes.holder(key)
            await until(lambda: int(asked(down, "WAIT", 1, 100)) == 1)
            down.kill()
            found = None
            with anyio.fail_after(60):
                while found is None:
                    try:
                        found = await store.load("r1")
                    except StoreUnavailable:
                        await anyio.sleep(0.1)
            assert found.id == "r1"
            assert (await store.commit(step(grant, run))).verdict is Verdict.HISTORY


async def test_a_cluster_that_is_not_one_and_nodes_that_are_not_there_are_named(
    redis7_url: str, cluster: ClusterSet, namespace: str
) -> None:
    one = f"redis://127.0.0.1:{cluster.holder(f'tenure:{{{namespace}:0}}:meta').port}"
    elsewhere = next(node for node in cluster.nodes if str(node.port) not in one)
    assert "redis+cluster://" in await refused(f"redis://127.0.0.1:{elsewhere.port}", StoreUnsafe, namespace=namespace)
    assert "no node serves" in await refused("redis+cluster://127.0.0.1:1,127.0.0.1:2", StoreUnavailable)
    plain = redis7_url.replace("redis://", "redis+cluster://")
    async with opened(plain, namespace=namespace) as store:  # one server answers for every slot
        assert (await store.commit(build.create(run="r1", kind="k", value=1))).verdict is Verdict.LANDED
    with pytest.raises(InvalidUrl, match="database 0"):
        open_store(f"{cluster.url}/3")
    with redis.Redis.from_url(redis7_url) as client:
        assert client.exists(f"tenure:{{{namespace}:0}}:run:r1")


async def test_the_user_of_the_acl_file_may_do_all_that_a_cluster_needs(namespace: str) -> None:
    with ClusterSet(VALKEY9, options={"appendonly": "yes"}) as nodes:
        for node in nodes.nodes:
            asked(node, "ACL", "SETUSER", *acl_line())
        url = nodes.url.replace("://", "://tenure:word@")
        async with opened(f"{url}?shards={SHARDS}", namespace=namespace) as store, store.beside() as other:
            assert "word" not in store.url
            await use_everything(store, other)
            _, change = (await begun_on_each(store))[0]
            move(nodes, store._opened().of(change.run).keys.run(change.run), whole=False)
            assert (await store.load(change.run)) is not None, "+asking"
            for node in nodes.nodes:
                asked(node, "ACL", "SETUSER", "tenure", "-hgetall")
            with pytest.raises(StoreUnsafe, match="hgetall"):
                await store.load(change.run)
