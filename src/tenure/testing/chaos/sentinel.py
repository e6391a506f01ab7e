"""A primary that is cut off from its replicas and sentinels, while clients on both sides write."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tenure.core import build
from tenure.core.run import Answer, Change, Claim, Commit
from tenure.errors import OutcomeUnknown, StoreUnavailable, StoreUnsafe
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos._promotion_story import Holder, step, told
from tenure.testing.chaos._told import missing, unsound
from tenure.testing.chaos.kinds import Kind, Place, Played
from tenure.testing.proxy import Proxy
from tenure.testing.server_sets import Sentinel, asked, until
from tenure.testing.servers import REDIS_KINDS, RedisServer, ServerKind, ServerMissing, find_program, start_server

RUNS = 8
TTL_MS = 2_000
DOWN_AFTER_MS = 1_000
LONGEST_S = 120.0
"""A sentinel that was not run for two seconds trusts nothing that it sees for thirty."""
STEPS_BEFORE = 40
STEPS_AFTER = 40
"""How many commits A makes before the link is cut, and B before it is whole again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estate:
    """The servers of one partition."""

    primary: RedisServer
    replicas: list[RedisServer]
    sentinels: Sequence[RedisServer]
    link: Proxy


@dataclass(slots=True, kw_only=True)
class Partition:
    """What was said to whom in one partition."""

    acknowledged: list[tuple[str, str, Commit]] = field(default_factory=list)
    """Who, which run, what."""
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    cut: bool = False

    def tell(self, who: str, change: Commit) -> None:
        """Note that a commit was acknowledged."""
        self.acknowledged.append((who, change.run, change))
        when = "before the cut" if not self.cut else "after it"
        self.counts[f"{who} {when}"] += 1


@contextlib.asynccontextmanager
async def estate(kind: ServerKind, *, replicated: bool) -> AsyncIterator[Estate]:
    """Start the servers and wait until the sentinels know of all of them."""
    program = find_program(kind)
    if program is None:
        message = f"no local {kind.product} {kind.major}: {kind.hint}"
        raise ServerMissing(message)
    log: dict[str, str | int] = {
        "appendonly": "yes",
        "min-replicas-to-write": int(replicated),
        "repl-ping-replica-period": 1,
    }
    with contextlib.ExitStack() as started:
        primary = started.enter_context(start_server(kind, options=log))
        async with Proxy(primary.url) as link:
            follow = {**log, "replicaof": f"127.0.0.1 {link.port}"}
            replicas = [
                started.enter_context(await asyncio.to_thread(partial(start_server, kind, options=follow)))
                for _ in range(2)
            ]
            await _off(lambda: asked(primary, "INFO", "replication")["connected_slaves"] == "2")
            watch = {
                "sentinel monitor": f"runs 127.0.0.1 {link.port} 2",
                "sentinel down-after-milliseconds": f"runs {DOWN_AFTER_MS}",
                "sentinel failover-timeout": f"runs {5 * DOWN_AFTER_MS}",
            }
            sentinels = [
                started.enter_context(await asyncio.to_thread(Sentinel(program, options=watch).start)) for _ in range(3)
            ]
            for sentinel in sentinels:
                await _off(partial(_complete, sentinel))
            yield Estate(primary=primary, replicas=replicas, sentinels=sentinels, link=link)


def _complete(sentinel: RedisServer) -> bool:
    said = asked(sentinel, "SENTINEL", "MASTER", "runs")
    return (said["num-slaves"], said["num-other-sentinels"]) == ("2", "2")


async def _off(true: object) -> None:
    await asyncio.to_thread(until, true)  # type: ignore[arg-type]


async def _answered(store: Store, change: Change) -> Answer:
    while True:
        try:
            return await store.commit(change)
        except (StoreUnavailable, OutcomeUnknown, StoreUnsafe):
            await asyncio.sleep(0.05)  # the same request again


async def _granted(store: Store, run: str, owner: str) -> Holder | None:
    answer = await _answered(store, Claim(run=run, nonce=secrets.token_hex(16), owner=owner, ttl_ms=TTL_MS))
    if not answer.ok or answer.run is None:
        return None
    return Holder(name=owner, grant=build.grant_of(answer.run), run=answer.run, trusts_until_s=0)


async def _write_on(store: Store, holder: Holder, found: Partition, stop: asyncio.Event) -> None:
    """Commit step after step until it is refused or the play is over; what has no answer is asked again."""
    while not stop.is_set():
        change = step(holder)
        try:
            answer = await store.commit(change)
        except OutcomeUnknown:
            found.counts[f"{holder.name} without an answer"] += 1
        except (StoreUnavailable, StoreUnsafe):
            found.counts[f"{holder.name} turned away"] += 1
        else:
            if not answer.ok:
                found.counts[f"{holder.name} refused"] += 1
                return
            told(holder, change)
            found.tell(holder.name, change)
        await asyncio.sleep(0.03)


async def _take_over(store: Store, run: str, found: Partition, stop: asyncio.Event) -> None:
    while not stop.is_set():
        holder = await _granted(store, run, "B")
        if holder is not None:
            found.counts["taken over"] += 1
            await _write_on(store, holder, found, stop)
        await asyncio.sleep(0.05)


async def parted(kind: ServerKind, level: str) -> Partition:
    """Play one partition and hold what was said against what is stored at the end."""
    found, stop, over = Partition(), asyncio.Event(), asyncio.Event()
    names = [f"r{number}" for number in range(RUNS)]
    ask = f"timeout=5&durability={level}" + ("&replicas=1" if level != "local" else "")
    async with estate(kind, replicated=level != "local") as servers:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in servers.sentinels)
        near, far = f"{servers.primary.url}?{ask}", f"redis+sentinel://{hosts}/runs?{ask}"
        async with open_store(near) as a, open_store(far) as b, asyncio.TaskGroup() as tasks:
            await a.raise_ttl(TTL_MS)
            for name in names:
                await _answered(a, build.create(run=name, kind="k", value=1))
                holder = await _granted(a, name, "A")
                if holder is not None:
                    tasks.create_task(_write_on(a, holder, found, stop))
            await _acknowledged(found, "A before the cut", STEPS_BEFORE)
            found.cut = True
            servers.link.hold_up()
            for name in names:
                tasks.create_task(_take_over(b, name, found, over))
            await _acknowledged(found, "B after it", STEPS_AFTER)
            servers.link.let_through()
            await _off(lambda: asked(servers.primary, "INFO", "replication")["role"] == "slave")
            await _off(lambda: asked(servers.primary, "INFO", "replication")["master_link_status"] == "up")
            stop.set()
            over.set()
        await _judge(far.replace("timeout=5", "timeout=30"), found)
    return found


async def _acknowledged(found: Partition, what: str, many: int) -> None:
    with contextlib.suppress(TimeoutError):  # that one side was told of nothing is found when it is judged
        async with asyncio.timeout(LONGEST_S):
            while found.counts[what] < many:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)


async def _judge(url: str, found: Partition) -> None:
    async with open_store(url) as store:
        for name in {run for _, run, _ in found.acknowledged}:
            run, rows = await store.load(name), await store.tail(name, limit=100_000)
            found.wrong += [f"{name}: {what}" for what in unsound(run, rows)]
            commits = [(change.row.seq, change.row.digest) for _, whose, change in found.acknowledged if whose == name]
            found.counts["lost"] += len(missing(rows, commits))
    if found.counts["lost"]:
        found.wrong.append(f"{found.counts['lost']} acknowledged commits are not there")
    if min(found.counts["A before the cut"], found.counts["B after it"]) == 0:
        found.wrong.append("one side was never told of a commit, so nothing was shown")


class SentinelPartition(Kind):
    """One partition at the level `replicated`."""

    name = "sentinel"
    stores = ("redis8", "valkey9", "redis7")
    short, long, batch = 1, 20, 1
    level = "replicated"

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one partition; the seed tells histories apart and decides nothing."""
        kind = next(kind for kind in REDIS_KINDS if kind.name == place.name)
        found = await parted(kind, self.level)
        counts = Counter({"acknowledged": len(found.acknowledged), **found.counts})
        return Played(violations=found.wrong, counts=counts, note=f"partition {seed}")
