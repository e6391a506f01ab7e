"""`lease.transaction()`: effects in the store's own database land with the step that tells of them, or not at all."""

import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from conftest import StartPostgres
from stores.postgres_kit import Proxy, connected, rows_of
from stores.postgres_teller import STEPS
from tenure import LeaseLost, Ledger, NotAllowed, RolledBack, Status, open_store
from tenure.core import build
from tenure.core.run import How, Verdict
from tenure.core.verify import verify_run
from tenure.store import Transactional

TELLER = Path(__file__).with_name("postgres_teller.py")


@pytest.fixture(autouse=True)
async def told(postgres_url: str) -> None:
    """The table of a tool."""
    async with connected(postgres_url) as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(1)")
        await connection.execute("CREATE TABLE IF NOT EXISTS told (run text, step int)")


@pytest.fixture
async def ledger(postgres_url: str, namespace: str) -> AsyncIterator[Ledger]:
    async with open_store(postgres_url, namespace=namespace) as store, Ledger(store, ttl=5) as ledger:
        await ledger.submit("k", None, id="r1")
        yield ledger


async def steps_of(url: str, namespace: str) -> list[int]:
    return [step for (step,) in await rows_of(url, "SELECT step FROM told WHERE run = %s ORDER BY step", namespace)]


TELL = "INSERT INTO told (run, step) VALUES (%s, %s)"


async def test_what_the_block_does_lands_with_its_step(ledger: Ledger, postgres_url: str, namespace: str) -> None:
    async with ledger.hold("r1") as lease:
        async with lease.transaction(value={"told": 1}) as connection:
            await connection.execute(TELL, [namespace, 1])
            assert await steps_of(postgres_url, namespace) == []
        assert (lease.last, lease.run.step) == ({"told": 1}, 1)
        found: list[int] = []
        async with lease.transaction("charge", lambda: found) as connection:
            cursor = await connection.execute("SELECT count(*)::int FROM told WHERE run = %s", [namespace])
            found.append((await cursor.fetchone())[0])
        assert lease.state.records["", "charge"]["value"] == [1]
        await lease.settle()
    assert await steps_of(postgres_url, namespace) == [1]
    run = await ledger.store.load("r1")
    assert run is not None
    assert verify_run(run, await ledger.store.tail("r1")).ok


async def test_a_block_that_raises_leaves_nothing(ledger: Ledger, postgres_url: str, namespace: str) -> None:
    async with ledger.hold("r1") as lease:
        with pytest.raises(ZeroDivisionError):
            async with lease.transaction() as connection:
                await connection.execute(TELL, [namespace, 1])
                _ = 1 / 0
        assert lease.run.step == 0
        await lease.checkpoint("goes on")
    assert await steps_of(postgres_url, namespace) == []


async def test_a_statement_that_failed_cannot_be_swallowed(ledger: Ledger, postgres_url: str, namespace: str) -> None:
    import psycopg

    async with ledger.hold("r1") as lease:
        with pytest.raises(NotAllowed, match="has failed"):
            async with lease.transaction() as connection:
                await connection.execute(TELL, [namespace, 1])
                with pytest.raises(psycopg.Error):
                    await connection.execute("SELECT * FROM nowhere")
        with pytest.raises(NotAllowed, match="its own transaction"):
            async with lease.transaction() as connection:
                await connection.execute(TELL, [namespace, 2])
                await connection.execute("ROLLBACK")
        await lease.checkpoint("goes on")
    assert await steps_of(postgres_url, namespace) == []


async def test_i01_a_stale_holders_effects_are_rolled_back_with_its_step(
    ledger: Ledger, postgres_url: str, namespace: str
) -> None:
    with pytest.raises(LeaseLost):
        async with ledger.hold("r1") as lease, lease.transaction() as connection:
            await connection.execute(TELL, [namespace, 1])
            # Told to nobody, so the block goes on to its end.
            end = build.end(run="r1", how=How.EVICT, token=lease.token)
            assert (await ledger.store.commit(end)).verdict is Verdict.LANDED
    assert await steps_of(postgres_url, namespace) == []
    assert [row.seq for row in await ledger.store.tail("r1")] == [1]


@pytest.mark.parametrize("landed", [True, False])
async def test_a_lost_answer_to_commit_is_looked_up_and_never_sent_again(
    postgres_url: str, namespace: str, landed: bool
) -> None:
    async with (
        Proxy(postgres_url, word=b"COMMIT", passes=landed) as proxy,
        open_store(proxy.url, namespace=namespace) as store,
        Ledger(store, ttl=20) as ledger,
    ):
        await ledger.submit("k", None, id="r1")
        async with ledger.hold("r1") as lease:
            if landed:
                async with lease.transaction(value=1) as connection:
                    await connection.execute(TELL, [namespace, 1])
                assert lease.run.step == 1
            else:
                with pytest.raises(RolledBack, match="again"):
                    async with lease.transaction(value=1) as connection:
                        await connection.execute(TELL, [namespace, 1])
                assert lease.run.step == 0
            assert proxy.met == 1
            await lease.checkpoint("goes on")
            await lease.settle()
        run = await store.load("r1")
        assert run is not None
        assert verify_run(run, await store.tail("r1")).ok
    assert await steps_of(postgres_url, namespace) == ([1] if landed else [])


async def test_a_block_that_holds_a_row_for_three_ttl_costs_no_other_run(postgres_url: str, namespace: str) -> None:
    async with open_store(postgres_url, namespace=namespace) as store, Ledger(store, ttl=2) as ledger:
        for name in ("r1", "r2"):
            await ledger.submit("k", None, id=name)
        async with ledger.hold("r1") as slow, ledger.hold("r2") as other:
            async with slow.transaction(value=1) as connection:
                await connection.execute(TELL, [namespace, 1])
                await connection.execute("SELECT * FROM told WHERE run = %s FOR UPDATE", [namespace])
                with anyio.move_on_after(6):
                    while True:
                        await other.checkpoint("at work")
                        await anyio.sleep(0.2)
            assert (slow.run.step, other.live) == (1, True)
            await other.settle()
            await slow.settle()
    assert await steps_of(postgres_url, namespace) == [1]


async def test_other_stores_say_that_they_have_none() -> None:
    async with open_store("memory://") as store, Ledger(store, ttl=5) as ledger:
        await ledger.submit("k", None, id="r1")
        async with ledger.hold("r1") as lease:
            with pytest.raises(NotAllowed, match="postgresql"):
                async with lease.transaction():
                    pass


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_effects_are_there_exactly_once_however_often_their_process_is_killed(
    ledger: Ledger, postgres_url: str, namespace: str
) -> None:
    draw = random.Random(3)
    kills = 0
    command = [sys.executable, str(TELLER), postgres_url, namespace]
    while True:
        process = await anyio.open_process(command, stderr=None, env={**os.environ})
        assert process.stdout is not None
        at_work = draw.randrange(3, 8)
        seen = b""
        try:
            with anyio.fail_after(60):
                # Killed at some step of its own, a little after it said that the step is about to end.
                while seen.count(b"\n") < at_work:
                    seen += await process.stdout.receive()
            await anyio.sleep(draw.random() * 0.01)
            process.send_signal(signal.SIGKILL)
            kills += 1
        except anyio.EndOfStream:
            pass
        await process.wait()
        await process.aclose()
        run = await ledger.store.load("r1")
        assert run is not None
        assert await steps_of(postgres_url, namespace) == list(range(run.step)), "a row for each step, no more, no less"
        if run.status is Status.COMPLETED:
            break
        if run.status is Status.QUARANTINED:
            await ledger.release("r1")
    assert kills >= 2
    assert await steps_of(postgres_url, namespace) == list(range(STEPS))
    assert verify_run(run, await ledger.store.tail("r1", limit=1000)).ok


async def test_i21_a_block_that_is_given_up_before_it_begins_gives_its_connection_back(
    start_postgres: StartPostgres,
) -> None:
    server = start_postgres()
    async with open_store(f"{server.url}?pool=1") as store:

        async def begun() -> int:
            assert isinstance(store, Transactional)
            async with store.transaction() as guarded:
                return int(guarded.connection.info.backend_pid)

        first = await begun()
        server.freeze()
        try:
            with anyio.move_on_after(0.2) as given_up:
                await begun()
            assert given_up.cancelled_caught
        finally:
            server.thaw()
        second = await begun()
        server.restart()
        assert len({first, second, await begun()}) == 3, "a dead one of the pool is not given out"
