"""Settled runs go when they have outlived their time, and only those."""

import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from cli.kit import Writer
from tenure import ActiveRun, App, Store, leader, open_store
from tenure.clock import ManualClock
from tenure.core import build
from tenure.core.run import Status
from tenure.errors import NotAllowed
from tenure.retention import outlived, prune, retention
from worker.kit import opened, until, working

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    async with open_store("memory://", clock=clock) as store:
        yield store


async def settle(store: Store, run_id: str, status: Status) -> None:
    writer = Writer(store)
    await writer.create(run_id)
    await writer.commit(await writer.claim(run_id), status=status, blobs=[b"result"])


async def ids(store: Store) -> set[str]:
    return {run.id for run in (await store.find(limit=1000)).runs}


async def test_only_what_has_outlived_its_time_is_deleted(store: Store, clock: ManualClock) -> None:
    for status in (Status.COMPLETED, Status.FAILED):
        await settle(store, f"old-{status.value}", status)
    writer = Writer(store)
    await writer.create("late")
    await writer.create("queued")
    clock.advance(ms=7 * DAY_MS)
    await writer.commit(await writer.claim("late"), status=Status.COMPLETED)  # made long ago, settled now
    await settle(store, "new-completed", Status.COMPLETED)
    kept = retention({"completed": timedelta(days=7)})
    assert [[run.id for run in runs] async for runs in outlived(store, kept)] == [["old-completed"]]
    assert await prune(store, kept, breath_s=0) == 1
    assert await ids(store) == {"old-failed", "late", "queued", "new-completed"}
    assert await prune(store, kept, breath_s=0) == 0
    clock.advance(ms=7 * DAY_MS)
    assert await prune(store, kept, breath_s=0) == 2
    assert await ids(store) == {"old-failed", "queued"}
    assert await store.tail("old-completed") == []


async def test_children_stay_until_their_parent_has_settled(store: Store, clock: ManualClock) -> None:
    """Else a parent that wakes late would have them done again."""
    writer = Writer(store)
    await store.commit(build.create(run="parent", kind="k", value=1))
    for name in ("parent.a", "parent.b"):
        await store.commit(build.create(run=name, kind="k", value=1, parent="parent"))
        await writer.commit(await writer.claim(name), status=Status.COMPLETED)
    clock.advance(ms=7 * DAY_MS)
    kept = retention({"completed": 1})
    assert await prune(store, kept, breath_s=0) == 0
    await writer.commit(await writer.claim("parent"), status=Status.COMPLETED)
    clock.advance(ms=1000)
    assert await prune(store, kept, breath_s=0) == 3
    assert await ids(store) == set()


async def test_a_backlog_goes_page_by_page(store: Store, clock: ManualClock) -> None:
    for number in range(450):
        await settle(store, f"r{number}", Status.CANCELLED if number % 9 == 0 else Status.COMPLETED)
    clock.advance(ms=1)
    turns = []
    assert await prune(store, retention({"completed": 0}), go_on=lambda: turns.append(1), breath_s=0) == 400
    assert len(turns) >= 2
    assert len(await ids(store)) == 50


@pytest.mark.parametrize("given", [{"queued": 1}, {"done": 1}, {"completed": -1}, {"failed": timedelta(days=-1)}])
def test_what_is_no_settled_status_or_no_time_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(NotAllowed, match=r"is no status of a settled run|at least 0 s"):
        retention(given)


async def test_the_leader_deletes_what_has_outlived_its_time() -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], input: None) -> None:
        return None

    async with opened() as ledger:
        await settle(ledger.store, "done", Status.COMPLETED)
        await settle(ledger.store, "bad", Status.FAILED)
        async with working(app, ledger, retention={"completed": 0, "cancelled": 0}):
            await until(lambda: _gone(ledger.store, "done"), seconds=60)
        assert await ids(ledger.store) == {"bad"}


async def _gone(store: Store, run_id: str) -> bool:
    return await store.load(run_id) is None


@pytest.mark.parametrize("took_s, pause_s", [(0.0, 60.0), (5.0, 55.0), (6.0, 54.0), (30.0, 270.0)])
def test_a_repair_pass_over_many_runs_takes_a_tenth_of_the_time_at_most(took_s: float, pause_s: float) -> None:
    assert leader.pause_s(took_s) == pause_s


async def test_a_fleet_is_told_by_the_command_how_long_to_keep(tmp_path: Path) -> None:
    (tmp_path / "its.py").write_text("from tenure import App\napp = App()\n@app.kind('k')\nasync def k(run, x): ...\n")
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    command = [sys.executable, "-m", "tenure", "--store", url, "worker", "its:app", "--processes", "1"]
    async with open_store(url) as store:
        await settle(store, "done", Status.COMPLETED)
        await settle(store, "bad", Status.FAILED)
        kept = ["--retain", "completed=0s", "--retain", "cancelled=1d"]
        with subprocess.Popen([*command, *kept], cwd=tmp_path) as fleet:  # noqa: ASYNC220 - a real fleet
            try:
                await until(lambda: _gone(store, "done"), seconds=60)
            finally:
                fleet.terminate()
                assert fleet.wait(timeout=60) == 0
        assert await ids(store) == {"bad"}
