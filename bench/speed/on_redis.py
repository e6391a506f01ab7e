"""The rows on Redis: beside bare commands of redis-py, and what a heartbeat, a claim and a read-back cost."""

from __future__ import annotations

import statistics
import time
from typing import Any

import redis.asyncio

from speed.bars import RATE_PLOT, Bar, Found, Repeat, Setting, adjacent, cost, rates, ratio, spread, step_of, text_at
from speed.holding import Held, granted, hold, redis_server
from tenure.core import build, canonical, journal
from tenure.core.run import Claim, How, Renew
from tenure.stores._redis_keys import Keys, KindMemo
from tenure.stores._redis_script import script
from tenure.stores._redis_stubs import Stubs
from tenure.testing.servers import server_section

RUNS = 32
LARGE_BYTES = 256 * 1024
SCRIPT_US = 100
"""What the slow log begins at: below are the commands of a script, and to log each would cost a tenth of the script."""


def client_of(setting: Setting, url: str) -> Any:
    """Return a client object of redis-py, closed with the setting."""
    client = redis.asyncio.Redis.from_url(url)
    setting.stack.push_async_callback(client.aclose)
    return client


async def checkpoint(setting: Setting, fsync: str = "everysec") -> Found:
    """Compare one checkpoint with one SET of the same bytes."""
    server = redis_server(setting, fsync)
    held, client = await hold(setting, server.url), client_of(setting, server.url)

    data = canonical.encode(step_of(0))

    async def bare(times: int) -> None:
        for _ in range(times):
            await client.set("bare", data)

    return ratio(await adjacent(held.checkpoints, bare, setting.pairs))


async def checkpoint_always(setting: Setting) -> Found:
    """Compare with the append-only file flushed for each command."""
    return await checkpoint(setting, "always")


async def large(setting: Setting) -> Found:
    """Compare a checkpoint of 256 KB with a SET of the same bytes."""
    server = redis_server(setting, "everysec")
    held, client = await hold(setting, server.url), client_of(setting, server.url)
    payloads = [text_at(number * 7919, LARGE_BYTES - 16) for number in range(16)]

    async def ours(times: int) -> None:
        for _ in range(times):
            held.step += 1
            await held.leases[0].checkpoint(payloads[held.step % len(payloads)])

    data = canonical.encode(payloads[0])

    async def bare(times: int) -> None:
        for _ in range(times):
            await client.set("bare", data)

    return ratio(await adjacent(ours, bare, setting.pairs))


async def many(setting: Setting) -> Found:
    """Compare steps of 32 runs at once with the same script sent one by one through the client object."""
    server = redis_server(setting, "everysec")
    held, client = await hold(setting, server.url, RUNS), client_of(setting, server.url)
    alone = await _scripted(held, client)
    found = ratio(await adjacent(held.at_once(RUNS), alone, setting.pairs), ours_per=RUNS)
    found.lines["tenure, Redis"] = await rates(held.at_once)
    return found


async def _scripted(held: Held, client: Any) -> Repeat:
    """Return what sends the script of a commit so many times through the client object of redis-py."""
    grant = await granted(held, "scripted")
    stubs = Stubs(keys=Keys("default"), kinds=KindMemo(), native="", safe="")
    run = await held.ledger.load("scripted")
    at: list[Any] = [run.last_seq, run.head]

    async def work(times: int) -> None:
        for _ in range(times):
            event = journal.event(journal.CHECKPOINT, value=step_of(at[0]))
            change = build.commit(grant, at[0] + 1, at[1], [event], step=1)
            (call,) = stubs.calls([(0, change)])
            answer = await client.evalsha(script(call.script)[1], len(call.keys), *call.keys, *call.args)
            if not isinstance(answer, bytes):
                raise RuntimeError(f"the script refused: {answer[:2]}")  # noqa: TRY004 - a refusal
            at[:] = [change.row.seq, change.row.digest]

    return work


async def read_back(setting: Setting) -> Found:
    """Return the milliseconds of reading back, checking and folding 400 steps."""
    server = redis_server(setting, "everysec")
    held = await hold(setting, server.url)
    await held.checkpoints(400)
    found = []
    for _ in range(setting.pairs):
        begun = time.perf_counter()
        await held.leases[0].read_back()
        found.append((time.perf_counter() - begun) * 1000)
    return spread(found)


async def _beats(setting: Setting) -> tuple[list[float], list[float]]:
    """Return what renewals of 1,000 runs cost the server: all of one in ms, and the longest script in ms."""
    server = redis_server(setting, "everysec")
    client = client_of(setting, server.url)
    held = await hold(setting, server.url)
    grants = [await granted(held, f"beat-{number}") for number in range(1000)]
    renewals = [Renew(grant=grant) for grant in grants]
    await client.config_set("slowlog-log-slower-than", SCRIPT_US)
    await client.config_set("slowlog-max-len", 100_000)
    spent, longest = [], []
    for _ in range(setting.pairs):
        await client.config_resetstat()
        await client.slowlog_reset()
        answers = await held.store.commit_many(renewals)
        if not all(getattr(answer, "ok", False) for answer in answers):
            message = "a renewal was refused"
            raise RuntimeError(message)
        us = server_section(server.url, "commandstats")["cmdstat_evalsha"]
        spent.append(_stat(us, "usec") / 1000)
        entries = await client.slowlog_get(100)
        longest.append(max(e["duration"] for e in entries if e["command"].upper().startswith(b"EVALSHA")) / 1000)
    return spent, longest


def _stat(text: str, name: str) -> float:
    fields = dict(part.split("=") for part in text.strip("{}").replace("'", "").replace(": ", "=").split(",") if part)
    return float({key.strip(): value for key, value in fields.items()}[name])


async def heartbeat(setting: Setting) -> Found:
    """Return the milliseconds that a heartbeat of 1,000 runs costs the server."""
    return spread((await _beats(setting))[0])


async def heartbeat_block(setting: Setting) -> Found:
    """Return the milliseconds for which that heartbeat holds up everybody else, at the longest."""
    return spread((await _beats(setting))[1])


async def claim(setting: Setting) -> Found:
    """Compare claiming 100 due runs with looking up 100 entries of an index."""
    server = redis_server(setting, "everysec")
    held, client = await hold(setting, server.url), client_of(setting, server.url)
    await client.zadd("bare", {f"run-{number:06d}": number for number in range(10_000)})
    pairs = []
    for number in range(setting.pairs):
        await held.store.commit_many(
            [build.create(run=f"due-{number}-{n}", kind=f"due-{number}", value={}) for n in range(100)]
        )
        begun = time.perf_counter()
        hints = await held.store.due([f"due-{number}"], limit=100)
        claims = [
            Claim(run=hint.run, nonce=f"{hint.run:0>32}", owner="bench", ttl_ms=30_000, token=hint.token)
            for hint in hints
        ]
        answers = await held.store.commit_many(claims)
        ours = time.perf_counter() - begun
        if len(answers) != 100 or not all(getattr(answer, "ok", False) for answer in answers):
            message = "not all of the 100 were claimed"
            raise RuntimeError(message)
        looks = []
        for _ in range(5):
            begun = time.perf_counter()
            await client.zrangebyscore("bare", "-inf", 20_000, start=0, num=100)
            looks.append(time.perf_counter() - begun)
        pairs.append((ours, statistics.median(looks)))
    return cost(pairs)


async def lock(setting: Setting) -> Found:
    """Compare taking a lease and handing it back, bare changes, with acquire and release of redis-py's Lock."""
    server = redis_server(setting, "everysec")
    held, client = await hold(setting, server.url), client_of(setting, server.url)
    await held.store.commit(build.create(run="lock", kind="lock", value={}))
    state: dict[str, Any] = {"n": 0}

    async def ours(times: int) -> None:
        for _ in range(times):
            state["n"] += 1
            taken = Claim(run="lock", nonce=f"{state['n']:032d}", owner="bench", ttl_ms=30_000)
            run = (await held.store.commit(taken)).run
            if run is None or run.nonce != taken.nonce:
                message = "the lease was not granted"
                raise RuntimeError(message)
            await held.store.commit(build.end(run=run.id, how=How.YIELD, token=run.token, nonce=run.nonce))

    async def theirs(times: int) -> None:
        for _ in range(times):
            bare = client.lock("bare-lock", timeout=30)
            await bare.acquire()
            await bare.release()

    return ratio(await adjacent(ours, theirs, setting.pairs))


CLIENT = "redis-py's client object"
BARS = [
    Bar(
        name="redis-checkpoint",
        says=f"checkpoint of 3 KB, AOF everysec, to a SET of the same bytes by {CLIENT}",
        measure=checkpoint,
        least=0.55,
    ),
    Bar(
        name="redis-checkpoint-always",
        says="the same with AOF always",
        measure=checkpoint_always,
        least=0.70,
    ),
    Bar(
        name="redis-32-runs",
        says=f"steps a second of 32 runs at once, to the same script one by one by {CLIENT}",
        measure=many,
        least=3,
        plot=RATE_PLOT,
        at_once=True,
    ),
    Bar(name="redis-256-kb", says="checkpoint of 256 KB, to a SET of the same bytes", measure=large, least=0.33),
    Bar(
        name="redis-read-back",
        says="reading back, checking and folding 400 steps of 3 KB",
        measure=read_back,
        under=40,
        unit="ms",
    ),
    Bar(
        name="redis-heartbeat",
        says="server time of one heartbeat of 1,000 runs",
        measure=heartbeat,
        under=5,
        unit="ms",
        at_once=True,
    ),
    Bar(
        name="redis-heartbeat-block",
        says="the longest script of that heartbeat",
        measure=heartbeat_block,
        under=1,
        unit="ms",
        at_once=True,
    ),
    Bar(
        name="redis-claim-100",
        says=f"cost of claiming 100 due runs, to one ZRANGEBYSCORE LIMIT 100 by {CLIENT}",
        measure=claim,
        under=10,
    ),
    Bar(name="redis-lock", says="lease taken and given back, to acquire and release of redis-py's Lock", measure=lock),
]
