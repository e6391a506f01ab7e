"""A process that forks one for each order: it goes on with a run that waits for people, and is killed at a commit.

`python deaths.py URL LOG` reads a JSON order a line and answers each with how its process ended. An order names the
run, whether it is an agent's or a handler's, and at which commit of that process it is killed, before or after it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import anyio

from tenure import (
    ActiveRun,
    Agent,
    App,
    CheckpointedAgent,
    Ledger,
    RunClosed,
    RunSuspended,
    ToolCall,
    open_store,
    tool,
)
from tenure.core.messages import assistant
from tenure.core.run import Answer, Change, Commit
from tenure.errors import TenureError
from tenure.perform import perform
from tenure.store import Store
from tenure.testing.faults import FaultStore
from tenure.testing.models import CallLog, FunctionModel

ALARM_S = 120


class DyingStore(FaultStore):
    """Kills its process at the `at`-th commit of one of ours, before it is sent or after it has landed; 0 never."""

    def __init__(self, store: Store, at: int, side: str) -> None:
        super().__init__(store)
        self.commits = 0
        self._at, self._side = at, side

    async def _one(self, change: Change) -> Answer | TenureError:
        if not isinstance(change, Commit):
            return await super()._one(change)
        self.commits += 1
        if (self.commits, self._side) == (self._at, "before"):
            _die()
        answer = await super()._one(change)
        if (self.commits, self._side) == (self._at, "after"):
            _die()
        return answer


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def agent_of(log: CallLog) -> Agent[str]:
    """Three calls side by side, two of which wait for an approval, then the end."""

    def made(call_id: str) -> Any:
        async def fn(at: int) -> str:
            log.write("made", call=call_id)
            return f"{call_id} done"

        return fn

    tools = [tool(name=f"t{n}", approval=n > 1)(made(f"c{n}")) for n in (1, 2, 3)]
    calls = [ToolCall(id=f"c{n}", name=f"t{n}", arguments={"at": n}) for n in (1, 2, 3)]

    def rule(request: Any) -> Any:
        log.write("asked", step=request.step)
        return assistant("", *calls) if request.step == 1 else "done"

    return Agent(FunctionModel(rule), name="payer", tools=tools)


def app_of(log: CallLog) -> App:
    """A handler with a step before and after a sleep, a signal and a question."""
    app = App()

    @app.kind("order", max_crashes=9)
    async def order(run: ActiveRun[Any], _: Any) -> Any:
        def step(name: str) -> str:
            log.write("made", call=name)
            return name

        await run.step("first", functools.partial(step, "first"))
        await run.sleep("nap", 0.001)
        heard: list[Any] = []

        async def listen() -> None:
            heard.append(await run.wait_for("go"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            decision = await run.ask("pay", "7?")
        await run.step("last", functools.partial(step, "last"))
        return [heard[0], decision.approved, decision.by]

    return app


async def go_on(order: dict[str, Any], url: str, log: CallLog) -> int:
    """Begin the run, or go on with it; return how many commits that took."""
    store = DyingStore(open_store(url), order["at"], order["side"])
    async with store, Ledger(store, ttl=30) as ledger:
        await (_agent if order["what"] == "agent" else _handler)(order["run"], ledger, log)
    return store.commits


async def _agent(run_id: str, ledger: Ledger, log: CallLog) -> None:
    with suppress(RunSuspended):
        await CheckpointedAgent(agent_of(log), ledger).run("go", id=run_id)


async def _handler(run_id: str, ledger: Ledger, log: CallLog) -> None:
    app = app_of(log)
    await ledger.submit("order", None, id=run_id)
    while True:
        try:
            lease = await ledger.claims.claim(ledger.claims.change(run_id, max_crashes=9))
        except (RunSuspended, RunClosed):
            run = await ledger.load(run_id)
            if run.due_ms is None:
                return
            await anyio.sleep(max(0.0, (run.due_ms - (await ledger.store.facts()).now_ms) / 1000))
            continue
        async with ledger.claims.under(lease) as held:
            await perform(app, ledger, held)


def _fork(order: dict[str, Any], url: str, log: CallLog) -> int:
    """How the process ended: what it took, or minus the signal that ended it."""
    if (pid := os.fork()) == 0:
        code = 99
        try:
            signal.alarm(ALARM_S)
            code = anyio.run(go_on, order, url, log)
        except BaseException:  # noqa: BLE001 - the code tells, and nothing of the parent may run on in here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _warm() -> None:
    """Load and build what each process needs, once."""
    for name in ("anyio._backends._asyncio", "tenure.stores.sqlite"):
        importlib.import_module(name)
    agent = agent_of(CallLog(os.devnull))
    _ = agent.shape
    for made in agent.tools.values():
        made.check({"at": 1})
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _, url, path = sys.argv
    _warm()
    for line in sys.stdin:
        print(_fork(json.loads(line), url, CallLog(path)), flush=True)
