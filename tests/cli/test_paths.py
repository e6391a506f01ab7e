"""What is said of a path that names no store or no file, and that nothing is made of it."""

import json
import os
from pathlib import Path

import pytest

from cli.kit import Console


@pytest.mark.parametrize(
    "command",
    [
        *("runs", "show r", "tail r", "timeline", "approvals list", "verify r", "journal export r --file x"),
        *("store export", "sweep", "cancel r", "doctor", "runs prune --status completed --older-than 1d"),
    ],
)
def test_a_path_that_is_mistyped_is_told_and_makes_neither_folder_nor_file(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = console(*command.split(), url=f"sqlite:///{tmp_path}/no/such/dir/x.db")
    assert said.code in (3, 8)
    assert f"no store is at {tmp_path}/no/such/dir/x.db" in said.out + said.err
    assert list(tmp_path.iterdir()) == []


FILES = (
    ["store", "export"],
    ["store", "export", "--file"],
    ["store", "import"],
    ["journal", "export", "done", "--file"],
    ["verify", "--file"],
    ["timeline", "--svg"],
    ["demo", "--svg"],
)


@pytest.mark.parametrize("command", FILES, ids=" ".join)
def test_what_names_no_file_is_told_before_anything_is_done(
    filled: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for path in (".", "folder", str(tmp_path)):
        said = filled(*command, path)
        assert (said.code, said.err) == (2, f"tenure: {path} is a folder; name a file in it\n")
    said = filled(*command, "")
    assert (said.code, said.err) == (2, "tenure: the name of a file is empty; name a file\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


@pytest.mark.parametrize("command", FILES, ids=" ".join)
def test_a_name_that_no_file_can_have_is_told_before_anything_is_done(filled: Console, command: list[str]) -> None:
    long = "x" * 300
    said = filled(*command, long)
    assert (said.code, said.err) == (2, f"tenure: {long} cannot be opened (File name too long); name another file\n")


def test_an_input_that_is_a_folder_is_told(console: Console, tmp_path: Path) -> None:
    said = console("submit", "greet", f"@{tmp_path}")
    assert (said.code, said.err) == (2, f"tenure: {tmp_path} is a folder; name a file in it\n")
    assert console("submit", "greet", "@").err == "tenure: the name of a file is empty; name a file\n"


def test_a_file_that_is_there_stays_as_it_is(filled: Console, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not to be lost")
    said = filled("store", "export", str(path))
    assert (said.code, "is there and stays as it is" in said.err) == (2, True)
    assert path.read_text() == "not to be lost"


@pytest.mark.parametrize("command", [["store", "export", "--file"], ["journal", "export", "done", "--file"]])
def test_a_pipe_is_written_into_and_stays_one(filled: Console, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert filled(*command, str(path)).code == 0
        lines = os.read(reader, 1 << 16).decode().splitlines()
    finally:
        os.close(reader)
    assert lines[1:] == filled(*command, "-").out.splitlines()[1:], "but for the time in its head"
    assert path.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_a_link_to_where_an_export_is_to_be_stays_a_link(filled: Console, tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to("export.jsonl")
    assert filled("store", "export", str(path)).code == 0
    assert path.is_symlink()
    assert json.loads((tmp_path / "export.jsonl").read_text().splitlines()[0])["tenure"] == "export"
