"""What the SQLite store does with the file it is given: it opens it or says what to do, and never begins anew."""

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from stores.changes import claim
from tenure.core import build
from tenure.core.run import Answer, Run, Verdict
from tenure.errors import (
    CorruptRecord,
    InvalidUrl,
    NotAllowed,
    StoreTooNew,
    StoreUnsafe,
    TenureError,
)
from tenure.store import Diagnosable, Durability, Where
from tenure.stores import open_store
from tenure.stores._sqlite_host import Host
from tenure.stores._sqlite_open import SCHEMA
from tenure.stores.sqlite import SqliteStore, open_url


def at(path: Path, **more: Any) -> SqliteStore:
    """The store over a file; more goes to the opener."""
    options = {"namespace": "default", "durability": None, "allow": (), "clock": None, "options": {}} | more
    return open_url(f"sqlite:///{path}", **options)


async def refusal(store: SqliteStore) -> TenureError:
    """The error that opening raises."""
    with pytest.raises(TenureError) as caught:
        async with store:
            pass
    return caught.value


async def new_run(store: SqliteStore, run_id: str = "a") -> Answer:
    return await store.commit(build.create(run=run_id, kind="k", value=1))


async def held(store: SqliteStore, run_id: str = "a", *, ttl_ms: int = 600_000) -> Run:
    """The record of a run that was created and claimed."""
    await new_run(store, run_id)
    answer = await store.commit(claim(run_id, ttl_ms=ttl_ms))
    assert answer.verdict is Verdict.LANDED
    assert answer.run is not None
    return answer.run


def query(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://rel.db", "sqlite://h/rel.db"]
)
def test_a_url_without_a_file_is_refused_and_says_how_to_write_one(url: str) -> None:
    with pytest.raises(InvalidUrl, match=r"sqlite:////absolute\.db"):
        open_store(url)


@pytest.mark.parametrize("query", ["busy_timeout=3", "busy_timeout_ms=0", "busy_timeout_ms=soon"])
def test_an_option_with_a_typo_does_not_pass_for_a_setting(query: str) -> None:
    with pytest.raises(InvalidUrl, match="busy_timeout_ms"):
        open_store(f"sqlite:///a.db?{query}")


@pytest.mark.parametrize("level", [Durability.MEMORY, Durability.REPLICATED, Durability.REPLICATED_DISK])
def test_i09_a_level_that_one_file_cannot_reach_is_refused(level: Durability) -> None:
    with pytest.raises(StoreUnsafe, match="local and disk"):
        open_store("sqlite:///a.db", durability=level)


async def test_a_relative_url_makes_its_folder_private_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///.tenure/with%20space.db?namespace=n") as store:
        assert store.namespace == "n"
        assert (await store.commit(build.create(run="a", kind="k", value=1))).ok
    assert (tmp_path / ".tenure" / "with space.db").stat().st_size > 0
    assert (tmp_path / ".tenure").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("level, synchronous", [(None, 2), ("disk", 2), ("local", 1)])
async def test_i09_acknowledged_means_flushed_unless_local_is_asked_for(
    tmp_path: Path, level: str | None, synchronous: int
) -> None:
    async with at(tmp_path / "t.db", durability=Durability(level) if level else None) as store:
        found = await store._written(lambda t: t.connection.execute("PRAGMA synchronous").fetchone())
        mode = await store._written(lambda t: t.connection.execute("PRAGMA journal_mode").fetchone())
        assert (found, mode, store.level) == ((synchronous,), ("wal",), level or "disk")


async def test_two_namespaces_of_one_file_do_not_see_each_other(tmp_path: Path) -> None:
    async with at(tmp_path / "t.db") as one, at(tmp_path / "t.db", namespace="two") as two:
        assert (await new_run(one)).verdict is Verdict.LANDED
        assert (await new_run(two)).verdict is Verdict.LANDED
        await one.raise_ttl(1000)
        assert (await two.facts()).max_ttl_ms == 0
        assert [hint.run for hint in await two.due(["k"])] == ["a"]


async def test_a_store_is_used_while_open_and_not_opened_twice(tmp_path: Path) -> None:
    store = at(tmp_path / "t.db")
    with pytest.raises(NotAllowed, match="async with"):
        await store.load("a")
    async with store:
        with pytest.raises(NotAllowed, match="beside"):
            await store.__aenter__()
    with pytest.raises(NotAllowed, match="async with"):
        await store.load("a")
    async with store:
        assert await store.load("a") is None


async def test_i19_a_newer_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with at(path) as store:
        await new_run(store)
    query(path, "PRAGMA user_version = 7")
    before = path.read_bytes()
    error = await refusal(at(path))
    assert isinstance(error, StoreTooNew)
    assert "schema 7" in error.message
    assert f"up to {SCHEMA}" in error.message
    assert path.read_bytes() == before


async def test_a_process_that_has_the_file_open_stops_when_a_newer_one_migrates_it(tmp_path: Path) -> None:
    async with at(tmp_path / "t.db") as store:
        await new_run(store)
        query(tmp_path / "t.db", "UPDATE file SET schema = 2")
        with pytest.raises(StoreTooNew):
            await new_run(store, "b")
        with pytest.raises(StoreTooNew):
            await store.load("a")


@pytest.mark.parametrize("content", [b"hello, this is a letter\n" * 400, b"SQLite format 3\x00" + b"\xff" * 4080])
async def test_i26_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "letter.db"
    path.write_bytes(content)
    error = await refusal(at(path))
    assert str(path) in error.message
    assert path.read_bytes() == content


async def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    query(path, "CREATE TABLE theirs (x)")
    error = await refusal(at(path))
    assert isinstance(error, StoreUnsafe)
    assert "another program" in error.message
    assert query(path, "SELECT name FROM sqlite_schema") == [("theirs",)]


async def _look(path: Path) -> tuple[int, str]:
    """How many runs a listing shows, or what was said instead."""
    try:
        async with at(path) as store:
            page = await store.find(Where(), limit=100)
            return len(page.runs) + len(page.corrupt), ""
    except (StoreUnsafe, CorruptRecord) as error:
        return -1, error.message


async def test_i26_a_damaged_file_never_passes_for_an_empty_store(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with at(path) as store:
        for number in range(50):
            await new_run(store, f"run-{number}")
    whole = path.read_bytes()
    refused = 0
    for page in range(len(whole) // 4096):
        path.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        seen, said = await _look(path)
        refused += said != ""
        assert seen == 50 or str(path) in said, page
    assert refused >= 3


async def test_i26_a_file_that_was_cut_to_nothing_beside_its_log_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.touch()
    (tmp_path / "t.db-wal").write_bytes(b"x" * 100)
    error = await refusal(at(path))
    assert isinstance(error, StoreUnsafe)
    assert (tmp_path / "t.db-wal").read_bytes() == b"x" * 100


async def test_a_folder_and_a_path_below_a_file_are_refused_by_name(tmp_path: Path) -> None:
    assert "is a folder" in (await refusal(at(tmp_path))).message
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'}" in (await refusal(at(tmp_path / "file" / "t.db"))).message


MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs {0}/mem tmpfs rw 0 0
server:/x {0}/net nfs4 rw 0 0
me@host: {0}/a\\040b fuse.sshfs rw 0 0
/dev/vdb {0}/net/local xfs rw 0 0
"""


@pytest.mark.parametrize("folder", ["net", "net/deep/er", "a b"])
async def test_i19_a_network_file_system_is_refused_unless_allowed_by_name(tmp_path: Path, folder: str) -> None:
    host = Host(boot="b", mounts=MOUNTS.format(tmp_path))
    path = tmp_path / folder / "t.db"
    error = await refusal(at(path, host=host))
    assert isinstance(error, StoreUnsafe)
    assert 'allow=("network-fs",)' in error.message
    assert not path.parent.exists()
    async with at(path, host=host, allow=("network-fs",)) as store:
        assert (await new_run(store)).ok


async def test_i19_only_the_innermost_mount_counts(tmp_path: Path) -> None:
    host = Host(boot="b", mounts=MOUNTS.format(tmp_path))
    for folder in ("net/local", "network", "elsewhere"):
        async with at(tmp_path / folder / "t.db", host=host) as store:
            assert store.level is Durability.DISK


async def test_i09_disk_is_not_claimed_where_files_live_in_memory(tmp_path: Path) -> None:
    host = Host(boot="b", mounts=MOUNTS.format(tmp_path))
    async with at(tmp_path / "mem" / "t.db", host=host) as store:
        assert store.level is Durability.LOCAL
    error = await refusal(at(tmp_path / "mem" / "t.db", host=host, durability=Durability.DISK))
    assert isinstance(error, StoreUnsafe)


async def test_it_says_how_it_is_set_and_what_to_mind(tmp_path: Path) -> None:
    async with at(tmp_path / "t.db") as store:
        assert isinstance(store, Diagnosable)
        assert {(one.name, one.level) for one in await store.diagnose()} == {("server", "ok"), ("journal-mode", "ok")}
    host = Host(boot="", mounts=MOUNTS.format(tmp_path))
    path = tmp_path / "net" / "t.db"
    async with at(path, host=host, allow=("network-fs",), durability=Durability.LOCAL) as store:
        found = {one.name: one.level for one in await store.diagnose() if one.fix}
        assert found == dict.fromkeys(("file-system", "synchronous", "boot"), "warning")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


AS_NOBODY = """
import os, sys, anyio, tenure.stores.sqlite
from tenure.errors import StoreUnsafe
from tenure.stores import open_store

async def main():
    if os.geteuid() == 0:
        os.setgid(65534); os.setuid(65534)
    try:
        async with open_store("sqlite:///" + sys.argv[1]):
            print("opened")
    except StoreUnsafe as error:
        print(error.message)

anyio.run(main)
"""


@pytest.mark.parametrize("what", ["file", "folder", "missing"])
def test_i19_what_may_not_be_written_is_refused_at_start(open_folder: Path, what: str) -> None:
    path = open_folder / ("sub" if what == "missing" else "") / "t.db"
    if what != "missing":
        anyio.run(_fill, path)
    for each in open_folder.iterdir():
        each.chmod(0o444 if what == "file" else 0o666)
    open_folder.chmod(0o777 if what == "file" else 0o555)
    program = [sys.executable, "-c", AS_NOBODY, str(path)]
    said = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout
    open_folder.chmod(0o755)
    assert str(open_folder) in said
    assert "may" in said or "cannot be made" in said


async def _fill(path: Path) -> None:
    async with at(path) as store:
        await new_run(store)
