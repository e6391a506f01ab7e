"""`verify` and `journal export`: what they say to people and machines, and that they write nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cli.kit import Console
from tenure.store import Store
from tenure.stores.memory import _SHARED


def _damage(console: Console, run_id: str) -> None:
    shelf = _SHARED[console.url.removeprefix("memory://"), "default"].shelves[run_id]
    shelf.rows[1] = replace(shelf.rows[1], body=shelf.rows[1].body.replace(b"found", b"lost!"))


def test_verify_all_says_how_much_was_looked_at(filled: Console) -> None:
    said = filled("verify", "--all")
    assert said.code == 0
    lines = said.out.splitlines()
    assert "done verified (3 commits, 4 events, 0 model requests, 0 blocks)" in lines
    assert lines[-1] == "6 runs, 0 not verified"


def test_m_jr_l5_a_journal_that_was_edited_exits_6_and_hides_no_other(filled: Console) -> None:
    _damage(filled, "done")
    said = filled("verify", "--all")
    assert said.code == 6
    assert "done NOT VERIFIED" in said.out
    assert "  failure DIGEST at 2\n" in said.out
    assert said.out.endswith("6 runs, 1 not verified\n")
    assert filled("verify", "held").code == 0
    (value,) = filled("verify", "done", "-o", "jsonl").lines
    assert (value["run"], value["ok"], value["stats"]["commits"]) == ("done", False, 3)
    assert value["failures"][0] == {"code": "DIGEST", "at": "2", "detail": ""}


def test_verify_asks_for_one_thing(filled: Console) -> None:
    assert filled("verify").code == 2
    assert filled("verify", "done", "--all").code == 2
    said = filled("verify", "done", "nobody", "held")
    assert (said.code, "no run nobody" in said.err) == (3, True)
    assert said.out.splitlines()[0].startswith("done verified")
    assert said.out.endswith("2 runs, 0 not verified\n"), "one that is not there hides no other"
    assert filled("verify", "--file", "/nowhere/at/all").code == 2


def test_an_export_verifies_as_a_file(filled: Console, tmp_path: Path) -> None:
    path = tmp_path / "done.jsonl"
    assert filled("journal", "export", "done", "--file", str(path)).code == 0
    shown = filled("journal", "export", "done")
    assert shown.out == path.read_text()
    said = filled("verify", "--file", str(path))
    assert (said.code, said.out) == (0, "done verified (3 commits, 4 events, 0 model requests, 0 blocks)\n")
    path.write_bytes(path.read_bytes()[:-40])
    torn = filled("verify", "--file", str(path))
    assert torn.code == 6
    assert "TORN at 3" in torn.out
    assert filled("journal", "export", "nobody").code == 3
    assert filled("journal", "export", "done", "--file", str(tmp_path)).code == 2


def test_looking_writes_nothing(filled: Console) -> None:
    async def stored(store: Store) -> object:
        return [
            (await store.raw(run), await store.tail(run)) for run in ("done", "held", "bad", "asks", "poison", "next")
        ]

    before = filled.do(stored)
    for arguments in (["verify", "--all"], ["journal", "export", "done"]):
        assert filled(*arguments).code == 0
    assert filled.do(stored) == before
