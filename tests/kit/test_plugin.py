"""The plugin as its users meet it: a pytest of their own, in a folder far from this project's fixtures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from tenure import App, LeaseLost, Ledger, Status, TryLater, Worker
from tenure.testing import Fault, Order
from tenure.core.run import Commit

pytestmark = pytest.mark.anyio
app = App()


@pytest.fixture
def anyio_backend():
    return "asyncio"


@app.kind("later")
async def later(run, input):
    if run.lease.run.step == 0:
        await run.step("first", lambda: None)
        raise TryLater(after=2 * 24 * 3600)
    return "two days on"


async def test_the_ledger_writes_to_a_namespace_of_its_own(tenure_ledger, tenure_place):
    await tenure_ledger.submit("k", 1, id="r")
    assert (await tenure_ledger.load("r")).status is Status.QUEUED
    assert tenure_place.namespace.startswith("scratch-")


async def test_a_worker_is_woken_by_the_clock(tenure_store, tenure_clock):
    async with Ledger(tenure_store) as ledger, Worker(app, ledger, drain=1):
        handle = await ledger.submit("later", None, id="r")
        while (await handle.load()).step == 0 or (await handle.load()).status is not Status.QUEUED:
            await tenure_store.woken(["run:r"], timeout=0.05)
        tenure_clock.advance(days=2)
        assert await handle.result(timeout=60) == "two days on"


async def test_a_lost_reply_is_asked_again(tenure_faults):
    tenure_faults.orders.append(Order(fault=Fault.REPLY_LOST, match=lambda change: isinstance(change, Commit)))
    async with Ledger(tenure_faults) as ledger:
        await ledger.submit("k", 1, id="r")
        async with ledger.hold("r") as lease:
            await lease.checkpoint("kept")
    assert tenure_faults.orders[0].times == 0


async def test_what_dies_at_a_boundary_is_found_by_the_next(tenure_store, tenure_fuse):
    store = tenure_fuse(3)
    with store.dies():
        async with Ledger(store) as ledger:
            await ledger.submit("k", 1, id="r")
            async with ledger.hold("r") as lease:
                await lease.checkpoint("kept")
                await lease.checkpoint("never sent")
    async with Ledger(tenure_store) as ledger:
        assert (await ledger.load("r")).step == 1


def test_a_sync_test_opens_it_as_it_likes(tenure_place):
    import anyio

    async def main():
        async with tenure_place.open() as store:
            return await store.load("r")

    assert anyio.run(main) is None
"""


def run_pytest(folder: Path, *more: str) -> tuple[int, str]:
    (folder / "test_mine.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    # As in a fresh environment; where the plugin is installed as such, naming it once more does no harm.
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "anyio", "-p", "tenure.testing.plugin"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    command += ["-p", "no:cacheprovider", *more]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_fixtures_work_in_memory_and_on_a_file_and_leave_nothing_behind(tmp_path: Path) -> None:
    code, words = run_pytest(tmp_path)
    assert (code, words.count("5 passed")) == (0, 1), words
    code, words = run_pytest(tmp_path, "--tenure-store", f"SQLite:///{tmp_path}/t.db")
    assert (code, words.count("5 passed")) == (0, 1), words
    import sqlite3

    connection = sqlite3.connect(tmp_path / "t.db")
    counts = {t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("run", "space", "journal")}
    connection.close()
    assert counts == {"run": 0, "space": 0, "journal": 0}


@pytest.mark.slow
def test_the_fixtures_work_on_a_server_and_leave_nothing_behind(tmp_path: Path, redis8_url: str) -> None:
    code, words = run_pytest(tmp_path, "--tenure-store", redis8_url)
    assert code == 0, words
    assert "4 passed, 1 skipped" in words
    assert "this store's clock is that of its server" in words
    import redis

    with redis.Redis.from_url(redis8_url) as client:
        assert list(client.scan_iter("tenure:{scratch-*")) == []


@pytest.mark.slow
def test_the_fixtures_work_on_postgresql_and_leave_nothing_behind(tmp_path: Path, postgres_url: str) -> None:
    code, words = run_pytest(tmp_path, "--tenure-store", postgres_url)
    assert code == 0, words
    assert "4 passed, 1 skipped" in words
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        left = connection.execute("SELECT name FROM tenure.space WHERE name LIKE 'scratch-%'").fetchall()
    assert left == []
