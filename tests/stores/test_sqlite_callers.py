"""Many callers of one SQLite store: they share transactions, give up, live on other loops, and wait for wake-ups."""

import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from stores.changes import grant_of, step
from stores.test_sqlite_file import at, held, new_run
from tenure.core import build
from tenure.core.run import Renew, Verdict
from tenure.core.verify import verify_run
from tenure.errors import NotAllowed, StoreUnavailable
from tenure.stores._bell import REMEMBERED, Bell
from tenure.stores._sqlite_write import Transaction
from tenure.stores.sqlite import SqliteStore


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with at(tmp_path / "t.db") as opened:
        yield opened


class Blocked:
    """Work that keeps the writer inside its transaction until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, transaction: Transaction) -> None:
        self.begun.set()
        assert self.go.wait(30)

    async def wait(self) -> None:
        assert await anyio.to_thread.run_sync(self.begun.wait, 30)


async def test_i07_a_storm_of_cancelled_callers_leaves_no_gap_and_no_second_effect(store: SqliteStore) -> None:
    draw = random.Random(7)
    seen: Counter[str] = Counter()

    async def drive(run_id: str) -> None:
        run = await held(store, run_id)
        for number in range(40):
            change = step(run, [number, "x" * 500])
            answer = None
            while answer is None:
                with anyio.move_on_after(draw.choice([0, 0.0003, 0.001, 0.003, 5])):
                    answer = await store.commit(change)
                seen["cancelled"] += answer is None
            assert answer.ok, answer
            seen[answer.verdict] += 1
            assert answer.run is not None
            assert (answer.run.last_seq, answer.run.head) == (change.row.seq, change.row.digest)
            run = answer.run

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(drive, f"run-{number}")
    assert seen["cancelled"] > 50
    assert seen[Verdict.ALREADY] > 10, "some had landed although nobody waited"
    for number in range(8):
        run = await store.load(f"run-{number}")
        assert run is not None
        assert (run.last_seq, run.step) == (41, 40)
        assert verify_run(run, await store.tail(run.id)).ok


async def test_cancelled_before_its_turn_a_change_is_withdrawn(store: SqliteStore) -> None:
    blocked = Blocked()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store._written, blocked)
        await blocked.wait()
        with anyio.move_on_after(0.05) as scope:
            await new_run(store, "late")
        assert scope.cancelled_caught
        blocked.go.set()
    await new_run(store, "next")
    assert await store.load("late") is None
    assert await store.load("next") is not None


async def test_cancelled_after_its_turn_only_the_wait_is_dropped(store: SqliteStore) -> None:
    blocked = Blocked()
    change = build.create(run="sent", kind="k", value=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store._desks()[0].ask, [blocked, change])
        await blocked.wait()
        tasks.cancel_scope.cancel()
    blocked.go.set()
    assert (await store.commit(change)).verdict is Verdict.ALREADY


async def test_what_gathers_while_the_writer_is_busy_lands_in_one_transaction(store: SqliteStore) -> None:
    said: list[str] = []
    await store._written(lambda t: t.connection.set_trace_callback(said.append))
    blocked = Blocked()
    said.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store._written, blocked)
        await blocked.wait()
        for number in range(100):
            tasks.start_soon(new_run, store, f"run-{number}")
        await anyio.wait_all_tasks_blocked()
        blocked.go.set()
    assert said.count("COMMIT") == 2
    assert len((await store.find()).runs) == 100


async def test_a_transaction_that_fails_as_a_whole_is_done_again_one_by_one(store: SqliteStore) -> None:
    def broken(transaction: Transaction) -> None:
        transaction.connection.execute("INSERT INTO run (number) VALUES (NULL)")

    creations = [build.create(run=f"run-{n}", kind="k", value=1) for n in range(4)]
    answers: list[Any] = await store._desks()[0].ask([*creations[:2], broken, *creations[2:]])
    assert isinstance(answers.pop(2), Exception)
    assert [answer.verdict for answer in answers] == [Verdict.LANDED] * 4
    assert len((await store.find()).runs) == 4


async def test_a_fault_of_ours_reaches_its_caller_and_not_the_next(store: SqliteStore) -> None:
    def faulty(transaction: Transaction) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store._written(faulty)
    with pytest.raises(ZeroDivisionError):
        await store._asked(lambda connection, known: 1 // 0)
    assert (await new_run(store)).ok


async def test_b100_twenty_tasks_on_one_store_each_get_their_own(store: SqliteStore) -> None:
    async def use(run_id: str) -> None:
        run = await held(store, run_id)
        for number in range(10):
            answer = await store.commit(step(run, [run_id, number], blobs=[f"{run_id}.{number}".encode()]))
            assert answer.run is not None
            run = answer.run
            assert await store.load(run_id) == run
            rows = await store.tail(run_id, after=run.last_seq - 1)
            assert [row.digest for row in rows] == [run.head]
            assert f'"{run_id}"'.encode() in rows[0].body

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(use, f"run-{number}")


async def test_one_store_serves_loops_of_several_threads(store: SqliteStore, anyio_backend: str) -> None:
    async def elsewhere() -> bool:
        await new_run(store, "there")
        return await store.woken(["bell"], timeout=20)

    other = "trio" if anyio_backend == "asyncio" else "asyncio"
    async with anyio.create_task_group() as tasks:

        async def ring() -> None:
            while await store.load("there") is None:  # noqa: ASYNC110 - the other loop shares no event with this one
                await anyio.sleep(0.001)
            await store.wake("bell")

        tasks.start_soon(ring)
        assert await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere, backend=other))


async def test_closing_lets_what_was_asked_land_and_nothing_more_in(tmp_path: Path) -> None:
    store = at(tmp_path / "c.db")
    await store.__aenter__()
    blocked = Blocked()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store._written, blocked)
        await blocked.wait()
        tasks.start_soon(new_run, store, "asked")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(store.__aexit__, None, None, None)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(NotAllowed):
            await new_run(store, "late")
        blocked.go.set()
    async with store:
        assert [run.id for run in (await store.find()).runs] == ["asked"]
    assert not [t for t in threading.enumerate() if t.name.startswith("tenure c.db")]


async def test_i20_a_heartbeat_of_its_own_gets_through_beside_a_writer_that_never_rests(store: SqliteStore) -> None:
    async def press(run_id: str) -> None:
        run = await held(store, run_id)
        while True:
            answer = await store.commit(step(run, "x" * 2000))
            assert answer.run is not None
            run = answer.run

    waits: list[float] = []
    async with store.beside(busy_timeout_ms=5_000) as beside, anyio.create_task_group() as tasks:
        run = await held(beside, "beating")
        for number in range(16):
            tasks.start_soon(press, f"run-{number}")
        for _ in range(20):
            begun = time.monotonic()
            assert (await beside.commit(Renew(grant=grant_of(run)))).ok
            waits.append(time.monotonic() - begun)
            await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert max(waits) < 3, waits


async def test_a_store_beside_may_have_less_patience(store: SqliteStore) -> None:
    await new_run(store)
    blocked = Blocked()
    async with store.beside(busy_timeout_ms=50) as beside, anyio.create_task_group() as tasks:
        tasks.start_soon(store._written, blocked)
        await blocked.wait()
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await new_run(beside, "b")
        assert time.monotonic() - begun < 4
        blocked.go.set()


async def test_a_wake_between_a_look_and_the_wait_is_not_lost(store: SqliteStore) -> None:
    async with store.beside() as beside:
        for each in (store, beside):
            with anyio.fail_after(20):
                while await each.woken(["a"], timeout=0.01):
                    pass  # what was written to open the file may still be noticed
        await store.wake("a")
        # Rung in this process: it does not take a look at the file, nor the end of the wait.
        for each in (store, beside):
            begun = time.monotonic()
            assert await each.woken(["b", "a"], timeout=30)
            assert time.monotonic() - begun < 10


async def test_own_changes_wake_nobody_here_and_another_store_object_once(store: SqliteStore) -> None:
    async with store.beside() as beside:
        await new_run(store)
        assert not await store.woken(["a"], timeout=0.1)
        assert await beside.woken(["a"], timeout=20)
        assert not await beside.woken(["a"], timeout=0.1)


async def test_a_waiter_that_was_cancelled_is_forgotten(store: SqliteStore) -> None:
    with anyio.move_on_after(0.01):
        await store.woken(["a"], timeout=20)
    assert store._bell._waiting == {}
    assert store._desks()[0]._watchers == 0


async def test_a_bell_forgets_topics_and_wakes_for_nothing_rather_than_not_at_all() -> None:
    bell = Bell()
    heard = bell.heard()
    bell.ring("first")
    for number in range(REMEMBERED + 10):
        bell.ring(f"topic-{number}")
    assert len(bell._rung) == REMEMBERED
    assert await bell.woken(heard, ["first"], timeout=0)
    assert not await bell.woken(heard, ["first"], timeout=0)
    for number in range(REMEMBERED + 10):
        await bell.woken(heard, [f"topic-{number}"], timeout=0)
    assert len(heard.topics) == REMEMBERED
