"""Real processes on one SQLite file: they hammer it, are killed in the middle of it, fork over it, wake each other."""

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from stores.changes import claim
from stores.test_sqlite_file import at
from tenure.core import build
from tenure.core.canonical import digest
from tenure.core.run import Run
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.stores import open_store

PROGRAMS = Path(__file__).with_name("sqlite_programs.py")
RUNS = 4


@contextmanager
def started(name: str, path: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own, dead when the block ends."""
    command = [sys.executable, str(PROGRAMS), name, f"sqlite:///{path}", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """All that a program said, which must have ended well."""
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next thing that a program says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr is not None else ""
    found: dict[str, Any] = json.loads(line)
    return found


async def _whole(store: Store, run_id: str) -> tuple[Run, dict[int, str]]:
    """A run whose journal explains its record, and the digests of its rows."""
    run = await store.load(run_id)
    assert run is not None
    rows = await store.tail(run_id, limit=100_000)
    assert verify_run(run, rows).ok, verify_run(run, rows)
    return run, {row.seq: row.digest for row in rows}


def test_b100_i02_i06_two_processes_on_one_file_lose_nothing_and_repeat_no_token(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    anyio.run(_create, path)
    with started("hammer", path, "p", 25, RUNS) as one, started("hammer", path, "q", 25, RUNS) as two:
        said = [*said_by(one), *said_by(two)]
    tokens: dict[str, list[int]] = defaultdict(list)
    landed: dict[str, dict[int, str]] = defaultdict(dict)
    for line in said:
        if "token" in line:
            tokens[line["run"]].append(line["token"])
        else:
            assert line["seq"] not in landed[line["run"]], "two processes were told that they wrote the same commit"
            landed[line["run"]][line["seq"]] = line["head"]
    anyio.run(_check_hammered, path, tokens, landed)


async def _create(path: Path) -> None:
    async with at(path) as store:
        for number in range(RUNS):
            await store.commit(build.create(run=f"run-{number}", kind="k", value=1))


async def _check_hammered(path: Path, tokens: dict[str, list[int]], landed: dict[str, dict[int, str]]) -> None:
    async with at(path) as store:
        for number in range(RUNS):
            run, rows = await _whole(store, f"run-{number}")
            assert landed[run.id] == {seq: head for seq, head in rows.items() if seq > 1}
            assert len(tokens[run.id]) == len(set(tokens[run.id])) == 50
            # The grant log is in the order of granting: its tokens rise, and it is the end of what was said.
            logged = [line.token for line in run.grants]
            assert logged == sorted(tokens[run.id])[-len(logged) :]
            assert run.ordinal == 50


@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [1, 20, 35, 60, 90])
def test_i08_a_process_killed_among_its_commits_leaves_all_or_nothing_of_each(
    tmp_path: Path, acknowledged: int
) -> None:
    path = tmp_path / "t.db"
    with started("victim", path, 8) as process:
        said = [line_of(process) for _ in range(acknowledged)]
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
        assert process.stdout is not None
        said += [json.loads(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    told: dict[str, dict[int, str]] = defaultdict(dict)
    for line in said:
        told[line["run"]][line["seq"]] = line["head"]
    anyio.run(_check_victims, path, told)


async def _check_victims(path: Path, told: dict[str, dict[int, str]]) -> None:
    async with at(path) as store:
        for number in range(8):
            run_id = f"run-{number}"
            if run_id not in told and await store.load(run_id) is None:
                continue
            run, rows = await _whole(store, run_id)
            assert told[run_id].items() <= rows.items(), "an acknowledged commit is gone"
            assert run.last_seq - max(told[run_id], default=1) <= 1, "one was in flight at most"
            consumed = [item.consumed for item in await store.inbox(run_id)]
            assert consumed[: run.step] == [True] * run.step
            assert not any(consumed[run.step :])
            for seq in range(2, run.last_seq + 3):
                found = await store.blob(run_id, digest(f"{run_id} {seq}".encode()))
                assert (found is not None) == (seq <= run.last_seq)
            # And it goes on: nobody is in the way.
            assert (await store.commit(claim(run_id))).why == ("held" if run.nonce else None)


@pytest.mark.parametrize("what", ["save", "suspend", "complete"])
def test_b073_i08_a_commit_cut_at_any_statement_has_landed_whole_or_not_at_all(tmp_path: Path, what: str) -> None:
    with started("cut", tmp_path / "t.db", what) as process:
        said = said_by(process)
    deaths = [line for line in said if line["died"]]
    assert len(deaths) >= 6, "BEGIN, facts, record, last row, record, row, blob, COMMIT"
    assert [line["landed"] for line in deaths] == [False] * len(deaths)
    assert said[-1] == {"at": len(said), "died": False, "landed": True}


def test_a_store_opened_before_a_fork_is_refused_in_the_child_and_works_on_in_the_parent(tmp_path: Path) -> None:
    with started("fork", tmp_path / "t.db") as process:
        assert said_by(process) == [{"child": 0}, {"parent": "closed"}]
    with started("unopened", tmp_path / "u.db") as process:
        assert said_by(process) == [{"child": 0}]


@pytest.mark.parametrize("by", ["a change", "a wake alone"])
async def test_another_process_is_woken_within_moments(tmp_path: Path, by: str) -> None:
    path = tmp_path / "t.db"
    async with at(path) as store:
        with started("wait", path, "due") as process:
            assert await anyio.to_thread.run_sync(line_of, process) == {"quiet": False}
            assert await anyio.to_thread.run_sync(line_of, process) == {"waiting": True}
            if by == "a change":
                await store.commit(build.create(run="a", kind="k", value=1))
            else:
                await store.wake("due")
            said = await anyio.to_thread.run_sync(said_by, process)
    assert said[0]["woken"]
    assert said[0]["after_s"] < 5


def test_i19_a_file_that_was_open_at_a_fork_is_refused_in_the_child_which_would_lose_what_it_writes(
    tmp_path: Path,
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "t.db")
    linked, elsewhere = (f"sqlite:///{tmp_path}/{name}.db" for name in ("link", "other"))
    with started("anew", tmp_path / "t.db", linked, elsewhere) as process:
        assert said_by(process) == [{"open": [3, 3, 0]}, {"closed": [0, 0, 0]}]


async def test_opening_a_file_that_is_open_drops_no_lock_of_the_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    program = (
        "import anyio, sys\n"
        "from tenure import open_store\n"
        "async def main():\n"
        f"    async with open_store({url!r}) as store:\n"
        "        await store.raise_ttl(1000)\n"
        "anyio.run(main)\n"
    )
    async with open_store(url) as store, store.beside() as other:
        await store.raise_ttl(1000)
        async with store.beside():
            pass
        # Whoever closes last takes the log away. A process that does not see this one's locks takes itself for that.
        await anyio.run_process([sys.executable, "-c", program])
        assert (tmp_path / "t.db-wal").exists(), "somebody else still reads it"
        await other.raise_ttl(2000)
        assert (await store.facts()).max_ttl_ms == 2000
