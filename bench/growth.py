"""Whether a store slows down as it fills: the same work beside few runs and beside many, as ratios.

    python bench/growth.py --store sqlite|redis7|valkey9|postgres [--runs 10000,1000000] [--pairs 31] [--cpu]

Half of the runs have settled, half sleep. Work is done in turns on the small and the large store, so that both see
the same machine; a ratio is the median over pairs. Exits 1 above 1.3, for a claim of 100 due runs, a page of a listing
and a checkpoint; with `--runs 0,200000` above 1.1, for a claim and a checkpoint. `--cpu` compares processor time of
client and server, which holds on a busy machine.
"""

import argparse
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import psycopg
import redis

from filled import LONG_MS, fill
from layers import server_us
from tenure.core import build, journal
from tenure.core.run import Answer, Claim, Commit, Delete, End, How, Run, Status
from tenure.store import Store, Where
from tenure.stores import open_store
from tenure.stores._postgres_connect import address
from tenure.stores._postgres_migrate import migrate
from tenure.testing._postgres_server import PostgresServer
from tenure.testing.servers import REDIS7, VALKEY9, start_server

KINDS = {"redis7": REDIS7, "valkey9": VALKEY9}
CLAIMED = 100
STEPS = 20
WARM = 2
STEP_BYTES = 2975
GROWN, SAME = 1.3, 1.1


@dataclass(slots=True)
class Side:
    """One of the two stores, the work that is done on it, and how long each piece took."""

    store: Store
    clock: Callable[[], float]
    pages: bool
    """Whether listings are compared: beside no runs there is nothing to list, and both sides leave it out."""
    took: dict[str, list[float]] = field(default_factory=dict)
    run: Run | None = None

    async def timed(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do a piece of work and note how long it took."""
        begun = self.clock()
        await work()
        self.took.setdefault(name, []).append(self.clock() - begun)

    async def begin(self) -> None:
        """Make the run that checkpoints are written to."""
        await self.store.commit(build.create(run="writer", kind="writer", value={}))
        claim = Claim(run="writer", nonce=secrets.token_hex(16), owner="w", ttl_ms=LONG_MS)
        self.run = (await self.store.commit(claim)).run

    async def turn(self) -> None:
        """Do each piece once."""
        ids = [f"due-{number}" for number in range(CLAIMED)]
        await self._ask([build.create(run=run_id, kind="bench", value={}) for run_id in ids])
        await self.timed("claim of 100 due runs", self._claim)
        await self._ask([End(run=run_id, how=How.CANCEL) for run_id in ids])
        await self._ask([Delete(run=run_id) for run_id in ids])
        if self.pages:
            await self.timed("page of all runs", self._page)
            await self.timed("page of settled runs", self._settled)
        await self.timed("checkpoint", self._steps)

    async def _ask(self, changes: list[object]) -> None:
        for answer in await self.store.commit_many(changes):  # type: ignore[arg-type]
            if not isinstance(answer, Answer) or not answer.ok:
                sys.exit(f"a change was refused: {answer}")

    async def _claim(self) -> None:
        hints = await self.store.due(["bench"], limit=CLAIMED)
        if len(hints) != CLAIMED:
            sys.exit(f"{len(hints)} runs were due and not {CLAIMED}")
        nonce = secrets.token_hex(16)
        await self._ask(
            [Claim(run=hint.run, nonce=nonce, owner="w", ttl_ms=LONG_MS, token=hint.token) for hint in hints]
        )

    async def _page(self) -> None:
        await self.store.find(limit=100)

    async def _settled(self) -> None:
        await self.store.find(Where(status=(Status.COMPLETED,)), limit=100)

    async def _steps(self) -> None:
        run = self.run or sys.exit("there is no run to write to")
        grant, seq, head = build.grant_of(run), run.last_seq, run.head
        for _ in range(STEPS):
            event = journal.event(journal.CHECKPOINT, value="x" * STEP_BYTES)
            change: Commit = build.commit(grant, seq + 1, head, [event], step=1)
            answer = await self.store.commit(change)
            if not answer.ok:
                sys.exit(f"a checkpoint was refused: {answer.why}")
            seq, head = change.row.seq, change.row.digest
        self.run = await self.store.load("writer")


SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def clock(url: str, *, cpu: bool) -> Callable[[], float]:
    """What is compared: time, or the processor time of this process and the server, in seconds."""
    if not cpu:
        return time.perf_counter
    if url.startswith("sqlite"):
        return time.process_time
    if url.startswith("postgres"):
        asking = psycopg.connect(url, autocommit=True)

        def sessions() -> float:
            pids = [pid for (pid,) in asking.execute(SESSIONS)]
            return time.process_time() + sum(map(server_us, pids)) / 1e6

        return sessions
    client = redis.Redis.from_url(url)

    def both() -> float:
        said: dict[str, float] = client.info("cpu")
        return time.process_time() + said["used_cpu_user"] + said["used_cpu_sys"]

    return both


async def compare(urls: list[str], runs: list[int], pairs: int, *, cpu: bool) -> list[Side]:
    """Fill two stores and work on them in turns."""
    async with AsyncExitStack() as stack:
        sides = []
        for url, count in zip(urls, runs, strict=True):
            store = await stack.enter_async_context(open_store(url, namespace=f"growth-{secrets.token_hex(4)}"))
            begun = time.perf_counter()
            await fill(store, url, count)
            print(f"{count:,} runs are there after {time.perf_counter() - begun:.0f} s", flush=True)
            sides.append(Side(store, clock(url, cpu=cpu), pages=runs[0] > 0))
            await sides[-1].begin()
        for number in range(pairs + WARM):
            for side in sides if number % 2 else reversed(sides):
                await side.turn()
        return sides


def compared(store: str, runs: list[int], pairs: int, *, cpu: bool) -> list[Side]:
    """Work on two files, two databases of a private server, or two namespaces of one."""
    work = partial(compare, runs=runs, pairs=pairs, cpu=cpu)
    if store == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            return anyio.run(work, [f"sqlite:///{Path(folder) / f'{n}.db'}" for n in range(2)])
    if store == "postgres":
        with PostgresServer() as server:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("CREATE DATABASE beside")  # rows of one namespace make the tables of all longer
            urls = [server.url, server.url.replace("/postgres", "/beside")]
            for url in urls:
                anyio.run(migrate, address(url, {}))
            return anyio.run(work, urls)
    with start_server(KINDS[store], options={"save": '""'}) as server:
        return anyio.run(work, [server.url] * 2)


def measure(sides: list[Side], runs: list[int]) -> bool:
    """Print one line a bar; whether all of them hold."""
    held = True
    for name, small in sides[0].took.items():
        ratios = [b / a for a, b in zip(small[WARM:], sides[1].took[name][WARM:], strict=True)]
        ratio, bar = statistics.median(ratios), GROWN if runs[0] else SAME
        held &= ratio <= bar
        ms = statistics.median(small[WARM:]) * 1000
        word = "held" if ratio <= bar else "MISSED"
        print(f"{name}: {ms:.2f} ms beside {runs[0]:,}, {ratio:.3f} x that beside {runs[1]:,} (bar {bar}, {word})")
    return held


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", required=True, choices=["sqlite", *KINDS, "postgres"])
    parser.add_argument("--runs", default="10000,1000000")
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args()
    counts = [int(text) for text in asked.runs.split(",")]
    if len(counts) != 2 or asked.pairs < 5:
        sys.exit("compare two numbers of runs, in at least 5 pairs")
    sys.exit(not measure(compared(asked.store, counts, asked.pairs, cpu=asked.cpu), counts))
