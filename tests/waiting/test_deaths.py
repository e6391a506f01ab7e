"""Killed at each commit around what people are asked: nothing is asked, decided or done twice, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import Ledger, Status, Store, open_store
from tenure.core import build, journal
from tenure.core.run import How
from tenure.core.verify import verify_run
from tenure.testing.models import CallLog

pytestmark = pytest.mark.anyio

KILLED = -9
EXPECTED = {"agent": "done", "order": ["now", True, "ann"]}


class Deaths:
    """The process that forks, a store, and what the runs did."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/runs.db"
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("deaths.py"), self.url, str(folder / "log")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(self, what: str, run: str, *, at: int = 0, side: str = "") -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"what": what, "run": run, "at": at, "side": side}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def done(self) -> Counter[str]:
        """How often each call was made and each question asked since this was read last."""
        log = CallLog(self.folder / "log")
        found = Counter(str(line.get("call") or f"model {line['step']}") for line in log.read())
        log.path.unlink(missing_ok=True)
        return found


@pytest.fixture
def deaths(tmp_path: Path) -> Iterator[Deaths]:
    made = Deaths(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


async def _bury(ledger: Ledger, run_id: str) -> None:
    """What a supervisor does about a child that died."""
    run = await ledger.load(run_id)
    if run.status is Status.RUNNING:
        await ledger.ask(build.end(run=run.id, how=How.FORFEIT, token=run.token, nonce=run.nonce))


async def _answer(ledger: Ledger, run_id: str) -> None:
    """Say all that the run waits for."""
    handle: Any = ledger.handle(run_id)
    for request in await handle.requests():
        await handle.decide(request, "approve", by="ann")
    if "go" in (await handle.load()).wants or run_id.startswith("order"):
        await handle.signal("go", "now", id="s1")


async def _held_to(store: Store, ledger: Ledger, what: str, run_id: str, done: Counter[str]) -> None:
    run = await ledger.load(run_id)
    assert run.status is Status.COMPLETED, run_id
    assert await ledger.handle(run_id).result() == EXPECTED[what]
    rows = await store.tail(run_id, limit=1000)
    assert verify_run(run, rows).ok, run_id
    events = [event for row in rows for event in journal.events_of(row)]
    decided = Counter(event["request"] for event in events if event["type"] == "request/decided")
    records = Counter(event["name"] for event in events if event["type"] == "record")
    assert set(decided.values()) == {1}, f"{run_id}: a decision is consumed once"
    assert set(records.values()) == {1}, f"{run_id}: a result is recorded once"
    assert run.requests == {}
    assert all(item.consumed for item in await store.inbox(run_id))
    # What was in flight at the one death is done again: a question to the model, or the two approved calls.
    assert max(done.values()) <= 2, (run_id, done)
    assert sum(done.values()) - len(done) <= 2, (run_id, done)
    calls = {"agent": {"c1", "c2", "c3", "model 1", "model 2"}, "order": {"first", "last"}}[what]
    assert set(done) == calls, (run_id, done)


@pytest.mark.parametrize("what", ["agent", "order"])
async def test_b128_b135_i15_i24_killed_at_each_commit_of_asking_and_of_going_on(deaths: Deaths, what: str) -> None:
    async with open_store(deaths.url) as store, Ledger(store) as ledger:
        asking = deaths.play(what, f"{what}-clean")
        assert (await ledger.load(f"{what}-clean")).status is Status.SUSPENDED
        await _answer(ledger, f"{what}-clean")
        going_on = deaths.play(what, f"{what}-clean")
        await _held_to(store, ledger, what, f"{what}-clean", done := deaths.done())
        assert set(done.values()) == {1}
        assert (asking >= 3, going_on >= 3) == (True, True), "there is something to be killed at"
        for first in (True, False):
            for at in range(1, (asking if first else going_on) + 1):
                for side in ("before", "after"):
                    run = f"{what}-{first}-{at}-{side}"
                    if not first:
                        deaths.play(what, run)
                        await _answer(ledger, run)
                    assert deaths.play(what, run, at=at, side=side) == KILLED, run
                    await _bury(ledger, run)
                    while (await ledger.load(run)).status is not Status.COMPLETED:
                        assert deaths.play(what, run) >= 0
                        if (await ledger.load(run)).status is Status.SUSPENDED:
                            await _answer(ledger, run)
                    await _held_to(store, ledger, what, run, deaths.done())
