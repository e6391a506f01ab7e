"""Twenty who decide and twenty who resume at the same moment: one of each does, the others are refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenure import CheckpointedAgent, Ledger, RunSuspended, Status, Store, open_store
from tenure.testing.models import CallLog
from waiting.crowd import RUN, agent_of, crowd

pytestmark = pytest.mark.anyio

PROCESSES, EACH = 4, 5


async def _asks(store: Store, log: CallLog) -> None:
    """Bring the run to where it waits for a person."""
    with pytest.raises(RunSuspended):
        await CheckpointedAgent(agent_of(log), store).run("go", id=RUN)


async def _held_to(store: Store, log: CallLog, decided: list[str], resumed: list[str]) -> None:
    """One decision, one resumption, everybody else a named refusal; and what was decided is what was done."""
    assert len(decided) == len(resumed) == PROCESSES * EACH
    assert Counter(decided) == {"won": 1, "REQUEST_CLOSED": PROCESSES * EACH - 1}
    assert Counter(resumed)["won"] == 1
    assert set(resumed) <= {"won", "LEASE_HELD", "RUN_CLOSED"}
    async with Ledger(store) as ledger:
        (decision,) = await ledger.handle(RUN).decisions()
        run = await ledger.load(RUN)
        types = [event["type"] async for _, event in ledger.handle(RUN).events()]
    assert (run.status, run.requests) == (Status.COMPLETED, {})
    assert len(log.read("made")) == decision.approved
    assert types.count("request/decided") == types.count("inbox/consumed") == 1
    assert [item.consumed for item in await store.inbox(RUN)] == [True]


async def test_m_ap08_i15_twenty_at_once_in_one_process(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "log")
    async with open_store("memory://") as store, Ledger(store, ttl=30) as ledger:
        await _asks(store, log)
        decided = await crowd(ledger, log, "decide", 0, PROCESSES * EACH)
        resumed = await crowd(ledger, log, "resume", 0, PROCESSES * EACH)
        await _held_to(store, log, decided, resumed)


@pytest.mark.parametrize("kind", ["sqlite", "redis7", "valkey", "postgres"])
async def test_m_ap08_m_ap_l7_i15_twenty_at_once_in_four_processes(
    kind: str, tmp_path: Path, namespace: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    log = CallLog(tmp_path / "log")
    async with open_store(url, namespace=namespace) as store:
        await _asks(store, log)
        with ExitStack() as started:
            processes = [_start(started, url, namespace, log, number) for number in range(PROCESSES)]
            for process in processes:
                assert _line(process) == "ready"
            decided, resumed = (_all_at_once(processes, what) for what in ("decide", "resume"))
            await _held_to(store, log, decided, resumed)


def _start(started: ExitStack, url: str, namespace: str, log: CallLog, number: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("crowd.py"), url, namespace, log.path, str(number * EACH), str(EACH)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.enter_context(process)
    started.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _all_at_once(processes: list[subprocess.Popen[str]], what: str) -> list[str]:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{what}\n")
        process.stdin.flush()
    return [told for process in processes for told in json.loads(_line(process))]
