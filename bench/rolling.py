"""Replace the workers of a fleet one by one while runs go on, and see how long each run had no holder.

    python bench/rolling.py [--runs 100] [--workers 3] [--store valkey9,sqlite] [--seed 20] [--record]

Workers of version 1, each a process of its own, work on runs whose steps take a second. For each of them a worker of
version 2 starts, and when it is ready the old one is sent SIGTERM and hands back what it holds. Times are the store's:
from the end of one grant to the beginning of the next, in the grant logs of the runs. Exits 1 if a run was without a
holder for a second or more at a time, counts a crash, an attempt or a failure, or is not completed by version 2.
"""

import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from evidence import STORES, Place, places, record, versions
from tenure import Ledger, Run, Status, open_store

BAR_MS = 1000
TTL_S = 10.0
STEP_S = 1.0
APP = """
import os, random
from pathlib import Path
import anyio
from tenure import ActiveRun, App

VERSION, *ACCEPTS = os.environ["ROLLING_VERSION"].split()
app = App(version=VERSION, accepts=ACCEPTS)

@app.kind("voyage")
async def voyage(run: ActiveRun[None], _: None) -> str:
    draw = random.Random(run.id)

    async def leg() -> bool:
        await anyio.sleep(draw.uniform(0.5, 1.5) * float(os.environ["ROLLING_STEP_S"]))
        return Path("arrived").exists()

    number = 0
    while not await run.step(f"leg-{number}", leg):
        number += 1
    return VERSION
"""


@dataclass(slots=True)
class Workers:
    """The worker processes of one deploy, in a folder that holds their app and their logs."""

    place: Place
    slots: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def start(self, version: str) -> subprocess.Popen[bytes]:
        """Start a worker, and return it when it takes runs."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "ROLLING_VERSION": version,
            "ROLLING_STEP_S": str(STEP_S),
            "TENURE_STORE": self.place.url,
            "TENURE_TTL": str(TTL_S),
            "TENURE_LOG": "info",
            "PYTHONPATH": os.pathsep.join([*sys.path, str(self.place.folder)]),
        }
        options = ["--processes", "0", "--concurrency", str(self.slots), "--health", f"127.0.0.1:{port}"]
        with (self.place.folder / f"log.{len(self.started)}").open("ab") as log:
            process = subprocess.Popen(  # noqa: ASYNC220 - at once
                [sys.executable, "-m", "tenure", "worker", "rolling_deploy_app:app", *options],
                env=environment,
                cwd=self.place.folder,
                stderr=log,
            )
        self.started.append(process)
        with anyio.fail_after(60):
            while not await anyio.to_thread.run_sync(_ready, port):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.05)
        return process


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def crew(place: Place, slots: int) -> Iterator[Workers]:
    """Worker processes that are gone when the block ends."""
    (place.folder / "rolling_deploy_app.py").write_text(APP)
    made = Workers(place, slots)
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.wait()


async def deploy(place: Place, runs: int, workers: int, seed: int) -> list[Run]:
    """Replace each worker under the runs, let them arrive, and return them."""
    drawn = random.Random(seed)
    slots = 6 * runs // (5 * workers)  # a fifth more than the runs need
    with crew(place, slots) as made:
        async with open_store(place.url) as store, Ledger(store) as ledger:
            names = [f"r{number:03}" for number in range(runs)]
            for name in names:
                await ledger.submit("voyage", None, id=name)
            old = [await made.start("1") for _ in range(workers)]
            await _all_held(ledger, names)
            for process in old:
                await made.start("2 1")
                await anyio.sleep(drawn.uniform(0, STEP_S))
                process.send_signal(signal.SIGTERM)
                await anyio.to_thread.run_sync(process.wait, 60)
            await _all_held(ledger, names)
            (place.folder / "arrived").touch()
            for name in names:
                await ledger.handle(name).result(timeout=60)
            found = [await ledger.load(name) for name in names]
    return found


async def _all_held(ledger: Ledger, names: list[str]) -> None:
    with anyio.fail_after(60):
        for name in names:
            while (await ledger.load(name)).status is not Status.RUNNING:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.05)


def gaps_ms(run: Run, /) -> list[int]:
    """Return how long a run had no holder between each two grants, in milliseconds."""
    return [after.from_ms - before.until_ms for before, after in zip(run.grants, run.grants[1:], strict=False)]


def _long(run: Run) -> list[str]:
    pairs = zip(run.grants, run.grants[1:], strict=False)
    return [
        f"{ms} ms, from {before.until_ms}, between {before.owner} and {after.owner}"
        for ms, (before, after) in zip(gaps_ms(run), pairs, strict=True)
        if ms >= BAR_MS
    ]


def judged(runs: list[Run], place: Place, took_s: float) -> tuple[str, list[str]]:
    """Return what came of one deploy in words, and what was wrong with it."""
    gaps = sorted(gap for run in runs for gap in gaps_ms(run))
    wrong = [
        f"{run.id} is {run.status.value} by version {run.code_version}, attempt {run.attempt}, {run.crashes} crashes"
        for run in runs
        if (run.status, run.attempt, run.crashes, run.failures, run.code_version) != (Status.COMPLETED, 1, 0, 0, "2")
    ]
    wrong += [f"{run.id} had no holder for {line}" for run in runs for line in _long(run)]
    p99 = gaps[len(gaps) * 99 // 100]
    line = (
        f"{place.name}: {len(runs)} runs changed hands {len(gaps)} times in {took_s:.0f} s, without a holder for "
        f"median {statistics.median(gaps):.0f} ms, 99 in 100 within {p99} ms, longest {gaps[-1]} ms"
    )
    return line, wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--store", default="valkey9,sqlite", help="some of " + ",".join(STORES) + ", or a URL")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    parser.add_argument("--logs", type=Path, help="a folder to keep the workers' logs in")
    asked = parser.parse_args()
    lines: list[str] = []
    violations = 0
    with places(asked.store.split(","), asked.logs) as found:
        ran = versions(found)
        print(f"seed {asked.seed}, {ran}")
        for place in found:
            began_s = time.monotonic()
            runs = anyio.run(deploy, place, asked.runs, asked.workers, asked.seed)
            line, wrong = judged(runs, place, time.monotonic() - began_s)
            print(line, *wrong, sep="\n  VIOLATION ", flush=True)
            lines.append(line)
            violations += len(wrong)
    if asked.record:
        record(bar="rolling deploy", seed=asked.seed, counts="; ".join(lines), ran=ran, violations=violations)
    return violations > 0


if __name__ == "__main__":
    sys.exit(main())
