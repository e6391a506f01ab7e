"""What the SQLite store does with content: a full disk, a locked file, damage, size, and text as it was."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stores.changes import claim, step
from stores.test_sqlite_file import at, new_run, query
from tenure.core import build
from tenure.core.run import Claim, Status, Verdict, Why
from tenure.errors import CorruptRecord, StoreTooNew, StoreUnavailable
from tenure.store import Refused, Where


async def test_a_full_disk_writes_nothing_and_says_so(tmp_path: Path) -> None:
    async with at(tmp_path / "t.db") as store:
        run = (await new_run(store)).run
        claimed = (await store.commit(claim("a"))).run
        assert run is not None
        assert claimed is not None
        used = await store._written(lambda t: t.connection.execute("PRAGMA page_count").fetchone()[0])
        await store._written(lambda t: t.connection.execute(f"PRAGMA max_page_count = {used}").fetchone())
        change = step(claimed, "x" * 20_000)
        with pytest.raises(StoreUnavailable, match="free space"):
            await store.commit(change)
        assert await store.load("a") == claimed
        assert len(await store.tail("a")) == 1
        await store._written(lambda t: t.connection.execute("PRAGMA max_page_count = 100000").fetchone())
        assert (await store.commit(change)).verdict is Verdict.LANDED


async def test_a_wake_up_that_cannot_be_written_fails_no_change_that_it_follows(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with at(path, options={"busy_timeout_ms": "60"}) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await store.wake("due")
            await store.tell_refused(Refused(run="a", owner="o", token=1, what="commit", why="taken_over"))
        assert await store.refused() == []


async def test_a_file_that_another_program_keeps_locked_is_unavailable_to_write_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with at(path, options={"busy_timeout_ms": "60"}) as store:
        await new_run(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answers = await store.commit_many([build.create(run=f"r{n}", kind="k", value=1) for n in range(20)])
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            assert "try again" in str(answers[0])
            assert (await store.load("a")) is not None
            assert len((await store.find()).runs) == 1
            other.execute("ROLLBACK")
        assert (await new_run(store, "r1")).verdict is Verdict.LANDED


async def test_i26_a_corrupt_record_is_set_aside_and_other_runs_go_on(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with at(path) as store:
        for run_id in ("a", "b", "c", "d"):
            await new_run(store, run_id)
        query(path, "UPDATE run SET record = '{not json' WHERE id = 'a'")
        query(path, "UPDATE run SET record = (SELECT record FROM run WHERE id = 'd') WHERE id = 'b'")
        query(path, "UPDATE run SET record = CAST(x'7bff' AS TEXT) WHERE id = 'c'")
        for run_id in ("a", "b", "c"):
            with pytest.raises(CorruptRecord) as caught:
                await store.load(run_id)
            assert caught.value.run_id == run_id
            for change in (claim(run_id), build.create(run=run_id, kind="k", value=1)):
                answer = await store.commit(change)
                assert (answer.verdict, answer.why, answer.run) == (Verdict.REFUSED, Why.CORRUPT, None)
        page = await store.find(Where(status=(Status.QUEUED,)))
        assert ([run.id for run in page.runs], sorted(page.corrupt)) == (["d"], ["a", "b", "c"])
        assert (await store.raw("a"), (await store.raw("d"))["id"]) == ({"record": "{not json"}, "d")
        # Claims have put the corrupt ones out of the way of what can be read.
        assert [hint.run for hint in await store.due(["k"], limit=1)] == ["d"]
        assert (await store.commit(claim("d"))).ok


async def test_i26_a_record_of_a_newer_schema_is_refused_by_name_and_stays_due_for_newer_workers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.db"
    async with at(path) as store:
        await new_run(store)
        query(path, "UPDATE run SET record = json_set(record, '$.schema', '9')")
        with pytest.raises(StoreTooNew, match="schema 9"):
            await store.load("a")
        with pytest.raises(StoreTooNew, match="schema 9"):
            await store.commit(claim("a"))
        assert [hint.run for hint in await store.due(["k"])] == ["a"]


@pytest.mark.parametrize("damage", ["DELETE FROM journal", "UPDATE journal SET data = x'00'"])
async def test_i16_a_journal_that_was_cut_or_edited_takes_no_commit(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "t.db"
    async with at(path) as store:
        await new_run(store)
        run = (await store.commit(claim("a"))).run
        assert run is not None
        query(path, damage)
        answer = await store.commit(step(run))
        assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.CORRUPT)
        assert await store.load("a") == run


def test_i27_what_a_step_writes_and_keeps_does_not_grow_with_the_run() -> None:
    bench = Path(__file__).parents[2] / "bench" / "bytes_per_step.py"
    said = subprocess.run(
        [sys.executable, str(bench), "--store", "sqlite"], capture_output=True, text=True, timeout=100, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("held") == 2


async def test_b103_a_nul_comes_back_as_it_was(tmp_path: Path) -> None:
    text = "before\x00after \\u0000 é"
    async with at(tmp_path / "t.db") as store:
        await store.commit(build.create(run="a", kind="k", value={"text": text}, tags={"t": text}))
        held = Claim(run="a", nonce="n", owner=text, ttl_ms=60_000)
        run = (await store.commit(held)).run
        assert run is not None
        await store.commit(step(run, text, blobs=[text.encode()]))
        async with store.beside() as other:
            found = await other.load("a")
            assert found is not None
            assert (found.tags["t"], found.owner) == (text, text)
            rows = await other.tail("a")
            assert rows[1].body == step(run, text, blobs=[text.encode()]).row.body
            assert [r.id for r in (await other.find(Where(owner=text, tags={"t": text}))).runs] == ["a"]
