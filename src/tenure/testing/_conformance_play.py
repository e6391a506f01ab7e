"""A short chaos on a live deployment: three workers, one killed, one frozen past its lease, every run judged.

`python -m tenure.testing._conformance_play` is one of the workers; its order is a line of JSON on stdin.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tenure.active import ActiveRun
from tenure.app import App
from tenure.core import journal
from tenure.core.run import Row, Run
from tenure.core.verify import verify_run
from tenure.ledger import Ledger
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.models import CallLog
from tenure.worker import Worker

KIND = "conformance"
RUNS = 12
STEPS = 8
STEP_S = 0.1
TTL_S = 2.0
BLOW_AFTER = 4
PATIENCE_S = 120.0
WRITABLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run at the end: its record, its journal, and what it came to."""

    run: Run
    rows: Sequence[Row]
    result: Any

    @property
    def verifies(self) -> bool:
        """Return whether the journal is whole."""
        return verify_run(self.run, self.rows).ok

    @property
    def landed(self) -> dict[str, int]:
        """Return the attempt in which each step landed."""
        found, attempt = dict[str, int](), 0
        for event in (event for row in self.rows for event in journal.events_of(row)):
            if event["type"] == journal.ATTEMPT_START:
                attempt = event["attempt"]
            elif event["type"] == journal.RECORD:
                found.setdefault(event["name"], attempt)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a play: the runs, the steps that were made, and whose process was killed or frozen."""

    told: Sequence[Told]
    made: Sequence[dict[str, Any]]
    killed: int
    frozen: int

    def again(self) -> list[str]:
        """Return the steps that had landed and were made again by a later attempt."""
        landed = {told.run.id: told.landed for told in self.told}
        return [
            f"{line['run']} {line['step']}"
            for line in self.made
            if line["attempt"] > landed[line["run"]].get(f"step:{line['step']}", line["attempt"])
        ]

    def held_by(self, pid: int) -> set[str]:
        """Return the runs that a process made steps of."""
        return {line["run"] for line in self.made if line["pid"] == pid}


async def play(url: str, namespace: str) -> Played:
    """Play it in a namespace that nobody else uses; TimeoutError after two minutes."""
    with tempfile.TemporaryDirectory(prefix="tenure-conformance-") as folder:
        log = CallLog(Path(folder) / "log")
        order = json.dumps({"url": url, "namespace": namespace, "log": str(log.path)}).encode()
        async with open_store(url, namespace=namespace) as store, Ledger(store, ttl=TTL_S) as ledger:
            with _workers(order, 3, Path(folder)) as workers, anyio.fail_after(PATIENCE_S):
                found = await _played(store, ledger, log, workers)
    return found


async def _played(store: Store, ledger: Ledger, log: CallLog, workers: list[subprocess.Popen[bytes]]) -> Played:
    await _until(lambda: len(log.read("ready")) == len(workers))
    handles = [await ledger.submit(KIND, number, id=f"run-{number}") for number in range(RUNS)]
    killed, frozen, _ = (worker.pid for worker in workers)
    await _until(lambda: _steps_of(log, killed) >= BLOW_AFTER)
    os.kill(killed, signal.SIGKILL)
    await _until(lambda: _steps_of(log, frozen) >= BLOW_AFTER)
    await _freeze(store, frozen)
    stood = {line["run"]: line["attempt"] for line in log.read("step") if line["pid"] == frozen}
    # Thawed when somebody else goes on with a run of its, which is after its lease has run out.
    await _until(
        lambda: any(
            line["run"] in stood and line["attempt"] > stood[line["run"]] and line["pid"] != frozen
            for line in log.read("step")
        )
    )
    os.kill(frozen, signal.SIGCONT)
    results = [await handle.result() for handle in handles]
    told = [
        Told(run=await handle.load(), rows=await store.tail(handle.id, limit=1000), result=result)
        for handle, result in zip(handles, results, strict=True)
    ]
    return Played(told=told, made=log.read("step"), killed=killed, frozen=frozen)


def _steps_of(log: CallLog, pid: int) -> int:
    return sum(line["pid"] == pid for line in log.read("step"))


async def _freeze(store: Store, pid: int) -> None:
    while True:
        os.kill(pid, signal.SIGSTOP)
        with anyio.move_on_after(WRITABLE_S):
            await store.raise_ttl(1)
            return
        # It sleeps with the write lock of a file, and everybody would sleep with it: let it go, and try again.
        os.kill(pid, signal.SIGCONT)
        await anyio.sleep(0.05)


async def _until(test: Callable[[], bool]) -> None:
    while not test():  # noqa: ASYNC110 - other processes write what is read
        await anyio.sleep(0.02)


@contextlib.contextmanager
def _workers(order: bytes, count: int, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    home = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))}
    try:
        for number in range(count):
            with (folder / f"said.{number}").open("wb") as said:
                command = [sys.executable, "-m", "tenure.testing._conformance_play"]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=env)
            started.append(process)
            assert process.stdin is not None
            process.stdin.write(order + b"\n")
            process.stdin.close()
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def app_of(log: CallLog) -> App:
    """Return the app of the play: runs of some short steps, each noted before it is made."""
    app = App()

    @app.kind(KIND)
    async def conformance(run: ActiveRun[int], number: int) -> int:
        async def step(at: int) -> int:
            log.write("step", run=run.id, step=f"s{at}", attempt=run.attempt)
            await anyio.sleep(STEP_S)
            return at

        return number + sum([await run.step(f"s{at}", step, at) for at in range(STEPS)])

    return app


def expected(number: int) -> int:
    """Return what a run of the play comes to."""
    return number + sum(range(STEPS))


async def _work(order: dict[str, Any]) -> None:
    log = CallLog(order["log"])
    store = open_store(order["url"], namespace=order["namespace"])
    async with store, Worker(app_of(log), store, concurrency=4, ttl=TTL_S, drain=0) as worker:
        log.write("ready")
        await worker.ended()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    anyio.run(_work, json.loads(sys.stdin.readline()))
