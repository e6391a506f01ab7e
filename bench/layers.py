"""Where the microseconds of a checkpoint on Redis go: processor time of client and server, layer by layer.

    python bench/layers.py [--steps 300]

Processor time and not wall time, so that a busy machine shows about the same shares. Each layer does what the one
before it does and something more; the last rows time pure functions by themselves.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from speed.bars import Setting, step_of
from speed.holding import granted, hold, redis_server
from speed.on_redis import client_of
from tenure import encoding
from tenure.core import build, canonical, journal, rules
from tenure.core.run import Commit, Grant, Run
from tenure.stores import open_store
from tenure.stores._redis_keys import Keys, KindMemo
from tenure.stores._redis_line import pack
from tenure.stores._redis_stubs import Stubs

ROUNDS = 15
Layer = Callable[[int], Awaitable[Any]]


def server_us(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


class Chain:
    """Commits of one run, each built after the one before."""

    def __init__(self, grant: Grant, seq: int, head: str) -> None:
        self._grant, self._seq, self._head = grant, seq, head
        self.event = journal.event(journal.CHECKPOINT, value=step_of(0))

    def next(self) -> Commit:
        """Return the next one."""
        change = build.commit(self._grant, self._seq + 1, self._head, [self.event], step=1)
        self._seq, self._head = change.row.seq, change.row.digest
        return change


async def measure(steps: int) -> None:
    """Print one line a layer."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        setting = Setting(pairs=ROUNDS, folder=folder, stack=stack)
        server = redis_server(setting, "everysec")
        held, client = await hold(setting, server.url), client_of(setting, server.url)
        store: Any = await stack.enter_async_context(open_store(server.url))
        line = store._session.shards[0].road.line  # noqa: SLF001 - what a layer is made of is inside
        stubs = Stubs(keys=Keys("default"), kinds=KindMemo(), native="", safe="")
        chains = []
        for name in ("a", "b"):
            grant = await granted(held, name)
            run = await held.ledger.load(name)
            chains.append(Chain(grant, run.last_seq, run.head))
        data = canonical.encode(step_of(0))
        packed = [pack("SET", "bare", data)]
        added = [step_of(number) for number in range(16)]

        async def script(_: int) -> None:
            (call,) = stubs.calls([(0, chains[0].next())])
            await line.ask(call.packed())

        layers: dict[str, Layer] = {
            "SET by redis-py's client object": lambda _: client.set("bare", data),
            "SET by the store's line": lambda _: line.ask(packed),
            "+ the change, its digest, the script": script,
            "+ the store: the call, the answer": lambda _: held.store.commit(chains[1].next()),
            "+ the lease: content, deadline, fold": lambda number: held.leases[0].checkpoint(added[number % 16]),
        }
        shown = await _costs(layers, server.pid, steps)
        print(f"{'us of processor time':40} {'client':>8} {'server':>8} {'both':>8}")
        for name, (ours, theirs) in shown.items():
            print(f"{name:40} {ours:8.0f} {theirs:8.0f} {ours + theirs:8.0f}")
        _functions(chains[1])


async def _costs(layers: dict[str, Layer], pid: int, steps: int) -> dict[str, tuple[float, float]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    for _ in range(ROUNDS):
        for name, layer in layers.items():
            theirs, ours = server_us(pid), time.process_time()
            for number in range(steps):
                await layer(number)
            found[name].append(((time.process_time() - ours) * 1e6 / steps, (server_us(pid) - theirs) / steps))
    return {
        name: (statistics.median(o for o, _ in all_), statistics.median(t for _, t in all_))
        for name, all_ in found.items()
    }


def _functions(chain: Chain) -> None:
    step, change = step_of(1), chain.next()
    run = Run(id="r", kind="k")
    functions: dict[str, Callable[[], Any]] = {
        "encoding the event": lambda: encoding.event(journal.CHECKPOINT, value=step),
        "building the commit (two SHA-256)": lambda: build.commit(change.grant, 2, "", [chain.event], step=1),
        "the record after it": lambda: rules.committed(change, run, 1),
        "its event, for the fold": lambda: journal.State().add_own(chain.event),
    }
    for name, function in functions.items():
        costs = []
        for _ in range(ROUNDS):
            begun = time.process_time()
            for _ in range(300):
                function()
            costs.append((time.process_time() - begun) * 1e6 / 300)
        print(f"{name:40} {statistics.median(costs):8.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    anyio.run(measure, parser.parse_args().steps)
