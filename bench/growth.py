"""Whether a store slows down as it fills: the same work beside few runs and beside many, as ratios.

    python bench/growth.py --store sqlite|redis7|valkey9|postgres [--runs 10000,1000000] [--pairs 31] [--cpu]

Half of the runs have settled, half sleep. Work is done in turns on the small and the large store, so that both see
the same machine; a ratio is the median over pairs. Exits 1 above 1.3, for a claim of 100 due runs, a page of a listing
and a checkpoint; with `--runs 0,200000` above 1.1, for a claim and a checkpoint. `--cpu` compares processor time of
client and server, which holds on a busy machine.
"""

import argparse
import secrets
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psycopg
import redis

from layers import server_us
from tenure.carry import Whole, bring
from tenure.core import build, journal
from tenure.core.run import Answer, Claim, Commit, Delete, Due, End, Facts, Grant, How, Run, Status
from tenure.store import Store, Where
from tenure.stores import open_store
from tenure.stores._postgres_connect import address
from tenure.stores._postgres_migrate import migrate
from tenure.stores._redis_keys import Keys
from tenure.testing._postgres_server import PostgresServer
from tenure.testing.generate import Model
from tenure.testing.servers import REDIS7, VALKEY9, start_server

KINDS = {"redis7": REDIS7, "valkey9": VALKEY9}
CLAIMED = 100
STEPS = 20
WARM = 2
STEP_BYTES = 2975
GROWN, SAME = 1.3, 1.1
LONG_MS = 3_600_000


def templates() -> tuple[Whole, Whole]:
    """A run that has settled and one that sleeps, as stores keep them."""
    now_us = time.time_ns() // 1000
    made = []
    for status, due in ((Status.COMPLETED, None), (Status.SUSPENDED, Due(ms=10 * LONG_MS))):
        model = Model()
        model.decide(build.create(run=f"seed-{status}", kind="bench", value={"n": 1}), Facts(now_us=now_us))
        model.decide(Claim(run=f"seed-{status}", nonce="n" * 32, owner="w", ttl_ms=LONG_MS), Facts(now_us=now_us))
        run = model.run or sys.exit("the template was not claimed")
        more: dict[str, Any] = {"inbox_seq": 0, "wants": ["go"]} if due else {}
        model.decide(build.commit(grant_of(run), 2, run.head, [], status=status, due=due, **more), Facts(now_us=now_us))
        whole = model.whole() or sys.exit("there is no template")
        made.append(whole)
    return made[0], made[1]


def grant_of(run: Run) -> Grant:
    """The grant that a record names."""
    return Grant(run=run.id, token=run.token, nonce=run.nonce, epoch=run.epoch, ttl_ms=run.granted_ttl_ms)


async def fill(store: Store, url: str, runs: int) -> None:
    """Make a store hold so many runs: two by import, the others as copies by its own means."""
    if not runs:
        return
    for whole in templates():
        answer = await store.commit(bring(whole, salt="5a17"))
        if not answer.ok:
            sys.exit(f"a template was refused: {answer.why}")
        if store.url.startswith("sqlite"):
            copy_sqlite(url.removeprefix("sqlite:///"), whole.record.id, runs // 2)
        elif store.url.startswith("redis"):
            copy_redis(url, store.namespace, whole.record, runs // 2)
        else:
            await copy_postgres(url, whole.record.id, runs // 2)


SQL = """
INSERT INTO run (space, id, kind, status, owner, parent, created_ms, token, priority, entry_ms, record)
WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
SELECT space, printf('%s-%08d', id, i), kind, status, owner, parent, created_ms - i, token, priority, entry_ms + i,
    replace(replace(record, '"id":"' || id || '"', printf('"id":"%s-%08d"', id, i)),
        printf('"created_ms":"%d"', created_ms), printf('"created_ms":"%d"', created_ms - i))
FROM n, (SELECT * FROM run WHERE id = ?1)
"""


def copy_sqlite(path: str, run_id: str, times: int) -> None:
    """Copy a run in the file itself."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(SQL, (run_id, times))
    (first,) = connection.execute("SELECT number FROM run WHERE id = ?", (run_id,)).fetchone()
    journal_of = (
        "INSERT INTO journal SELECT (number << 32) + 1, (SELECT data FROM journal WHERE key = ?) FROM run "
        "WHERE id GLOB ? ORDER BY number"
    )
    connection.execute(journal_of, ((first << 32) + 1, f"{run_id}-*"))
    connection.execute("COMMIT")
    connection.close()


LUA = """
local at, id, first, last = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local flat, log, names = redis.call('HGETALL', at .. 'run:' .. id), redis.call('LRANGE', at .. 'log:' .. id, 0, 0), {}
for i = 1, #flat, 2 do names[flat[i]] = i + 1 end
local created, status, kind = flat[names.created_ms], flat[names.status], flat[names.kind]
local due, token, priority = flat[names.due_ms], flat[names.token], flat[names.priority]
for i = first, last do
  local copy = id .. string.format('-%08d', i)
  flat[names.id], flat[names.created_ms] = copy, string.format('%.0f', created - i)
  redis.call('HSET', at .. 'run:' .. copy, unpack(flat))
  redis.call('RPUSH', at .. 'log:' .. copy, log[1])
  redis.call('ZADD', at .. 'status:' .. status, created - i, copy)
  if due ~= '' then redis.call('ZADD', at .. 'due:' .. kind, due + i, copy .. ' ' .. token .. ' ' .. priority) end
end
"""


def copy_redis(url: str, namespace: str, run: Run, times: int) -> None:
    """Copy a run in the server itself, a thousand at a time."""
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        copy = client.register_script(LUA)
        at = Keys(namespace).meta.removesuffix("meta")
        for first in range(1, times + 1, 1000):
            copy(args=[at, run.id, first, min(first + 999, times)])


PG = """
WITH seed AS (SELECT * FROM tenure.run WHERE id = %(id)s AND space = (SELECT max(space) FROM tenure.run)),
made AS (
    INSERT INTO tenure.run (space, id, kind, schema, code_version, status, token, epoch, last_seq, head, base_seq,
        wants, parent, due_ms, priority, input_digest, created_ms, updated_ms, grants, entry_ms)
    SELECT space, id || '-' || lpad(n::text, 8, '0'), kind, schema, code_version, status, token, epoch, last_seq, head,
        base_seq, wants, parent, due_ms, priority, input_digest, created_ms - n, updated_ms, grants, entry_ms + n
    FROM seed, generate_series(1, %(times)s) AS n RETURNING number
)
INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body)
SELECT made.number, 1, j.token, j.mark, j.digest, j.at_ms, j.body
FROM made, tenure.journal AS j WHERE j.run = (SELECT number FROM seed) AND j.seq = 1
"""


async def copy_postgres(url: str, run_id: str, times: int) -> None:
    """Copy a run of the newest namespace in the server itself."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(PG, {"id": run_id, "times": times})
        # What the server would do by itself after so many rows came at once, or it would do it while we measure.
        await connection.execute("VACUUM (FREEZE, ANALYZE) tenure.run")
        await connection.execute("VACUUM (FREEZE, ANALYZE) tenure.journal")
        await connection.execute("CHECKPOINT")


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
        grant, seq, head = grant_of(run), run.last_seq, run.head
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
