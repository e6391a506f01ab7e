"""The rows on PostgreSQL: beside bare statements of the same bytes, and 32 runs beside one."""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from speed.bars import LATE_PLOT, RATE_PLOT, Bar, Found, Setting, adjacent, rates, ratio, spread, step_of
from speed.holding import granted, hold
from speed.on_langgraph import bar as langgraph_bar
from speed.on_langgraph import late_step
from speed.shape import late_step as grown
from tenure.core import canonical, journal
from tenure.core.run import Renew
from tenure.testing.servers import PostgresServer

RUNS = 32
NEEDS = ("psycopg", "psycopg_pool", "tenure.stores.postgres")
DURABLE: dict[str, str | int] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": 120,
}
_TABLES = """
CREATE TABLE bare (id int PRIMARY KEY, seq bigint NOT NULL, head text NOT NULL, lease_until_us bigint NOT NULL);
CREATE TABLE bare_rows (run int, seq bigint, data bytea NOT NULL, PRIMARY KEY (run, seq));
INSERT INTO bare VALUES (1, 0, '', 0);
"""
_UPDATE = "UPDATE bare SET seq = %s, head = %s, lease_until_us = %s WHERE id = 1"
_INSERT = "INSERT INTO bare_rows VALUES (1, %s, %b)"
_ONE = f"WITH updated AS ({_UPDATE}) {_INSERT}"


def postgres_url(setting: Setting) -> str:
    """Return the URL of a private server that flushes, with tenure's schema in it."""
    return f"{setting.stack.enter_context(PostgresServer(options=DURABLE)).url}?migrate=on"


async def connection(setting: Setting, url: str) -> Any:
    """Return a connection of psycopg that commits each statement, closed with the setting."""
    import psycopg

    opened = await psycopg.AsyncConnection.connect(url.partition("?")[0], autocommit=True)
    setting.stack.push_async_callback(opened.close)
    return opened


async def peer_url(setting: Setting, url: str) -> str:
    """Return the URL of a database of a peer's own on the same server.

    DBOS keeps a transaction open for as long as it runs. In one database with it the server may remove no version of a
    row that was updated since, and every one of ours would pay for that.
    """
    opened = await connection(setting, url)
    await opened.execute("CREATE DATABASE peer")
    return urlsplit(url)._replace(path="/peer", query="").geturl()


async def checkpoint(setting: Setting, statements: int) -> Found:
    """Compare one checkpoint with an UPDATE and an INSERT of the same bytes, in one statement or in a transaction."""
    url = postgres_url(setting)
    held, bare_side = await hold(setting, url), await connection(setting, url)
    await bare_side.execute(_TABLES)
    data, seq = canonical.encode(step_of(0)), [0]

    async def one(times: int) -> None:
        for _ in range(times):
            seq[0] += 1
            await bare_side.execute(_ONE, (seq[0], "0" * 64, seq[0], seq[0], data), prepare=True)

    async def two(times: int) -> None:
        for _ in range(times):
            seq[0] += 1
            async with bare_side.transaction():
                await bare_side.execute(_UPDATE, (seq[0], "0" * 64, seq[0]), prepare=True)
                await bare_side.execute(_INSERT, (seq[0], data), prepare=True)

    return ratio(await adjacent(held.checkpoints, one if statements == 1 else two, setting.pairs))


async def many(setting: Setting) -> Found:
    """Compare steps of 32 runs at once with steps of one run on the same server."""
    held = await hold(setting, postgres_url(setting), RUNS)
    found = ratio(await adjacent(held.at_once(RUNS), held.checkpoints, setting.pairs), ours_per=RUNS)
    found.lines["tenure, PostgreSQL"] = await rates(held.at_once)
    return found


async def heartbeat(setting: Setting) -> Found:
    """Return the milliseconds of one heartbeat of 1,000 runs, from the request to the answer."""
    held = await hold(setting, postgres_url(setting))
    renewals = [Renew(grant=await granted(held, f"beat-{number}")) for number in range(1000)]
    found = []
    for _ in range(setting.pairs):
        begun = time.perf_counter()
        answers = await held.store.commit_many(renewals)
        found.append((time.perf_counter() - begun) * 1000)
        if not all(getattr(answer, "ok", False) for answer in answers):
            raise RuntimeError("a renewal was refused")
    return spread(found)


async def wal(setting: Setting) -> Found:
    """Compare the write-ahead log of a run of 400 steps with its events."""
    url = postgres_url(setting)
    held, asking = await hold(setting, url), await connection(setting, url)
    await held.checkpoints(40)
    await asking.execute("CHECKPOINT")
    lease = held.leases[0]
    events = 0
    for number in range(10):  # the first writes to a page after a checkpoint of the server carry the whole page
        await lease.checkpoint(step_of(number))
    begun = await _position(asking)
    for number in range(400):
        events += len(journal.event(journal.CHECKPOINT, value=step_of(number)))
        await lease.checkpoint(step_of(number))
    found = (await _position(asking) - begun) / events
    return Found(number=found, low=found, high=found)


async def _position(asking: Any) -> int:
    found = await (await asking.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")).fetchone()
    return int(found[0])


async def postgres_late_step(setting: Setting) -> Found:
    """Compare step 400 with step 10."""
    return await grown(setting, "PostgreSQL", postgres_url(setting))


def _bar(name: str, says: str, measure: Any, **limit: Any) -> Bar:
    return Bar(name=name, says=says, measure=measure, **{"needs": NEEDS, **limit})


BARS = [
    _bar(
        "postgres-checkpoint",
        "checkpoint of 3 KB, synchronous_commit on, to a bare UPDATE and INSERT of the same bytes in one statement",
        partial(checkpoint, statements=1),
        least=0.65,
    ),
    _bar(
        "postgres-checkpoint-2",
        "the same, to the two statements in a transaction",
        partial(checkpoint, statements=2),
        least=1.2,
    ),
    _bar(
        "postgres-32-runs",
        "steps a second of 32 runs at once, to one run one by one",
        many,
        least=5,
        plot=RATE_PLOT,
        at_once=True,
    ),
    _bar("postgres-heartbeat", "one heartbeat of 1,000 runs, from request to answer", heartbeat, under=30, unit="ms"),
    _bar("postgres-bytes", "write-ahead log of a run of 400 steps to its events", wal, under=1.3),
    _bar(
        "postgres-late-step",
        "cost of step 400 to that of step 10, PostgreSQL",
        postgres_late_step,
        under=1.1,
        plot=LATE_PLOT,
    ),
    langgraph_bar(
        "postgres-langgraph",
        "PostgreSQL",
        partial(
            late_step,
            peer="langgraph-postgres",
            url_of=postgres_url,
            where_of=peer_url,
            name="PostgreSQL",
        ),
        *NEEDS,
        "langgraph.checkpoint.postgres",
        least=30,
    ),
]
