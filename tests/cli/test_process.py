"""The console as people start it: a process of its own on a file, with pipes, signals and nothing loaded in vain."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "hunter2-never-shown"


def _tenure(
    *arguments: str, folder: Path, code: int = 0, input: str | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    said = subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        cwd=folder,
        env={**environment, **settings},
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == code, said.stderr
    return said


def test_one_command_after_the_other_on_the_default_store(tmp_path: Path) -> None:
    run_id = _tenure(
        "submit", "research", "-", "--tag", "team=blue", folder=tmp_path, input='{"q": "ü"}'
    ).stdout.strip()
    assert (tmp_path / ".tenure" / "tenure.db").is_file()
    (run,) = json.loads(_tenure("runs", "-o", "json", folder=tmp_path).stdout)
    assert (run["id"], run["status"], run["tags"]) == (run_id, "queued", {"team": "blue"})
    assert '"q": "ü"' in _tenure("show", run_id, "--events", folder=tmp_path).stdout
    assert run_id[-8:] in _tenure("timeline", folder=tmp_path).stdout
    assert "1 queued" in _tenure("doctor", folder=tmp_path).stdout
    assert _tenure("cancel", run_id, "--reason", "enough", folder=tmp_path).stdout == f"{run_id} is cancelled\n"
    said = _tenure("submit", "research", '{"q": "ü"}', "--id", run_id, "--wait", folder=tmp_path, code=10)
    assert said.stderr.startswith("tenure: RUN_CANCELLED: ")
    assert "enough" in said.stderr


def test_a_file_that_is_no_database_is_unsafe_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("notes, not runs; " * 20)
    said = _tenure("runs", "--store", "sqlite:///notes.db", folder=tmp_path, code=8)
    assert said.stderr.startswith("tenure: STORE_UNSAFE: ")
    said = _tenure("doctor", "--store", "sqlite:///notes.db", folder=tmp_path, code=8)
    assert "✗ store" in said.stdout
    assert "→ " in said.stdout
    assert path.read_text() == "notes, not runs; " * 20


@pytest.mark.parametrize("command", [["runs"], ["doctor"], ["submit", "k", "1"], ["--log", "debug", "runs"]])
def test_a_password_in_a_url_is_never_printed(tmp_path: Path, command: list[str]) -> None:
    for url in (f"mysql://user:{SECRET}@127.0.0.1:1/0", f"redis://user:{SECRET}@127.0.0.1:1/0?nonsense=1"):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        said = subprocess.run(
            [sys.executable, "-m", "tenure", *command],
            cwd=tmp_path,
            env={**environment, "TENURE_STORE": url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said.returncode in {2, 7}
        assert said.stderr
        assert SECRET not in said.stdout + said.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" not in _tenure("show", "nobody", folder=tmp_path, code=3).stderr
    said = _tenure("show", "nobody", folder=tmp_path, code=3, TENURE_LOG="debug")
    assert "Traceback" in said.stderr
    assert said.stderr.splitlines()[-1].startswith("tenure: STORE_NOT_FOUND: ")


def test_who_reads_only_the_first_lines_causes_no_error(tmp_path: Path) -> None:
    for number in range(3):
        _tenure("submit", "research", str(number), folder=tmp_path)
    piped = f"{sys.executable} -m tenure runs -o json | head -n 1"
    said = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {piped}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.stderr == ""
    assert said.stdout == "[\n"


def test_colours_are_off_when_it_is_no_terminal(tmp_path: Path) -> None:
    _tenure("submit", "research", "1", folder=tmp_path)
    for command in ("runs", "doctor", "timeline"):
        assert "\x1b" not in _tenure(command, folder=tmp_path).stdout


def test_an_output_without_the_signs_gets_escapes_and_no_error(tmp_path: Path) -> None:
    _tenure("submit", "research", '"ü"', "--id", "r", folder=tmp_path)
    said = _tenure("doctor", folder=tmp_path, PYTHONIOENCODING="ascii")
    assert "\\u2713 schema" in said.stdout


def test_interrupting_a_wait_leaves_the_run_alone(tmp_path: Path) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "tenure", "submit", "research", "1", "--id", "r", "--wait"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while "r" not in _ids(tmp_path):
            assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=30)
    finally:
        waiting.kill()
    assert (waiting.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "run r goes on; look with `tenure show r`" in err
    (run,) = json.loads(_tenure("runs", "-o", "json", folder=tmp_path).stdout)
    assert run["status"] == "queued"


def _ids(folder: Path) -> set[str]:
    if not (folder / ".tenure" / "tenure.db").exists():
        return set()
    return {run["id"] for run in json.loads(_tenure("runs", "-o", "json", folder=folder).stdout)}


@pytest.mark.parametrize("command", [["--help"], ["runs", "--help"], ["--version"]])
def test_asking_for_help_loads_neither_drivers_nor_rich(tmp_path: Path, command: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tenure", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}
    assert "typer" in loaded
    assert {"rich", "redis", "sqlite3", "anyio", "asyncio"} & loaded == set()


def _query(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_one_damaged_record_is_named_and_hides_no_other(tmp_path: Path) -> None:
    for name in ("good", "torn", "fine"):
        _tenure("submit", "research", "1", "--id", name, folder=tmp_path)
    _query(tmp_path / ".tenure" / "tenure.db", "UPDATE run SET record = '{\"id\":\"torn\",' WHERE id = 'torn'")
    said = _tenure("runs", "-o", "jsonl", folder=tmp_path, code=6)
    assert [json.loads(line)["id"] for line in said.stdout.splitlines()] == ["fine", "good"]
    assert "the record of run torn cannot be read; tenure show torn --raw prints what is stored" in said.stderr
    said = _tenure("show", "torn", folder=tmp_path, code=6)
    assert said.stderr.startswith("tenure: CORRUPT_RECORD: ")
    raw = _tenure("show", "torn", "--raw", folder=tmp_path).stdout
    assert '{"id":"torn",' in raw
    assert "commit 1 token 0" in raw
    said = _tenure("doctor", folder=tmp_path, code=8)
    assert "✗ damage" in said.stdout
    assert "→ tenure show torn --raw" in said.stdout


def test_a_record_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    _tenure("submit", "research", "1", "--id", "new", folder=tmp_path)
    path = tmp_path / ".tenure" / "tenure.db"
    _query(path, """UPDATE run SET record = replace(record, '"schema":"1"', '"schema":"99"')""")
    said = _tenure("show", "new", folder=tmp_path, code=8)
    assert said.stderr.startswith("tenure: STORE_TOO_NEW: ")
    assert "schema 99" in said.stderr


def test_a_store_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    _tenure("submit", "research", "1", "--id", "r", folder=tmp_path)
    url = "sqlite:///.tenure/tenure.db?busy_timeout_ms=50"
    other = sqlite3.connect(tmp_path / ".tenure" / "tenure.db", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        for command in (["runs"], ["submit", "research", "2"]):
            said = _tenure(*command, "--store", url, folder=tmp_path, code=7)
            assert said.stderr.startswith("tenure: STORE_UNAVAILABLE: ")
            assert said.stdout == ""
        said = _tenure("doctor", "--store", url, folder=tmp_path, code=7)
        assert "✗ store" in said.stdout
    finally:
        other.close()
    _tenure("runs", folder=tmp_path)
