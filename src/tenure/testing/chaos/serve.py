"""A worker of a fleet: it serves until SIGTERM, and what it meets at its calls kills it, freezes it or holds it up.

A blow is a file under `blows`, named after a run, a call and its mark; whoever removes it first is hit by it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import random
import secrets
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from tenure.active import ActiveRun
from tenure.agent.agent import Agent
from tenure.agent.model import ModelRequest
from tenure.agent.tool import ToolContext, tool
from tenure.app import App
from tenure.core.messages import AssistantMessage, ToolCall, assistant
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos.gate import Stand, stand_still
from tenure.testing.chaos.noted import NotedStore
from tenure.testing.chaos.verdict import CALLS
from tenure.testing.chaos.walk import AWAY, DONE, write_all_the_same
from tenure.testing.chaos.walk import warm as warm_stores
from tenure.testing.models import CallLog, FunctionModel
from tenure.worker import Worker

MANY = 1000  # deaths that fall upon each other's runs must not set one aside here


def warm() -> None:
    """Import what every worker needs."""
    logging.getLogger("tenure").setLevel(logging.CRITICAL)
    warm_stores()


class Calls:
    """The calls of this worker: each is noted when it begins and when it is done, and may meet a blow then."""

    def __init__(self, folder: Path, log: CallLog) -> None:
        self._folder = folder
        self._log = log

    async def make(self, run: str, name: str, attempt: int) -> str:
        """Make one call."""
        number = secrets.token_hex(6)
        for mark in ("called", "returned"):
            self._log.write(mark, run=run, name=name, number=number, attempt=attempt)
            self._meet(self._folder / "blows" / f"{run}.{name.replace(':', '-')}.{mark}")
            await anyio.sleep(random.uniform(0, 0.02))
        return number

    def _meet(self, file: Path) -> None:
        try:
            blow = json.loads(file.read_text())
            file.unlink()
        except FileNotFoundError:
            return
        fall = partial(self._fall, blow)
        if blow["late_s"] is None:
            fall()
        elif blow["how"] in ("kill", "stop"):
            later = threading.Timer(blow["late_s"], fall)  # wherever the loop is by then
            later.daemon = True
            later.start()
        else:
            asyncio.get_running_loop().call_later(blow["late_s"], fall)

    def _fall(self, blow: Mapping[str, Any]) -> None:
        self._log.write("hit", how=blow["how"])
        if blow["how"] in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if blow["how"] == "kill" else signal.SIGSTOP)
        else:
            stand_still(self._folder / blow["gate"], Stand(blow["how"]))


def app_of(store: NotedStore, calls: Calls, log: CallLog) -> App:
    """Return the app: a kind of steps, and one that drives an agent."""
    app = App(version="histories")

    async def held(run: ActiveRun[Any], work: Callable[[], Awaitable[Any]]) -> Any:
        lease = run.lease
        log.write("granted", run=run.id, token=lease.token, ordinal=lease.run.ordinal, attempt=lease.run.attempt)
        try:
            return await work()
        except BaseException:
            if lease.lost is not None:
                with anyio.CancelScope(shield=True):
                    for granted in store.granted:
                        if (granted.id, granted.token) == (run.id, lease.token):
                            await write_all_the_same(store, granted, log)
            raise

    @app.kind("steps", max_crashes=MANY)
    async def steps(run: ActiveRun[str], _: str) -> list[str]:
        async def work() -> list[str]:
            names = CALLS["steps"]
            return [await run.step(n.removeprefix("step:"), partial(calls.make, run.id, n, run.attempt)) for n in names]

        found: list[str] = await held(run, work)
        return found

    agent = _agent(calls)

    @app.kind("agent", max_crashes=MANY)
    async def drive(run: ActiveRun[str], _: str) -> str:
        found: str = await held(run, partial(agent.drive, run))
        return found

    return app


def _agent(calls: Calls) -> Agent[str]:
    @tool
    async def note(context: ToolContext) -> str:
        return await calls.make(context.run_id, f"tool:{context.call_id}", context.attempt)

    async def answer(request: ModelRequest) -> AssistantMessage:
        number = await calls.make(request.run_id, f"model:{request.step}", request.attempt)
        asked = [ToolCall(id=f"c{request.step}", name="note", arguments={})] if request.step < 3 else []
        return assistant(number, *asked)

    return Agent(FunctionModel(answer), name="agent", tools=[note])


def say_where() -> None:
    """Write to the errors of this process where each of its tasks and threads waits."""
    for task in asyncio.all_tasks():
        sys.stderr.write(f"{task.get_name()}: {' > '.join(_way(task.get_coro()))}\n")
    faulthandler.dump_traceback(sys.stderr)


def _way(at: Any) -> Iterator[str]:
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None)
        yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else type(at).__name__
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None)


async def serve(order: Mapping[str, Any]) -> int:
    """Serve the runs of a namespace until SIGTERM."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, say_where)
    folder = Path(order["folder"])
    log = CallLog(folder / "calls.log")
    store = NotedStore(open_store(order["url"], namespace=order["namespace"]), folder)
    app = app_of(store, Calls(folder, log), log)
    worker = Worker(app, cast("Store", store), name=order["name"], concurrency=3, ttl=order["ttl"], drain=2)
    served = False
    try:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async with store, worker, anyio.create_task_group() as tasks:
                served = True

                async def end() -> None:
                    async for _ in signals:
                        await worker.drain()
                        return

                tasks.start_soon(end)
                await worker.ended()
                tasks.cancel_scope.cancel()
    except (StoreUnavailable, OutcomeUnknown):
        if served:  # from then on a worker goes on, however long it does not get through
            raise
        return AWAY
    return DONE
