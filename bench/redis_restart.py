"""Restart a Redis that loses nothing while many runs are in flight, and see who keeps which run, and how soon.

    python bench/redis_restart.py [--runs 100] [--rounds 1] [--down 1.0] [--kind all|redis7,..] [--record]

One process holds the runs and ends a step of each every 50 ms or so. The server (append-only file, always flushed) is
killed and comes back on its data. Exits 1 if a run was lost to its holder, a journal does not hold what was
acknowledged, or a holder needed more than 2 s from the first answered PING to its first acknowledged step.
"""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field

from evidence import programs, record, versions
from tenure import Ledger, open_store
from tenure.core.verify import verify_run
from tenure.errors import TenureError
from tenure.lease import Lease
from tenure.testing.servers import REDIS_KINDS, RedisServer, ServerKind, start_server

BAR_S = 2.0
STEP_S = 0.05
TTL_S = 15.0


@dataclass(slots=True, kw_only=True)
class Round:
    """What came of one restart."""

    runs: int
    acknowledged: dict[str, list[float]] = field(default_factory=dict)
    """When each step of a run was acknowledged."""
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    killed_s: float = 0
    answered_s: float = 0

    def back_after_s(self) -> list[float]:
        """Return how long after the first answered PING each run had its next step."""
        after = ([at for at in times if at > self.answered_s] for times in self.acknowledged.values())
        return sorted(times[0] - self.answered_s for times in after if times)


async def _work(lease: Lease, run_id: str, done: Round, stop: asyncio.Event) -> None:
    drawn = random.Random(run_id)
    number = 0
    while not stop.is_set():
        number += 1
        await lease.checkpoint({"step": number})
        done.acknowledged[run_id].append(time.monotonic())
        await asyncio.sleep(drawn.uniform(0, 2 * STEP_S))


async def _hold(ledger: Ledger, run_id: str, done: Round, stop: asyncio.Event, ready: asyncio.Semaphore) -> None:
    try:
        async with ledger.hold(run_id) as lease:
            ready.release()
            await _work(lease, run_id, done, stop)
            await lease.settle(value=len(done.acknowledged[run_id]))
    except TenureError as error:
        done.lost.append(f"{run_id}: {error}")


async def restarted(server: RedisServer, runs: int, down_s: float) -> Round:
    """Hold runs, restart the server under them, let each go on, and look at what is stored."""
    done, stop, ready = Round(runs=runs), asyncio.Event(), asyncio.Semaphore(0)
    names = [f"r{number:03}" for number in range(runs)]
    done.acknowledged = {name: [] for name in names}
    async with open_store(server.url, durability="disk") as store, Ledger(store, ttl=TTL_S) as ledger:
        for name in names:
            await ledger.submit("k", None, id=name)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(_hold(ledger, name, done, stop, ready))
            for _ in names:
                await ready.acquire()
            await asyncio.sleep(1)
            done.killed_s = time.monotonic()
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(down_s)
            await asyncio.to_thread(server.start)  # returns when it answers PING
            done.answered_s = time.monotonic()
            async with asyncio.timeout(60):
                while len(done.back_after_s()) + len(done.lost) < runs:  # noqa: ASYNC110 - others bring it about
                    await asyncio.sleep(0.02)
            stop.set()
        for name in names:
            run, rows = await store.load(name), await store.tail(name, limit=100_000)
            steps = sum(b'"checkpoint"' in row.body for row in rows)
            if run is None or not verify_run(run, rows).ok or steps < len(done.acknowledged[name]):
                done.wrong.append(f"{name} holds {steps} steps of {len(done.acknowledged[name])} acknowledged")
    return done


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--down", type=float, default=1.0, help="seconds that the server is away")
    parser.add_argument("--kind", default="all", help="all, or some of " + ",".join(kind.name for kind in REDIS_KINDS))
    parser.add_argument("--within", type=float, default=BAR_S, help="seconds until all have to be back")
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked = parser.parse_args()
    kinds = [kind for kind in REDIS_KINDS if asked.kind == "all" or kind.name in asked.kind.split(",")]
    ran = versions(programs(kinds))
    print(ran)
    violations, lines = 0, list[str]()
    for kind in kinds:
        for _ in range(asked.rounds):
            line, wrong = _of(kind, asked.runs, asked.down, asked.within)
            print(line, *wrong, sep="\n  VIOLATION ", flush=True)
            lines.append(line)
            violations += len(wrong)
    print(f"{len(lines)} restarts, {violations} violations")
    if asked.record:
        record(bar="redis restart", seed=0, counts="; ".join(lines), ran=ran, violations=violations)
    return violations > 0


def _of(kind: ServerKind, runs: int, down_s: float, within_s: float) -> tuple[str, list[str]]:
    with start_server(kind, options={"appendonly": "yes", "appendfsync": "always"}) as server:
        done = asyncio.run(restarted(server, runs, down_s))
    back_s = done.back_after_s()
    wrong = [*done.lost, *done.wrong]
    if len(back_s) < runs or back_s[-1] > within_s:
        wrong.append(f"{sum(at <= within_s for at in back_s)} of {runs} were back within {within_s} s")
    steps = sum(len(times) for times in done.acknowledged.values())
    last = f"{back_s[-1] * 1000:.0f} ms" if back_s else "never"
    median = f"{back_s[len(back_s) // 2] * 1000:.0f} ms" if back_s else "never"
    away_ms = (done.answered_s - done.killed_s) * 1000
    counts = f"{runs} runs, {steps} steps, away {away_ms:.0f} ms, lost {len(done.lost)}"
    return f"{kind.name}: {counts}, back after median {median}, last {last}", wrong


if __name__ == "__main__":
    sys.exit(main())
