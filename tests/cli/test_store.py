"""`tenure store`: runs to a file and back, whatever the file or the store is like; another history."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

import anyio
import pytest

from cli.kit import Console, Writer, fill
from tenure.core.run import How
from tenure.store import Store
from tenure.stores import open_store

IDS = {"done", "held", "bad", "asks", "poison", "next"}


@pytest.fixture
def exported(filled: Console, tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl"
    assert filled("store", "export", "--file", str(path)).code == 0
    return path


@pytest.fixture
def empty(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'other.db'}"


def counts(console: Console, path: Path, url: str, *, code: int = 0) -> dict[str, int]:
    said = console("store", "import", str(path), "-o", "json", url=url)
    assert said.code == code, said
    found: dict[str, int] = said.json
    return found


def ids_in(console: Console, url: str) -> set[str]:
    return {run["id"] for run in console("runs", "-o", "json", url=url).json}


def test_every_run_of_a_store_arrives_in_another_once(filled: Console, exported: Path, empty: str) -> None:
    assert counts(filled, exported, empty) == {"imported": 6, "already": 0, "conflict": 0, "damaged": 0}
    assert counts(filled, exported, empty) == {"imported": 0, "already": 6, "conflict": 0, "damaged": 0}
    assert ids_in(filled, empty) == IDS
    statuses = {run["id"]: run["status"] for run in filled("runs", "-o", "json", url=empty).json}
    assert statuses["held"] == "queued", "who held it where it comes from holds nothing here"
    assert statuses["poison"] == "quarantined"
    assert "imported" in filled("show", "held", url=empty).out


def test_what_is_exported_can_be_narrowed(filled: Console, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"

    def named() -> set[str]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        return {line["end"] for line in lines if "end" in line}

    assert filled("store", "export", "--run", "done", "--run", "bad", "--file", str(path)).code == 0
    assert named() == {"done", "bad"}
    assert filled("store", "export", "--status", "completed,failed", "--file", str(path)).code == 0
    assert named() == {"done", "bad"}
    assert filled("store", "export", "--kind", "research", "--file", str(path)).code == 0
    assert named() == {"done", "held"}
    said = filled("store", "export", "--run", "nowhere", "--file", str(path))
    assert (said.code, "no run nowhere is in" in said.err) == (3, True)


def test_an_export_names_nobody_who_may_write(filled: Console, exported: Path) -> None:
    nonces = filled.do(_nonces)
    assert nonces
    text = exported.read_text()
    assert not [nonce for nonce in nonces if nonce in text]
    assert exported.stat().st_mode & 0o077 == 0, "it holds all that runs were given"


async def _nonces(store: Store) -> list[str]:
    return [run.nonce for run in (await store.find()).runs if run.nonce]


def test_another_run_under_the_same_id_is_named_and_the_rest_goes_on(
    filled: Console, exported: Path, empty: str
) -> None:
    assert filled("submit", "other", "1", "--id", "done", url=empty).code == 0
    said = filled("store", "import", str(exported), url=empty)
    assert said.code == 9
    assert "conflict: run done is in" in said.err
    assert said.out == "5 runs imported, 0 were there already, 1 conflict\n"
    assert ids_in(filled, empty) == IDS


def test_a_file_that_was_cut_off_is_named_and_what_is_whole_stays(filled: Console, exported: Path, empty: str) -> None:
    data = exported.read_bytes()
    lines = data.splitlines(keepends=True)
    second = [number for number, line in enumerate(lines) if b'{"end":' in line][1]
    torn = exported.with_name("torn.jsonl")
    torn.write_bytes(b"".join(lines[: second + 2])[:-20])
    said = filled("store", "import", str(torn), url=empty)
    assert said.code == 6
    assert f"ends in line {second + 2}, in the middle; what is before it is whole (2 runs)" in said.err
    assert len(ids_in(filled, empty)) == 2
    torn.write_bytes(b"".join(lines[:-1]))
    said = filled("store", "import", str(torn), url=empty)
    assert (said.code, f"ends after line {len(lines) - 1}" in said.err) == (6, True)
    assert counts(filled, exported, empty) == {"imported": 0, "already": 6, "conflict": 0, "damaged": 0}


def test_lines_that_are_missing_or_were_changed_are_found(filled: Console, exported: Path, empty: str) -> None:
    lines = exported.read_bytes().splitlines(keepends=True)
    changed = exported.with_name("changed.jsonl")
    at = next(number for number, line in enumerate(lines) if b'{\\"found\\":1}' in line)
    changed.write_bytes(b"".join([*lines[:at], lines[at].replace(b'found\\":1', b'found\\":2'), *lines[at + 1 :]]))
    said = filled("store", "import", str(changed), url=empty)
    assert (said.code, "damaged: run done is not whole" in said.err) == (6, True)
    assert ids_in(filled, empty) == IDS - {"done"}
    blob = next(number for number, line in enumerate(lines) if line.startswith(b'{"blob"'))
    changed.write_bytes(b"".join([*lines[:blob], *lines[blob + 1 :]]))
    said = filled("store", "import", str(changed), url=empty)
    assert (said.code, "damaged: run done in the file is not what was exported" in said.err) == (6, True)
    starts = [number for number, line in enumerate(lines) if line.startswith(b'{"run"')]
    changed.write_bytes(b"".join([*lines[: starts[1]], *lines[starts[2] :]]))
    said = filled("store", "import", str(changed), url=empty)
    assert (said.code, "the file holds 5 of 6 runs" in said.err) == (6, True)


@pytest.mark.parametrize("content", ["", "no json\n", '{"some":"thing"}\n', "[]\n"])
def test_what_is_no_export_is_refused(console: Console, tmp_path: Path, empty: str, content: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    said = console("store", "import", str(path), url=empty)
    assert (said.code, "name a file that `tenure store export` wrote" in said.err) == (2, True)
    said = console("store", "import", str(tmp_path / "nowhere"), url=empty)
    assert (said.code, "cannot be read" in said.err) == (2, True)


def test_an_export_of_a_later_format_is_refused_by_name(console: Console, tmp_path: Path, empty: str) -> None:
    path = tmp_path / "x"
    path.write_text('{"tenure":"export","format":2,"schema":1}\n')
    assert console("store", "import", str(path), url=empty).code == 8


def test_a_damaged_run_is_named_and_the_others_are_exported(console: Console, tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "runs.jsonl"
    console.url = url
    console.do(fill)
    connection = sqlite3.connect(tmp_path / "a.db")
    with connection:
        connection.execute("UPDATE run SET record = 'no record' WHERE id = 'bad'")
        connection.execute("UPDATE journal SET data = CAST(replace(CAST(data AS TEXT), 'found', 'f0und') AS BLOB)")
    connection.close()
    said = console("store", "export", "--file", str(path))
    assert said.code == 6
    assert "the record of run bad cannot be read" in said.err
    assert "run done is not whole" in said.err
    found = {json.loads(line)["end"] for line in path.read_text().splitlines() if line.startswith('{"end"')}
    assert found == IDS - {"bad", "done"}


def test_a_file_that_cannot_be_written_is_named_and_nothing_of_it_is_left(filled: Console, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("the backup of yesterday")
    said = filled("store", "export", "--file", "/dev/full/x")
    assert (said.code, "could not be written" in said.err) == (2, True)
    assert (tmp_path / "old").read_text() == "the backup of yesterday"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_new_history_makes_every_grant_one_of_the_past(console: Console, tmp_path: Path) -> None:
    console.url = f"sqlite:///{tmp_path / 'a.db'}"

    async def begin(store: Store) -> object:
        writer = Writer(store)
        await writer.create("r1")
        return await writer.claim("r1")

    grant = console.do(begin)
    said = console("store", "new-history")
    assert (said.code, "is in a new history" in said.out) == (0, True)

    async def refused(store: Store) -> str:
        from tenure.core.run import Renew

        answer = await store.commit(Renew(grant=grant))
        await Writer(store).end(grant, How.CANCEL)
        return str(answer.verdict)

    assert console.do(refused) == "history"


def test_an_import_that_is_killed_goes_on_where_it_stopped(console: Console, tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    console.url, path = source, tmp_path / "runs.jsonl"

    async def make(store: Store) -> None:
        for number in range(150):
            await Writer(store).create(f"run-{number}", value="x" * 500)

    console.do(make)
    assert console("store", "export", "--file", str(path)).code == 0
    lines = path.read_bytes().splitlines(keepends=True)
    command = [sys.executable, "-m", "tenure", "--store", target, "store", "import", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(lines[:361]))  # 120 runs, of which batches of 50 are sent
        process.stdin.flush()
        landed = anyio.run(_some_landed, target)
        os.kill(process.pid, signal.SIGKILL)
        process.stdin.close()
    assert 0 < landed < 150
    found = counts(console, path, target)
    assert found["imported"] + found["already"] == 150
    assert found["already"] >= landed
    assert len(console("runs", "--limit", "0", "-o", "jsonl", url=target).lines) == 150


async def _some_landed(url: str) -> int:
    with anyio.fail_after(60):
        while True:
            async with open_store(url) as store:
                if found := len((await store.find()).runs):
                    return found
            await anyio.sleep(0.05)


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"], ["show", "x"], ["timeline", "x"], ["doctor"], ["cancel", "x", "--reason", "r"], ["retry", "x"],
        ["store", "new-history"], ["store", "export", "--file", "-"],
    ],
)  # fmt: skip
def test_a_command_that_looks_makes_no_store(console: Console, tmp_path: Path, arguments: list[str]) -> None:
    said = console(*arguments, url=f"sqlite:///{tmp_path / 'typo' / 'x.db'}")
    assert said.code in (3, 8)
    assert "no store is at" in said.err + said.out
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_the_answer_is_told_in_a_sentence(console: Console, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / uuid.uuid4().hex}"
    assert console("submit", "k", "1", url=url).code == 0
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "tenure", "--store", url, "runs"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("tenure: the answer could not be written (No space left on device)")
    assert len(done.stderr.splitlines()) == 1


def test_settled_runs_are_pruned_by_status_and_age(filled: Console) -> None:
    said = filled("runs", "prune", "--status", "completed,failed", "--older-than", "0s", "--dry-run")
    assert {line.split()[0] for line in said.out.splitlines()} == {"done", "bad"}
    assert (said.code, said.err) == (0, "2 runs would be deleted\n")
    assert filled("runs", "prune", "--status", "completed", "--older-than", "1d").out == "0 runs deleted\n"
    listed = filled("runs", "prune", "--status", "completed", "--older-than", "0s", "--dry-run", "-o", "jsonl")
    assert [run["id"] for run in listed.lines] == ["done"]
    said = filled("runs", "prune", "--status", "completed,failed", "--older-than", "0s", "-o", "json")
    assert said.json == {"deleted": 2}
    assert ids_in(filled, filled.url) == IDS - {"done", "bad"}
    said = filled("runs", "prune", "--status", "running", "--older-than", "0s")
    assert (said.code, "of a settled run" in said.err) == (2, True)
    assert filled("runs", "prune", "--status", "completed", "--older-than", "a week").code == 2
    assert "'0.5' has no unit" in filled("runs", "prune", "--status", "completed", "--older-than", "0.5").err
    assert filled("runs", "prune", "--older-than", "1d").code == 2


def test_a_retention_that_is_none_is_refused(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "its.py").write_text("from tenure import App\napp = App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for wrong in ("running=1d", "completed", "completed=soon"):
        said = console("worker", "its:app", "--retain", wrong, "--processes", "0")
        assert said.code == 2, said
