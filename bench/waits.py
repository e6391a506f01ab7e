"""What runs that wait cost, and how fast one is woken: N sleeping runs beside a `tenure worker` on one server.

The worker's memory and processor time are measured without the sleeping runs and with them; then signals are sent to
runs that wait, each timed until its handler goes on. The worker leads, so its share holds the repair pass, which looks
at each open run about once a minute and keeps their ids meanwhile. Exits 1 if the sleeping runs cost it more than
64 MiB or 25 % of a core, or if more than 5 in 100 signals took longer than 100 ms.
"""

import argparse
import asyncio
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tenure import Ledger, Status, Store, open_store
from tenure.core import build
from tenure.core.run import Claim, Due, Grant
from tenure.errors import TenureError
from tenure.testing.servers import VALKEY9, start_server

APP = """
import time
from tenure import ActiveRun, App
app = App()

@app.kind("sleeper")
async def sleeper(run: ActiveRun[None], _: None) -> None:
    await run.sleep("long", 3600)

@app.kind("listener")
async def listener(run: ActiveRun[None], _: None) -> int:
    await run.wait_for("go")
    return await run.step("woken", time.monotonic_ns)
"""
BATCH = 500
DAY_MS = 86_400_000


async def put_to_sleep(store: Store, count: int) -> None:
    """Make `count` runs that sleep for a day, by the changes that a worker would ask for."""
    await store.raise_ttl(30_000)
    for first in range(0, count, BATCH):
        names = [f"s{number}" for number in range(first, min(count, first + BATCH))]
        creates = [build.create(run=name, kind="sleeper", value=None) for name in names]
        claims = [Claim(run=name, nonce=secrets.token_hex(16), owner="bench", ttl_ms=30_000) for name in names]
        await store.commit_many(creates)
        commits = []
        for claim, answer in zip(claims, await store.commit_many(claims), strict=True):
            if isinstance(answer, TenureError) or answer.run is None or not answer.ok:
                raise SystemExit(f"run {claim.run} could not be claimed")
            run = answer.run
            grant = Grant(run=run.id, token=run.token, nonce=claim.nonce, epoch=run.epoch, ttl_ms=30_000)
            due = Due(ms=DAY_MS)
            commits.append(
                build.commit(
                    grant, run.last_seq + 1, run.head, [], status=Status.SUSPENDED, wants=(), inbox_seq=0, due=due
                )
            )
        await store.commit_many(commits)


def used(pids: list[int]) -> tuple[float, float]:
    """Return the memory (MiB) and the processor time (seconds) of processes."""
    memory = ticks = 0
    for pid in pids:
        memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return memory / (1 << 20), ticks / os.sysconf("SC_CLK_TCK")


async def cost(pids: list[int], seconds: float) -> tuple[float, float]:
    """Return the memory (MiB) and the share of a core (%) that processes take in the next `seconds`."""
    _, before = used(pids)
    await asyncio.sleep(seconds)
    memory, after = used(pids)
    return memory, (after - before) / seconds * 100


async def wake(ledger: Ledger, count: int, name: str) -> list[float]:
    """Return how many milliseconds each of `count` runs took from its signal to its handler."""
    took: list[float] = []
    for number in range(count):
        handle = await ledger.submit("listener", None, id=f"{name}{number}")
        while (await handle.load()).status is not Status.SUSPENDED:  # noqa: ASYNC110 - another process suspends it
            await asyncio.sleep(0.01)
        sent_ns = time.monotonic_ns()
        await handle.signal("go")
        took.append((int(await handle.result()) - sent_ns) / 1e6)
    return took


async def measure(sleepers: int, seconds: float, signals: int, room: Path) -> bool:
    """Measure, print, and return whether it is within the bars."""
    (room / "waiting_app.py").write_text(APP)
    with start_server(VALKEY9) as server:
        async with open_store(server.url) as store, Ledger(store) as ledger:
            memory, share, _ = await beside_worker(ledger, room, seconds, 0)
            await put_to_sleep(store, sleepers)
            memory_with, share_with, took = await beside_worker(ledger, room, seconds, signals)
    p95 = took[int(len(took) * 0.95) - 1]
    print(f"worker without sleeping runs: {memory:.1f} MiB, {share:.1f} % of a core")
    print(f"worker with {sleepers:,} of them: {memory_with:.1f} MiB, {share_with:.1f} % of a core")
    print(f"signal to handler: median {statistics.median(took):.1f} ms, 95 in 100 within {p95:.1f}, max {took[-1]:.1f}")
    return memory_with - memory < 64 and share_with - share < 25 and p95 <= 100


async def beside_worker(ledger: Ledger, room: Path, seconds: float, signals: int) -> tuple[float, float, list[float]]:
    """Return what a worker of its own costs in `seconds`, and how long each of the signals to its runs took, sorted."""
    paths = os.pathsep.join([*sys.path, str(room)])
    env = {**os.environ, "TENURE_STORE": ledger.store.url, "TENURE_LOG": "error", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "tenure", "worker", "waiting_app:app", "--processes", "0"]
    worker = subprocess.Popen(command, env=env, cwd=room)  # noqa: ASYNC220 - at once
    try:
        await wake(ledger, 1, f"warm{signals}-")
        memory, share = await cost([worker.pid], seconds)
        return memory, share, sorted(await wake(ledger, signals, f"l{signals}-"))
    finally:
        worker.send_signal(signal.SIGINT)
        await asyncio.to_thread(worker.wait)


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleepers", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--signals", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        return 0 if asyncio.run(measure(asked.sleepers, asked.seconds, asked.signals, Path(room))) else 1


if __name__ == "__main__":
    sys.exit(main())
