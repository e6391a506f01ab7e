"""Values in files: nobody reads half of one, one process at a time, and what is given up is named."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tenure import App, CorruptRecord, Ledger, NotAllowed, StoreUnavailable, StoreUnsafe, Worker
from tenure.active import ActiveRun
from tenure.core.run import Row, Run
from tenure.stores.files import FileValues
from tenure.stores.keyvalue import GIVEN_UP, KeyValueStore

WRITES = """
import sys, anyio
from tenure import Ledger
from tenure.stores.files import FileValues
from tenure.stores.keyvalue import KeyValueStore

async def main() -> None:
    async with KeyValueStore(FileValues(sys.argv[1])) as store, Ledger(store, ttl=30) as ledger:
        await ledger.submit("k", None, id=sys.argv[2])
        async with ledger.hold(sys.argv[2]) as lease:
            for number in range(100_000):
                seq = await lease.record(f"n{number}", "x" * 2000)
                print(number, flush=True)

anyio.run(main)
"""


def value_of(folder: Path, run_id: str) -> Path:
    (path,) = folder.glob(f"*%2F{run_id}.value")
    return path


async def read(folder: Path, run_id: str) -> tuple[Run | None, list[Row]]:
    async with KeyValueStore(FileValues(folder)) as store:
        return await store.load(run_id), await store.tail(run_id, limit=1_000_000)


@pytest.mark.slow
def test_m_ck08_a_process_killed_while_it_writes_leaves_whole_values(tmp_path: Path) -> None:
    for life in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES, str(tmp_path), f"r{life}"], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            told = [int(writer.stdout.readline()) for _ in range(5 + life)]
            writer.send_signal(signal.SIGKILL)
            told += [int(line) for line in writer.stdout.read().splitlines() if line.strip()]
        run, rows = anyio.run(read, tmp_path, f"r{life}")
        assert run is not None
        assert (run.last_seq, run.head) == (len(rows), rows[-1].digest)
        assert len(rows) >= 1 + len(told), "what was acknowledged is there"


def test_m_ck10_a_second_process_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with KeyValueStore(FileValues(tmp_path)):
            other = await anyio.run_process([sys.executable, "-c", WRITES, str(tmp_path), "r"], check=False)
            assert other.returncode != 0
            assert b"in use by another process" in other.stderr

    anyio.run(main)


async def test_a_store_that_compares_in_one_process_refuses_a_fork(tmp_path: Path) -> None:
    async with KeyValueStore(FileValues(tmp_path)) as store:
        store._pid = os.getpid() + 1
        with pytest.raises(NotAllowed, match="one process only"):
            await store.load("r")
        store._pid = os.getpid()


async def test_m_ck09_a_damaged_value_is_an_error_and_others_go_on(tmp_path: Path) -> None:
    async with KeyValueStore(FileValues(tmp_path)) as store, Ledger(store) as ledger:
        for name in ("good", "cut", "foreign"):
            await ledger.submit("k", name, id=name)
        cut, foreign = value_of(tmp_path, "cut"), value_of(tmp_path, "foreign")
        cut.write_bytes(cut.read_bytes()[:-20])
        foreign.write_bytes(b"")
        for name in ("cut", "foreign"):
            with pytest.raises(CorruptRecord):
                await store.load(name)
        page = await store.find()
        assert ([run.id for run in page.runs], page.corrupt) == (["good"], ("cut", "foreign"))
        assert [hint.run for hint in await store.due(["k"])] == ["good"]


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreUnavailable, StoreUnsafe), match="file"):
        async with KeyValueStore(FileValues(tmp_path / "file" / "folder")):
            pass


async def test_i27_is_given_up_each_step_writes_the_whole_run_again(tmp_path: Path) -> None:
    assert "I27" in GIVEN_UP
    async with KeyValueStore(FileValues(tmp_path)) as store, Ledger(store) as ledger:
        await ledger.submit("k", None, id="r")
        sizes = []
        async with ledger.hold("r") as lease:
            for number in range(20):
                await lease.checkpoint({"number": number, "text": "x" * 500})
                sizes.append(value_of(tmp_path, "r").stat().st_size)
        assert sizes[-1] > 10 * 500 * 1.3


async def test_a_worker_runs_on_files_and_another_life_goes_on(tmp_path: Path) -> None:
    app = App()
    calls: list[str] = []

    async def call(name: str) -> str:
        calls.append(name)
        return name

    @app.kind("two")
    async def two(run: ActiveRun[None], _: None) -> list[str]:
        return [await run.step(name, call, name) for name in ("a", "b")]

    async with KeyValueStore(FileValues(tmp_path)) as store, Ledger(store, ttl=5) as ledger:
        handle = await ledger.submit(two, None, id="r")
    async with (
        KeyValueStore(FileValues(tmp_path)) as store,
        Ledger(store, ttl=5) as ledger,
        Worker(app, ledger),
    ):
        assert await ledger.handle("r", two).result(timeout=60) == ["a", "b"]
    assert (calls, handle.id) == (["a", "b"], "r")


async def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    values = FileValues(tmp_path / "values")
    await values.open()
    shutil.rmtree(values.folder)
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await values.put("a", b"1", version=0)
    await values.aclose()
