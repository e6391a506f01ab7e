"""`sweep`: what is due is listed, or recovered with an app."""

import json
from pathlib import Path

import pytest

from cli.kit import Console
from tenure import Ledger, Store

APP = """
from tenure import ActiveRun, App
app = App()

@app.kind("k")
async def k(run: ActiveRun[int], input: int) -> int:
    return input + 1
"""


async def queue(store: Store) -> None:
    async with Ledger(store) as ledger:
        await ledger.submit("k", 1, id="r1")
        await ledger.submit("other", 1, id="r2")
        await ledger.submit("k", 1, id="later", at=3600)


def test_without_an_app_it_lists_what_is_due_and_claims_nothing(console: Console) -> None:
    console.do(queue)
    said = console("sweep")
    assert (said.code, said.out.splitlines()[-1]) == (0, "2 due, 0 recovered")
    assert {line.split()[1] for line in said.out.splitlines()[:-1]} == {"DUE"}
    assert "queued" in console("runs").out


def test_with_an_app_it_recovers_what_the_app_has(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "swept_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    console.do(queue)
    said = console("sweep", "swept_app:app", "-o", "json")
    found = json.loads(said.out)
    assert [(entry["run"], entry["code"]) for entry in found["entries"]] == [("r1", "OK")]
    assert (said.code, found["complete"], found["next_due_ms"] is not None) == (0, True, True)


def test_an_app_that_is_none_is_said(console: Console) -> None:
    said = console("sweep", "nothing_here:app")
    assert said.code == 2
    assert "there is no module 'nothing_here'" in said.err
