"""Mistakes that people make at a console: each is named, nothing is done, and what to do next is said."""

import json
from pathlib import Path

import pytest

from cli.kit import Console
from tenure.cli.ends import who


@pytest.mark.parametrize("option", ["--store", "--namespace"])
def test_an_option_that_a_variable_left_empty_is_not_the_default(filled: Console, option: str) -> None:
    said = filled(option, "", "runs")
    assert (said.code, said.out, f"{option} is empty" in said.err) == (2, "", True)


def test_what_cannot_be_ended_so_says_how_it_can(filled: Console) -> None:
    said = filled("cancel", "poison", "--grace", "5")
    assert (said.code, "cancel it without a time of grace" in said.err) == (10, True)
    said = filled("release", "held")
    assert (said.code, "run held is running; only a quarantined run is released" in said.err) == (9, True)


@pytest.mark.parametrize("command, run_id", [("cancel", "next"), ("evict", "held"), ("release", "poison")])
def test_an_end_that_nobody_gave_a_reason_for_says_who_asked(filled: Console, command: str, run_id: str) -> None:
    assert filled(command, run_id).code == 0
    shown = filled("show", run_id, "-o", "json").json
    assert f'"by": "{who()}"' in json.dumps(shown)


def test_a_file_that_is_no_json_is_told_where(filled: Console, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"a": 1,\n "b": [1,2,,3]}')
    said = filled("submit", "research", f"@{path}")
    assert (said.code, "line 2, column 12" in said.err, "quoted twice" in said.err) == (2, True, False)
    said = filled("submit", "research", "word")
    assert (said.code, "quoted twice" in said.err) == (2, True)


def test_a_time_out_that_waits_for_nothing_is_told(filled: Console) -> None:
    said = filled("submit", "research", "1", "--timeout", "3")
    assert (said.code, "--timeout is for --wait" in said.err) == (0, True)


def test_an_export_of_a_store_is_no_journal(filled: Console, tmp_path: Path) -> None:
    store, notes = tmp_path / "store.jsonl", tmp_path / "notes.txt"
    assert filled("store", "export", str(store)).code == 0
    said = filled("verify", "--file", str(store))
    assert (said.code, "an export of a store, for `tenure store import`" in said.err) == (2, True)
    notes.write_text("notes\n")
    said = filled("journal", "export", "done", "--file", str(notes))
    assert (said.code, "nothing that `tenure journal export` writes" in said.err) == (6, True)
    assert notes.read_text() == "notes\n"
