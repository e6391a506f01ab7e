"""A store filled with runs: two by import, the others as copies by the store's own means."""

import sqlite3
import sys
import time
from typing import Any

import psycopg
import redis

from tenure.carry import Whole, bring
from tenure.core import build
from tenure.core.run import Claim, Due, Facts, Run, Status
from tenure.store import Store
from tenure.stores._redis_keys import Keys
from tenure.testing.generate import Model

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
        commit = build.commit(build.grant_of(run), 2, run.head, [], status=status, due=due, **more)
        model.decide(commit, Facts(now_us=now_us))
        whole = model.whole() or sys.exit("there is no template")
        made.append(whole)
    return made[0], made[1]


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
