"""What is said of a path that names no store or no file, and that nothing is made of it."""

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
