"""Workers on Redis as it is run in production: what befalls the servers is over when it is over, and work goes on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import anyio
import pytest

from conftest import StartRedis
from stores.redis_kit import opened, until
from tenure import App, Ledger, Status, StoreUnavailable, Worker
from tenure.active import ActiveRun
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.core.verify import verify_run
from tenure.stores.redis import RedisStore
from tenure.testing.models import FunctionModel
from tenure.testing.server_sets import SLOTS, ClusterSet, SentinelSet, asked
from tenure.testing.servers import REDIS7, REDIS8, VALKEY9, RedisServer

RUNS = 12
STEPS = 6
LOG: dict[str, str | int] = {"appendonly": "yes", "appendfsync": "always"}


@contextlib.asynccontextmanager
async def working(url: str, namespace: str, **options: object) -> AsyncIterator[tuple[RedisStore, Ledger]]:
    """A worker that has its runs end a step every 100 ms, and the ledger that submitted them."""
    app = App()

    @app.kind("count")
    async def count(run: ActiveRun[int], begin: int) -> int:
        for number in range(STEPS):

            async def one(number: int = number) -> int:
                await anyio.sleep(0.1)
                return begin + number

            await run.step(f"s{number}", one)
        return begin

    async with opened(url, namespace=namespace, **options) as store, Ledger(store, ttl=20) as ledger:
        for number in range(RUNS):
            await ledger.submit("count", number, id=f"r{number:02}")
        async with Worker(app, ledger, concurrency=RUNS, drain=1):
            yield store, ledger


async def all_done(store: RedisStore, ledger: Ledger) -> None:
    with anyio.fail_after(150):
        for number in range(RUNS):
            assert await ledger.handle(f"r{number:02}").result() == number
    for number in range(RUNS):
        run, rows = await store.load(f"r{number:02}"), await store.tail(f"r{number:02}")
        assert run is not None
        assert (run.status, run.crashes, verify_run(run, rows).ok) == (Status.COMPLETED, 0, True)


async def begun(store: RedisStore) -> None:
    """Wait until every run is worked on."""
    with anyio.fail_after(60):
        while [run for run in (await store.find()).runs if run.step == 0]:  # noqa: ASYNC110 - the server tells
            await anyio.sleep(0.02)


async def test_a_worker_takes_runs_of_every_shard_of_a_cluster(namespace: str) -> None:
    with ClusterSet(VALKEY9, options=LOG) as nodes:
        async with working(f"{nodes.url}?shards=5", namespace) as (store, ledger):
            await all_done(store, ledger)
            assert len({id(store._opened().of(f"r{number:02}")) for number in range(RUNS)}) == 5


async def test_runs_of_a_cluster_s_node_that_was_away_end_when_it_is_back(namespace: str) -> None:
    with ClusterSet(VALKEY9, options={**LOG, "cluster-require-full-coverage": "no"}) as nodes:
        async with working(f"{nodes.url}?shards=5&timeout=2", namespace) as (store, ledger):
            await begun(store)
            down = nodes.holder(store._opened().shards[0].keys.meta)
            down.kill()
            apart = [f"r{n:02}" for n in range(RUNS) if not on(nodes, down, store, f"r{n:02}")]
            with anyio.fail_after(60):
                for run_id in apart:
                    assert await ledger.handle(run_id).result() == int(run_id[1:])
            down.start()
            await all_done(store, ledger)


def on(nodes: ClusterSet, node: RedisServer, store: RedisStore, run_id: str) -> bool:
    """Whether a run's slot is this node's; asked of another node."""
    other = next(one for one in nodes.nodes if one is not node)
    slot = int(asked(other, "CLUSTER", "KEYSLOT", store._opened().of(run_id).keys.meta))
    number = nodes.nodes.index(node)
    return SLOTS * number // 3 <= slot < SLOTS * (number + 1) // 3


@pytest.mark.parametrize("level", ["disk", "replicated"])
async def test_i10_a_worker_goes_on_after_a_failover_that_sentinels_made(namespace: str, level: str) -> None:
    options: dict[str, str | int] = {**LOG, "min-replicas-to-write": 1} if level == "replicated" else LOG
    with SentinelSet(REDIS8, replicas=2, options=options) as servers:
        ask = "timeout=2&replicas=1" if level == "replicated" else "timeout=2"
        async with working(f"{servers.url}?{ask}", namespace, durability=level) as (store, ledger):
            await begun(store)
            first = servers.primary()
            offset = asked(first, "INFO", "replication")["master_repl_offset"]
            assert int(offset) > 0
            first.kill()
            await until(lambda: servers.primary() is not first)
            with anyio.fail_after(150):
                for number in range(RUNS):
                    assert await ledger.handle(f"r{number:02}").result() == number


async def test_i10_a_worker_goes_on_after_its_server_was_restarted_in_the_middle(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(REDIS7, **LOG)  # type: ignore[arg-type]
    async with working(server.url, namespace, durability="disk") as (store, ledger):
        await begun(store)
        server.kill()
        await anyio.sleep(0.3)
        server.start()
        await all_done(store, ledger)
        runs = (await store.find()).runs
        assert {run.attempt for run in runs} == {1}, "nobody lost a run"


@pytest.mark.parametrize("what", ["memory", "password", "replicas"])
async def test_a_worker_goes_on_when_what_kept_its_server_from_writing_is_over(
    start_redis: StartRedis, namespace: str, what: str
) -> None:
    server = start_redis(VALKEY9, **LOG)  # type: ignore[arg-type]
    asked(server, "ACL", "SETUSER", "worker", "on", ">word", "allkeys", "allchannels", "allcommands")
    url = server.url.replace("redis://", "redis://worker:word@")
    harm: dict[str, list[tuple[str, ...]]] = {
        "memory": [("CONFIG", "SET", "maxmemory", "1mb")],
        "password": [("ACL", "SETUSER", "worker", "resetpass", ">other"), ("CLIENT", "KILL", "USER", "worker")],
        "replicas": [("CONFIG", "SET", "min-replicas-to-write", "1")],
    }
    mend = {
        "memory": ("CONFIG", "SET", "maxmemory", "0"),
        "password": ("ACL", "SETUSER", "worker", ">word"),
        "replicas": ("CONFIG", "SET", "min-replicas-to-write", "0"),
    }
    async with working(url, namespace) as (store, ledger):
        await begun(store)
        for command in harm[what]:
            asked(server, *command)
        await anyio.sleep(0.5)
        asked(server, *mend[what])
        with anyio.fail_after(150):
            for number in range(RUNS):
                assert await ledger.handle(f"r{number:02}").result() == number


@contextlib.asynccontextmanager
async def apart(namespace: str) -> AsyncIterator[tuple[Ledger, RedisServer, list[str], list[str]]]:
    """A ledger on a Cluster, a node of it, ids of runs on that node, and ids of runs on the others."""
    with ClusterSet(VALKEY9, options=LOG) as nodes:
        async with (
            opened(f"{nodes.url}?shards=5", namespace=namespace) as store,
            Ledger(store, ttl=300) as ledger,  # who waited for the shard would wait for as long
        ):
            node = nodes.holder(store._opened().shards[0].keys.meta)
            names = [f"r{number}" for number in range(24)]
            there = [run_id for run_id in names if on(nodes, node, store, run_id)]
            yield ledger, node, there, [run_id for run_id in names if run_id not in there]


FULL = ("maxmemory", "1", "0")
LONELY = ("min-replicas-to-write", "3", "0")


@pytest.mark.parametrize("setting", [FULL, LONELY], ids=["full", "lonely"])
async def test_a_shard_that_answers_reads_and_takes_no_writes_keeps_no_other_shard_s_runs_waiting(
    namespace: str, setting: tuple[str, str, str]
) -> None:
    name, harm, mend = setting
    app, gate = App(), anyio.Event()

    @app.kind("gate")
    async def hold(run: ActiveRun[int], number: int) -> int:
        await gate.wait()
        return number

    @app.kind("work")
    async def work(run: ActiveRun[int], number: int) -> int:
        return number

    async with apart(namespace) as (ledger, bad, there, others):
        for run_id in others[:2]:
            await ledger.submit("gate", 0, id=run_id)
        async with Worker(app, ledger, concurrency=2, drain=1) as worker:
            await until(lambda: len(worker.slots.executions) == 2)
            for number, run_id in enumerate([*there, *others[2:]]):  # what nobody can claim is due first
                await ledger.submit("work", number, id=run_id)
            asked(bad, "CONFIG", "SET", name, harm)
            gate.set()
            with anyio.fail_after(120):
                for run_id in others[2:]:
                    await ledger.handle(run_id).result()
            assert {(await ledger.load(run_id)).status for run_id in there} == {Status.QUEUED}
            asked(bad, "CONFIG", "SET", name, mend)
            with anyio.fail_after(120):
                for run_id in there:
                    await ledger.handle(run_id).result()


async def test_o19_an_agent_s_recovery_waits_for_no_shard_that_takes_no_writes(namespace: str) -> None:
    agent = Agent(FunctionModel(lambda _: "done"), name="walker")
    async with apart(namespace) as (ledger, bad, there, others):
        for run_id in [*there, *others]:  # what nobody takes is due first
            await ledger.submit(agent, "go", id=run_id)
        asked(bad, "CONFIG", "SET", "maxmemory", "1")
        with anyio.fail_after(120):
            found = {entry.run_id: entry.error for entry in await CheckpointedAgent(agent, ledger).recover_all()}
        assert {run_id for run_id, error in found.items() if error is None} == {*others}
        assert {type(error) for error in found.values()} == {type(None), StoreUnavailable}
