"""`submit --wait`: what is told to who waits for a run, and to who waits no longer."""

import io
import sys

import anyio
import pytest

from cli.kit import Console, Writer
from tenure.core.run import Run
from tenure.errors import StoreUnavailable
from tenure.store import Beat, Store
from tenure.stores.memory import MemoryStore


def test_wait_gives_up_after_its_timeout_and_the_run_goes_on(filled: Console) -> None:
    filled("fork", "done", "--at", "0", "--id", "slow")

    async def claim(store: Store) -> None:
        await Writer(store).claim("slow")

    filled.do(claim)
    said = filled("fork", "done", "--at", "0", "--id", "slow", "--wait", "--timeout", "0.2")
    assert (said.code, "run slow has not ended within 0.2 s and goes on" in said.err) == (1, True)
    assert filled("show", "slow", "-o", "json").json["run"]["status"] == "running"


def test_who_waits_for_a_run_that_nobody_serves_is_told_once_and_at_the_timeout(
    filled: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.cli.submit.QUIET_S", 0.2)
    alone = (
        "no live worker serves kind reserch (served are refund, research); start one with `tenure worker MODULE:APP`"
    )
    said = filled("submit", "reserch", "1", "--id", "typo", "--wait", "--timeout", "4")
    assert said.code == 1
    assert filled("show", "typo", "-o", "json").json["run"]["status"] == "queued"
    first, last = said.err.splitlines()
    assert first == f"tenure: run typo waits: {alone}"
    assert last.startswith(f"tenure: run typo is still queued after 4 s: {alone}; look with")


def test_a_queued_run_whose_kind_is_served_or_whose_time_is_to_come_is_not_called_unserved(
    filled: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.cli.submit.QUIET_S", 0.2)
    for arguments in (["research", "1", "--id", "busy"], ["other", "1", "--id", "later", "--at", "+2h"]):
        said = filled("submit", *arguments, "--wait", "--timeout", "0.7")
        assert (said.code, len(said.err.splitlines())) == (1, 1)
        assert f"run {arguments[3]} is still queued after 0.7 s; look" in said.err


def test_a_worker_that_fell_silent_serves_nobody_who_waits(filled: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.cli.census.SILENT_MS", -1)
    said = filled("submit", "research", "1", "--id", "left", "--wait", "--timeout", "0.2")
    where = f"there is no live worker at all on {filled.url}"
    assert f"still queued after 0.2 s: no live worker serves kind research ({where})" in said.err
    assert "no live worker serves this kind" in _on_a_terminal(filled, monkeypatch, "left")
    assert [
        line for line in filled("runs", "--kind", "research").out.splitlines() if "left" in line and "serves" in line
    ]


@pytest.mark.parametrize("silent", [False, True])
def test_who_waits_no_longer_is_told_that_the_store_does_not_answer(
    filled: Console, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    class Away(MemoryStore):
        async def load(self, run: str, /) -> Run | None:
            if silent:
                await anyio.sleep_forever()
            raise StoreUnavailable("it is away; try again")

    monkeypatch.setattr("tenure.stores.memory.MemoryStore", Away)
    monkeypatch.setattr("tenure.cli.submit.ANSWER_S", 0.2)
    said = filled("submit", "research", "1", "--id", "left", "--wait", "--timeout", "0.2")
    assert (said.code, said.out) == (1, "")
    assert "run left has not ended within 0.2 s, and the store does not answer; look with" in said.err


def _on_a_terminal(console: Console, monkeypatch: pytest.MonkeyPatch, run_id: str) -> str:
    shown = _terminal(monkeypatch)
    console("submit", "research", "1", "--id", run_id, "--wait", "--timeout", "0.6")
    return shown.getvalue()


def _terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_who_submits_on_a_terminal_is_told_that_nobody_serves_the_kind_and_where(
    filled: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled("submit", "reserch", "1").err == ""
    shown = _terminal(monkeypatch)
    assert filled("submit", "reserch", "1", "--id", "typo").out == "typo\n"
    served = "served are refund, research"
    said = f"tenure: no live worker serves kind reserch ({served}); start one with `tenure worker MODULE:APP`\n"
    assert shown.getvalue() == said
    filled("submit", "research", "1", "--id", "fine")
    filled("submit", "reserch", "1", "--id", "later", "--at", "+2h")
    assert shown.getvalue() == said


def test_a_run_that_was_queued_is_told_though_the_store_is_away_by_then(
    filled: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(MemoryStore):
        async def beats(self) -> list[Beat]:
            raise StoreUnavailable("it is away; try again")

    monkeypatch.setattr("tenure.stores.memory.MemoryStore", Away)
    shown = _terminal(monkeypatch)
    said = filled("submit", "reserch", "1", "--id", "typo")
    assert (said.code, said.out, shown.getvalue()) == (0, "typo\n", "")


def test_waiting_tells_on_a_terminal_how_far_the_run_is(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _on_a_terminal(console, monkeypatch, "slow")
    assert "slow: queued, step 0" in shown
    assert "no live worker serves this kind" in shown
