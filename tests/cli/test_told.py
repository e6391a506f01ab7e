"""What people are told is true, and says what there is to name instead."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.kit import Console, Writer
from tenure import archive
from tenure.carry import bring
from tenure.cli.lines import SettingOnce
from tenure.core import canonical, journal
from tenure.core.run import Request, Run, Status
from tenure.store import Store
from tenure.stores import open_store


def test_who_is_told_that_a_lease_ended_had_one(filled: Console) -> None:
    queued = filled("evict", "next", "--reason", "stuck")
    assert (queued.code, queued.out) == (0, "next is queued, nobody held it: nothing was changed\n")
    held = filled("evict", "held")
    assert (held.code, held.out) == (0, "held has lost its lease and is queued\n")
    again = filled("release", "held")
    assert (again.code, again.out) == (0, "held is queued, it was not quarantined: nothing was changed\n")
    released = filled("release", "poison")
    assert (released.code, released.out) == (0, "poison is queued again\n")


def steps(*sizes: int) -> Callable[[Store], Coroutine[Any, Any, None]]:
    """Work that makes the run `r`: one commit for each size, which is its number of events, and ends a step."""

    async def made(store: Store) -> None:
        writer = Writer(store)
        await writer.create("r", value=1)
        grant = await writer.claim("r")
        for size in sizes:
            await writer.commit(grant, *[journal.event(journal.CHECKPOINT, value=n) for n in range(size)], step=1)
        await writer.commit(grant, journal.event(journal.RUN_END, status="failed"), status=Status.FAILED)

    return made


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["fork", "r", "--at", "3.7"], "commit 3 of run r holds events 3.0 to 3.2, there is no 3.7"),
        (["show", "r", "--at", "2.1"], "commit 2 of run r holds one event 2.0, there is no 2.1"),
        (["show", "r", "--at", "9.0"], "run r has 2 steps and comes to 4.0, there is no 9.0"),
        (["fork", "r", "--at", "9"], "run r has 2 steps and comes to 4.0, there is no 9"),
        (["retry", "r", "--from", "9"], "run r has 2 steps, it cannot begin at step 9; name 1 to 3"),
    ],
)
def test_a_place_that_is_not_there_is_told_with_those_that_are(
    console: Console, arguments: list[str], said: str
) -> None:
    console.do(steps(1, 3))
    found = console(*arguments)
    assert found.code == 2
    assert said in found.err
    assert console("retry", "r", "--from", "3").out == "r-retry-3\n"


def test_a_single_thing_is_no_plural(console: Console) -> None:
    console.do(steps(1))
    assert "run r has 1 step and" in console("fork", "r", "--at", "7").err
    assert "(3 commits, 3 events, 0 model requests, 0 blocks)" in console("verify", "r").out
    assert (
        "1 run would be deleted"
        in console("runs", "prune", "--status", "failed", "--older-than", "0s", "--dry-run").err
    )
    assert console("runs", "prune", "--status", "failed", "--older-than", "0s").out == "1 run deleted\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["runs", "prune", "--status", "running", "--older-than", "1d"], "'running' is no status of a settled run"),
        (["runs", "prune", "--status", "done", "--older-than", "1d"], "'done' is no status of a settled run"),
        (["worker", "json:loads", "--retain", "running=1d"], "'running' is no status of a settled run"),
        (["worker", "json:loads", "--retain", "completed"], "'completed' says no length of time"),
        (["worker", "json:loads", "--retain", "completed=7"], "'7' has no unit; write 7d for days"),
        (["signal", "held", "go", "--data", "{bad"], "what --data says is not JSON"),
        (["resolve", "held", "c1", "--result", "{bad"], "what --result says is not JSON"),
        (["submit", "k", "{bad"], "the input is not JSON"),
    ],
)
def test_what_cannot_be_read_is_called_by_its_name(filled: Console, arguments: list[str], said: str) -> None:
    found = filled(*arguments)
    assert found.code == 2
    assert said in found.err


def in_folder(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The console in a process of its own; `PYTHONPATH` is that of this one."""
    environment = {**os.environ, **more}
    return subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("processes", ["0", "2"])
def test_an_app_that_cannot_be_loaded_is_told_once_with_its_line(tmp_path: Path, processes: str) -> None:
    (tmp_path / "deep.py").write_text("import json\n\ndef load():\n    return json.loads('{')\n")
    (tmp_path / "fleet.py").write_text("import deep\n\n\nvalue = deep.load()\n")
    (tmp_path / "torn.py").write_text("from tenure import App\napp = App(\n")
    (tmp_path / "gone.py").write_text("import not_to_be_had\n")
    for module, where, what in (
        ("fleet", "deep.py, line 4", "JSONDecodeError"),
        ("torn", "torn.py, line 2", "SyntaxError"),
        ("gone", "gone.py, line 1", "ModuleNotFoundError"),
    ):
        found = in_folder(tmp_path, "worker", f"{module}:app", "--processes", processes)
        assert found.returncode == 2, found.stderr
        assert "Traceback" not in found.stderr
        (line,) = [line for line in found.stderr.splitlines() if "cannot be loaded" in line]
        assert where in line
        assert what in line
    assert "Traceback" in in_folder(tmp_path, "sweep", "fleet:app", TENURE_LOG="debug").stderr


def test_an_app_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "fleet.py").write_text("from tenure import App\nsmall, large, number = App(), App(), 3\n")
    found = in_folder(tmp_path, "worker", "fleet:nope")
    assert (found.returncode, "module fleet has no 'nope'" in found.stderr) == (2, True)
    assert "its apps: fleet:large, fleet:small" in found.stderr
    found = in_folder(tmp_path, "worker", "fleet:number")
    assert "has 'number', which is of type int and no App" in found.stderr


def test_an_import_of_no_export_makes_no_store(console: Console, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note\n")
    url = f"sqlite:///{tmp_path}/new.db"
    assert console("store", "import", str(tmp_path / "gone.jsonl"), url=url).code == 2
    assert console("store", "import", str(tmp_path / "note.txt"), url=url).code == 2
    assert not (tmp_path / "new.db").exists()


def test_a_damaged_export_sends_nobody_to_a_run_that_is_not_there(filled: Console, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert filled("store", "export", "--file", str(file), "--run", "done").code == 0
    whole = file.read_text()
    for find, put in (('"schema":"1"', '"schema":"one"'), ('"last_seq":"3"', '"last_seq":"4"')):
        assert find in whole
        file.write_text(whole.replace(find, put, 1))
        said = filled("store", "import", str(file), url=f"sqlite:///{tmp_path}/other.db")
        assert said.code == 6
        assert "show" not in said.err
        assert "export it again" in said.err or "none of an export" in said.err


def test_a_new_history_begins_when_it_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    console = Console(capsys, f"sqlite:///{tmp_path}/runs.db")
    console("submit", "k", "1")

    async def since(store: Store) -> int:
        return (await store.facts()).since_ms

    before = console.do(since)
    assert console("store", "new-history").code == 0
    assert console.do(since) > before


def modes_in(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.glob("runs.db*")}


def test_a_file_of_runs_is_for_its_owner_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    console = Console(capsys, f"sqlite:///{tmp_path}/runs.db")

    async def modes(_: Store) -> set[int]:
        return modes_in(tmp_path)

    assert console.do(modes) == {0o600}, "while its log is beside it"
    console("submit", "k", "1", "--id", "r")
    for command in (("store", "export", "--file"), ("journal", "export", "r", "--file")):
        file = tmp_path / command[0]
        assert console(*command, str(file)).code == 0
        assert file.stat().st_mode & 0o777 == 0o600


def test_what_was_imported_is_kept_from_then_on(console: Console, tmp_path: Path, capsys: Any) -> None:
    other = Console(capsys, f"sqlite:///{tmp_path}/other.db")

    async def carry(store: Store) -> None:
        await steps(1)(store)
        found = await archive.whole(store, "r")
        assert found is not None
        old = replace(found, record=replace(found.record, created_ms=1000, updated_ms=1000))
        async with open_store(other.url) as into:
            assert (await into.commit(bring(old, salt="s"))).ok

    console.do(carry)
    assert other("show", "r", "-o", "json").json["run"]["updated_ms"] == 1000, "it settled long ago"
    prune = ("runs", "prune", "--status", "failed", "--older-than")
    assert other(*prune, "1h").out == "0 runs deleted\n"
    assert other(*prune, "0s").out == "1 run deleted\n"


def asking(request: str) -> Callable[[Store], Coroutine[Any, Any, Run]]:
    """Work that makes a run `r` which asks a person."""

    async def made(store: Store) -> Run:
        writer = Writer(store)
        await writer.create("r", value=1)
        grant = await writer.claim("r")
        digest = canonical.digest(b"1")
        opened = journal.event(journal.REQUEST_OPENED, request=request, digest=digest, content={"question": "may I?"})
        return await writer.commit(
            grant,
            opened,
            status=Status.SUSPENDED,
            inbox_seq=0,
            requests={request: Request(digest=digest)},
            wants=(request,),
        )

    return made


def test_a_question_is_decided_and_not_resolved(console: Console) -> None:
    console.do(asking("ask:step:size"))
    for call in ("ask:step:size", "step:size"):
        found = console("resolve", "r", call, "--repeat")
        assert found.code == 9
        assert "`tenure approvals approve|reject r ask:step:size`" in found.err


def test_a_request_shows_what_can_be_done_about_it_now(console: Console) -> None:
    console.do(asking("ask:size"))
    assert "approvals approve|reject r ask:size" in console("approvals", "show", "r").out
    assert console("approvals", "approve", "r", "ask:size", "--by", "ann").code == 0
    decided = console("approvals", "show", "r").out
    assert "tenure approvals revoke r ask:size" in decided
    assert "approve|reject" not in decided
    assert console("approvals", "revoke", "r", "ask:size").code == 0
    void = console("approvals", "show", "r").out
    assert "it was revoked: the run asks anew" in void
    assert "approve|reject" not in void


def test_a_run_that_its_own_process_drives_is_nobody_elses_to_serve(console: Console) -> None:
    async def drive(store: Store) -> None:
        await Writer(store).create("mine", kind="reader")
        await Writer(store).claim("mine", owner="host-7")

    console.do(drive)
    assert "driven by host-7, no worker serves this kind" in console("runs").out
    assert "driven by host-7, no worker serves this kind" in console("show", "mine").out
    assert "serves reader" not in console("doctor").out


@pytest.mark.parametrize(
    "command",
    [
        *(["show"], ["show", "--raw"], ["verify"], ["timeline"], ["cancel"], ["tail"], ["journal", "export"]),
        ["store", "export", "--run"],
    ],
)
def test_what_is_not_there_is_told_in_one_sentence_that_says_where_was_looked(
    filled: Console, command: list[str]
) -> None:
    said = filled(*command, "nobody")
    assert said.code == 3
    assert f"no run nobody is in {filled.url}, namespace default; `tenure runs` lists what is there" in said.err


def test_how_a_store_is_set_is_said_once_and_by_no_child() -> None:
    found = logging.LogRecord("tenure.stores.redis", logging.WARNING, "", 0, "%s keeps no log", ("a",), None)
    found.setting = True
    other = logging.LogRecord("tenure.stores.redis", logging.WARNING, "", 0, "shard 1 does not answer", (), None)
    once, child = SettingOnce(), SettingOnce(said=True)
    assert [once.filter(record) for record in (found, other, found, other)] == [True, True, False, True]
    assert [child.filter(record) for record in (found, other)] == [False, True]


def test_a_command_says_once_how_its_store_is_set(filled: Console, capsys: pytest.CaptureFixture[str]) -> None:
    assert filled("runs").code == 0
    for _ in range(2):
        logging.getLogger("tenure.stores.redis").warning("it keeps no log", extra={"setting": True})
    assert capsys.readouterr().err.count("it keeps no log") == 1
