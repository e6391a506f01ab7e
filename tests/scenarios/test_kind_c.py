"""Sweeps and recovery: acting on an old picture, on a live run, or several times.

The rest of the kind is told of sweepers in tests/worker/test_sweep.py.
"""

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from scenarios.telling import claimed, created, kept, until_over, why
from tenure import ActiveRun, App, Ledger, Status, Sweeper, Worker, open_store
from tenure.core import build
from tenure.core.run import Renew, Why
from tenure.store import Store
from tenure.testing.contract_case import claim
from worker.fleet import fleet, wait_until
from worker.kit import dead, until


def counting(done: Counter[str]) -> App:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> str:
        done[run.id] += 1
        await run.step("work", anyio.lowlevel.checkpoint)
        return run.id

    return app


async def test_b031_b041_eight_sweepers_at_once_execute_each_dead_run_once(store: Store) -> None:
    done: Counter[str] = Counter()
    app = counting(done)
    names = [f"r{number}" for number in range(20)]
    async with AsyncExitStack() as opened:
        ledgers = [await opened.enter_async_context(Ledger(store, ttl=10)) for _ in range(8)]
        for name in names:
            await ledgers[0].submit("k", None, id=name)
            await dead(ledgers[0], name)
        async with anyio.create_task_group() as tasks:
            for ledger in ledgers:
                tasks.start_soon(Sweeper(ledger, app).recover_all)
        assert done == Counter(names)
        for name in names:
            run = await ledgers[0].load(name)
            assert (run.status, run.ordinal, run.attempt) == (Status.COMPLETED, 2, 2)


async def test_b032_a_boot_sweep_never_adopts_a_run_that_starts_beside_it(store: Store) -> None:
    done: Counter[str] = Counter()
    app = counting(done)
    async with Ledger(store, ttl=10) as ledger, Ledger(store, ttl=10) as other, Worker(app, ledger, drain=5):
        sweeper = Sweeper(other, app)
        for _ in range(40):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ledger.submit, "k", None)
                tasks.start_soon(sweeper.recover_all)
        await until(lambda: len(done) == 40, seconds=30)
        assert set(done.values()) == {1}
        async for run in ledger.find():
            assert (run.attempt, run.ordinal) == (1, 1)


@pytest.mark.slow
def test_b033_a_draining_worker_takes_nothing_back(tmp_path: Path, namespace: str) -> None:
    with fleet(tmp_path, f"sqlite:///{tmp_path}/runs.db", namespace) as ours:
        first = ours.worker("--processes", "1")
        anyio.run(_submit, ours.url, namespace, "gate", "open", ["r1"])
        wait_until(lambda: ours.notes("wait r1"))
        second = ours.worker("--processes", "1")
        first.terminate()
        wait_until(lambda: len(ours.notes("wait r1")) == 2 or first.poll() is not None, seconds=60)
        ours.open_gate("open")
        assert first.wait(timeout=60) == 0
        wait_until(lambda: anyio.run(_status, ours.url, namespace, "r1") is Status.COMPLETED, seconds=60)
        assert second.poll() is None
        assert len({note.pid for note in ours.notes("call r1")}) == 2


async def _submit(url: str, namespace: str, kind: str, value: object, names: list[str]) -> None:
    async with open_store(url, namespace=namespace) as store, Ledger(store) as ledger:
        for name in names:
            await ledger.submit(kind, value, id=name)


async def _status(url: str, namespace: str, name: str) -> Status:
    async with open_store(url, namespace=namespace) as store:
        run = await store.load(name)
        assert run is not None
        return run.status


async def test_b034_b037_a_sweep_sees_no_lease_or_a_valid_one_and_judges_only_the_current(store: Store) -> None:
    await created(store)
    taken: list[str] = []

    async def look() -> None:
        # Between any two of the others' commands: a run is due, or it is held. There is no half of a claim.
        while True:
            for hint in await store.due(["k"]):
                run = await store.load(hint.run)
                assert run is not None
                assert run.status is not Status.RUNNING or run.lease_until_ms > 0
                taken.append(run.status.value)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        old, first = await claimed(store, owner="old", ttl_ms=60)
        await until_over(first, store)
        new, _ = await claimed(store, owner="new")
        assert await why(store, Renew(grant=old)) is Why.LOST
        for _ in range(20):
            assert await why(store, claim("r1")) is Why.HELD
        tasks.cancel_scope.cancel()
    assert (await store.commit(Renew(grant=new))).ok


async def test_b038_a_late_renewal_does_not_touch_a_finished_run(store: Store) -> None:
    await created(store)
    grant, run = await claimed(store)
    assert (await store.commit(build.commit(grant, 2, run.head, [], status=Status.COMPLETED))).ok
    before = await kept(store)
    assert await why(store, Renew(grant=grant)) is Why.CLOSED
    for _ in range(10):
        assert await store.due(["k"]) == []
        assert await why(store, claim("r1")) is Why.CLOSED
    assert await kept(store) == before
