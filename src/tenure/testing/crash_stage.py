"""A process that forks a fresh one for each order: to crash at a point, or to recover what crashed.

`python -m tenure.testing.crash_stage` has imported everything and opened nothing, so a new process costs a fork. Reads
a JSON list of orders a line, answers each line with the list of exit codes. `Stage` is the other end of the pipes.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tenure.agent.checkpointed import CheckpointedAgent
from tenure.ledger import Ledger
from tenure.stores import open_store
from tenure.testing.crashing import EXPECTED, PROMPT, DyingStore, Fuse, Point, crash, walker
from tenure.testing.models import CallLog

stage_log = logging.getLogger("tenure.testing")

ALARM_S = 120
"""A process that has not ended by then is killed, and its code says so."""
WRONG = 11
LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one process is to do: die at a `point` of `run`; without a point, end the run, or all that are due."""

    url: str
    namespace: str
    log: str
    run: str = ""
    point: str = ""
    inside: float = 0.5
    ttl: float = 30
    seed: str = ""


class Stage:
    """A stage process: `async with Stage() as stage: codes = await stage.play(orders, width=2)`."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        """Start it."""
        command = [sys.executable, "-m", "tenure.testing.crash_stage"]
        self._process = await self._stack.enter_async_context(
            await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)
        )
        self._lines = BufferedByteReceiveStream(self._process.stdout)  # type: ignore[arg-type]
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End it, and what it has forked."""
        if self._process is not None:
            self._process.terminate()
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    async def play(self, orders: Sequence[Order], /, *, width: int = 2) -> list[int]:
        """Return the exit codes of the processes, `width` of which run at a time; a signal is a negative code."""
        if self._process is None or self._process.stdin is None:
            message = "the stage is not open; use `async with Stage() as stage:`"
            raise RuntimeError(message)
        said = {"width": width, "orders": [asdict(order) for order in orders]}
        await self._process.stdin.send(json.dumps(said).encode() + b"\n")
        codes: list[int] = json.loads(await self._lines.receive_until(b"\n", LINE_BYTES))
        return codes


async def _play(order: Order) -> int:
    log = CallLog(order.log)
    async with open_store(order.url, namespace=order.namespace) as store:
        if order.point:
            fuse = Fuse(run_id=order.run, point=Point.parse(order.point), inside=order.inside)
            await crash(DyingStore(store, fuse), log, ttl=order.ttl, seed=order.seed)
            return 0
        ended: list[Any] = []
        async with Ledger(store, ttl=order.ttl) as ledger:
            agent = CheckpointedAgent(walker(log, seed=order.seed), ledger)
            ended += [await agent.run(PROMPT, id=order.run)] if order.run else await _swept(agent)
        return 0 if all(output == EXPECTED for output in ended) else WRONG


async def _swept(agent: CheckpointedAgent[Any]) -> list[Any]:
    recovered = await agent.recover_all(limit=1000)
    for entry in recovered:
        if not entry.ok:
            stage_log.error("%s: %r", entry.run_id, entry.error)
    return [entry.output for entry in recovered]


def _fork(order: Order) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(ALARM_S)
        code = anyio.run(_play, order)
    except BaseException:  # noqa: BLE001 - the code tells, and nothing of the stage may run on in here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _fork_all(orders: Sequence[Order], width: int) -> list[int]:
    codes = [0] * len(orders)
    running: dict[int, int] = {}

    def end(*_: object) -> None:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    waiting = list(enumerate(orders))[::-1]
    while waiting or running:
        while waiting and len(running) < width:
            number, order = waiting.pop()
            running[_fork(order)] = number
        pid, status = os.waitpid(-1, 0)
        codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
    return codes


def _warm() -> None:
    """Import and build what every process needs; nothing that a fork must not inherit."""
    logging.getLogger("tenure").setLevel(logging.ERROR)  # each process would say anew how its server is set
    for name in ("anyio._backends._asyncio", "tenure.stores.redis", "tenure.stores.sqlite"):
        importlib.import_module(name)
    agent = walker(CallLog(os.devnull))
    _ = agent.shape
    agent.tools["look"].check({"at": 1})
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve orders until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked decides what is broken off
    _warm()
    for line in sys.stdin:
        said: dict[str, Any] = json.loads(line)
        codes = _fork_all([Order(**order) for order in said["orders"]], said["width"])
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
