"""An agent of Pydantic AI whose process is killed in a tool, or frozen there until its run has moved on."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tenure import Ledger, Store, open_store
from tenure.core import journal
from tenure.core.verify import verify_run
from tenure.testing.models import CallLog

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("durable_app.py")


@contextmanager
def worker(url: str, namespace: str, folder: Path, *, program: Path = PROGRAM) -> Iterator[subprocess.Popen[bytes]]:
    number = len(list(folder.glob("log.*")))
    with (folder / f"log.{number}").open("wb") as log:
        process = subprocess.Popen([sys.executable, program, url, namespace, folder], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def ended(process: subprocess.Popen[bytes], *, seconds: float = 60) -> int:
    with anyio.fail_after(seconds):
        while process.poll() is None:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)
    return int(process.returncode)


def counted(folder: Path) -> Counter[str]:
    lines = CallLog(folder / "calls").read()
    return Counter(f"{line['what']} {line.get('number', line.get('to'))}" for line in lines)


async def told(store: Store) -> tuple[list[tuple[int, str]], bool]:
    """Which attempt wrote which record, and whether the journal verifies."""
    rows, run = await store.tail("r", limit=1000), await store.load("r")
    assert run is not None
    found, attempt = list[tuple[int, str]](), 0
    for event in (event for row in rows for event in journal.events_of(row)):
        attempt = event.get("attempt", attempt)
        if event["type"] == journal.RECORD:
            found.append((attempt, event["name"]))
    return found, verify_run(run, rows).ok


async def killed_and_gone_on(folder: Path, namespace: str) -> tuple[list[tuple[int, str]], bool]:
    """Let one process die in the third tool and another go on; return what was told of the run."""
    url = f"sqlite:///{folder}/t.db"
    (folder / "kill").touch()
    async with open_store(url, namespace=namespace) as store, Ledger(store, ttl=2) as ledger:
        handle = await ledger.submit("walk", None, id="r")
        with worker(url, namespace, folder) as first:
            assert await ended(first) == -signal.SIGKILL
        with worker(url, namespace, folder) as second:
            assert await handle.result(timeout=60) == ["arrived", 4, 3]
            assert await ended(second) == 0
        records, ok = await told(store)
    return records, ok


# No question is asked twice; the tool that was killed runs twice, under one call id.
CALLS = {**{f"model {n}": 1 for n in (1, 2, 3, 4)}, "tool 1": 1, "tool 2": 1, "tool 3": 2}


async def test_i14_a_process_killed_in_the_third_tool_is_gone_on_from_there(tmp_path: Path, namespace: str) -> None:
    records, ok = await killed_and_gone_on(tmp_path, namespace)
    assert counted(tmp_path) == CALLS
    first_five = ["model:1", "tool:walk@1.c1", "model:2", "tool:walk@2.c2", "model:3"]
    assert records == [*((1, name) for name in first_five), (2, "tool:walk@3.c3"), (2, "model:4")]
    assert ok


async def test_i14_a_checkpointed_agent_killed_in_the_third_tool_is_gone_on_from_there(
    tmp_path: Path, namespace: str
) -> None:
    (tmp_path / "checkpoint").touch()
    _, ok = await killed_and_gone_on(tmp_path, namespace)
    assert counted(tmp_path) == CALLS
    assert ok


async def test_i05_one_that_was_frozen_in_a_tool_wakes_up_to_a_refusal_and_writes_nothing(
    tmp_path: Path, valkey_url: str, namespace: str
) -> None:
    async with open_store(valkey_url, namespace=namespace) as store, Ledger(store, ttl=2) as ledger:
        handle = await ledger.submit("walk", None, id="r")
        with worker(valkey_url, namespace, tmp_path) as first, worker(valkey_url, namespace, tmp_path) as second:
            assert await handle.result(timeout=60) == ["arrived", 4, 3]
            lines = CallLog(tmp_path / "calls").read("tool")
            frozen = first if lines[0]["pid"] == first.pid else second
            os.kill(frozen.pid, signal.SIGCONT)
            await ended(first)
            await ended(second)
        records, ok = await told(store)
        run = await ledger.load("r")
    logs = (tmp_path / ("log.0" if frozen is first else "log.1")).read_text()
    assert "run r stopped: LEASE_LOST" in logs, logs
    assert (run.attempt, run.crashes, len(run.grants)) == (2, 0, 2)
    assert [attempt for attempt, name in records if name in ("tool:walk@3.c3", "model:4")] == [2, 2]
    assert len(records) == 7
    assert ok
