"""Our side: a store, a ledger, and runs that are held for as long as something is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import anyio
from anyio.abc import TaskStatus

from speed.bars import Repeat, Setting, step_of
from tenure import Ledger, open_store
from tenure.core import build
from tenure.core.run import Claim, Grant
from tenure.lease import Lease
from tenure.store import Store
from tenure.testing.servers import REDIS7, VALKEY9, RedisServer, ServerMissing, start_server

TTL_S = 3600.0
_NAMES = count()


def redis_server(setting: Setting, fsync: str) -> RedisServer:
    """Return a private server with an append-only file: Redis 7 where there is one, else Valkey 9."""
    options = {"appendonly": "yes", "appendfsync": fsync, "auto-aof-rewrite-percentage": "0"}
    try:
        return setting.stack.enter_context(start_server(REDIS7, options=options))
    except ServerMissing:
        return setting.stack.enter_context(start_server(VALKEY9, options=options))


def sqlite_url(setting: Setting) -> str:
    """Return the URL of a new file."""
    return f"sqlite:///{setting.folder}/{next(_NAMES)}.db"


@dataclass(slots=True, kw_only=True)
class Held:
    """Runs that this process holds, each with its lease."""

    store: Store
    ledger: Ledger
    leases: list[Lease] = field(default_factory=list)
    step: int = 0

    async def checkpoints(self, times: int) -> None:
        """Make so many checkpoints of the first run, one by one."""
        lease = self.leases[0]
        for _ in range(times):
            self.step += 1
            await lease.checkpoint(step_of(self.step))

    def at_once(self, runs: int) -> Repeat:
        """Return what makes so many checkpoints of each of so many runs, all runs at once."""

        async def one(lease: Lease, times: int) -> None:
            for _ in range(times):
                self.step += 1
                await lease.checkpoint(step_of(self.step))

        async def all_of_them(times: int) -> None:
            async with anyio.create_task_group() as tasks:
                for lease in self.leases[:runs]:
                    tasks.start_soon(one, lease, times)

        return all_of_them


async def hold(setting: Setting, url: str, runs: int = 1) -> Held:
    """Return new runs of a store, each held by a task of its own until the setting is left."""
    store = await setting.stack.enter_async_context(open_store(url))
    ledger = await setting.stack.enter_async_context(Ledger(store, ttl=TTL_S))
    tasks = await setting.stack.enter_async_context(anyio.create_task_group())
    over = anyio.Event()
    setting.stack.callback(over.set)

    async def one(*, task_status: TaskStatus[Lease]) -> None:
        handle = await ledger.submit("bench", {})
        async with ledger.hold(handle.id) as lease:
            task_status.started(lease)
            await over.wait()

    leases = [await tasks.start(one) for _ in range(runs)]
    return Held(store=store, ledger=ledger, leases=leases)


async def granted(held: Held, run_id: str) -> Grant:
    """Return the grant of one more run, which nobody renews and no lease stands for."""
    await held.store.commit(build.create(run=run_id, kind="bench", value={}))
    claim = Claim(run=run_id, nonce=f"{run_id:0>32}", owner="bench", ttl_ms=round(TTL_S * 1000))
    run = (await held.store.commit(claim)).run
    if run is None or run.nonce != claim.nonce:
        raise RuntimeError(f"{run_id} was not claimed")
    return build.grant_of(run)


async def step_costs(lease: Lease, steps: int, *, first: int = 0) -> list[float]:
    """Return the seconds of each of so many steps of a run, numbered from `first` on."""
    costs = []
    for number in range(first, first + steps):
        added = step_of(number)
        begun = time.perf_counter()
        await lease.checkpoint(added)
        costs.append(time.perf_counter() - begun)
    return costs


def curve(costs: Sequence[float], width: int = 10) -> list[tuple[float, float]]:
    """Return (step, ms) points: the medians of so many steps each."""
    points = []
    for begin in range(0, len(costs) - width + 1, width):
        window = sorted(costs[begin : begin + width])
        points.append((begin + width / 2, window[width // 2] * 1000))
    return points
