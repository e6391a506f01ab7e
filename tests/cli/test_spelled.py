"""What somebody types who knows other programs: it is told how that is written here, and written alike it works."""

from pathlib import Path

import pytest
import typer

from cli.kit import Console
from tenure import InvalidUrl, open_store
from tenure.cli import app


@pytest.mark.parametrize("name", app.ELSEWHERE)
def test_a_command_of_another_name_is_pointed_to(name: str, filled: Console) -> None:
    said = filled(name)
    assert (said.code, f"No such command {name!r}; write `tenure {app.ELSEWHERE[name]}`" in said.err) == (2, True)
    found: object = typer.main.get_command(app.build())
    for word in app.ELSEWHERE[name].split():
        if word.islower():
            found = found.commands[word]  # type: ignore[attr-defined]


def test_only_a_command_of_its_own_is_pointed_to(filled: Console) -> None:
    assert "write `" not in filled("store", "list").err
    assert "write `" not in filled("nonsense").err


def test_one_run_is_not_looked_for_among_the_commands_of_runs(filled: Console) -> None:
    said = filled("runs", "done")
    assert (said.code, "one run is `tenure show done`" in said.err) == (2, True)


def test_an_export_names_its_file_either_way_but_not_two(filled: Console, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert filled("store", "export", str(first)).code == 0
    assert filled("store", "export", "--file", str(second)).code == 0
    assert len(first.read_text().splitlines()) == len(second.read_text().splitlines())
    both = filled("store", "export", str(first), "--file", str(second))
    assert (both.code, f"two files are named, {first} and {second}; name one" in both.err) == (2, True)
    assert "write --file FILE" in filled("store", "export", "-o", str(first)).err


def test_a_scheme_may_be_in_capitals_and_a_look_still_makes_no_file(
    filled: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = filled.url.replace("sqlite:", "SQLite:")
    assert {run["id"] for run in filled("runs", "-o", "json", url=loud).json} >= {"done", "held"}
    monkeypatch.chdir(tmp_path)
    for url in ("SQLITE:///nowhere.db", " sqlite:///nowhere.db"):
        before, after = filled("runs", url=url), filled("runs", "--store", url)
        for nowhere in (before, after):
            assert (nowhere.code, "no store is at" in nowhere.err, list(tmp_path.glob("nowhere*"))) == (3, True, [])
    demo = filled("demo", "--store", "Memory://")
    assert (demo.code, "memory:// is one process's own" in demo.err) == (2, True)
    assert open_store("Memory://").url == "memory://"
    with pytest.raises(InvalidUrl, match="no store is known for 'sqlit'"):
        open_store("SQLIT:///x.db")


@pytest.mark.parametrize("path", ["Runs.db", "/Data/Runs.db", "Data/Runs:A.db"])
def test_a_path_that_is_no_url_is_shown_as_it_was_written(path: str, filled: Console) -> None:
    assert f"write sqlite:///{path} for this file" in filled("runs", url=path).err


def test_who_submits_under_a_taken_id_is_told_what_differs(filled: Console) -> None:
    assert filled("submit", "greet", '"a"', "--id", "x").code == 0
    input_ = filled("submit", "greet", '"b"', "--id", "x")
    kind = filled("submit", "other", '"a"', "--id", "x")
    taken = "x is taken by a run with another input or origin, which stays as it is"
    assert (input_.code, taken in input_.err) == (9, True)
    assert (kind.code, "x is taken by a run of kind greet, which stays as it is" in kind.err) == (9, True)
    assert filled("submit", "greet", '"a"', "--id", "x").code == 0
    assert filled("fork", "done", "--at", "0", "--id", "y").code == 0
    elsewhere = filled("fork", "done", "--at", "1", "--id", "y")
    assert (elsewhere.code, "y is taken by a run with another input or origin" in elsewhere.err) == (9, True)
