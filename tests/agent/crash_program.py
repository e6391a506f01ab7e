"""A run that dies at an ordered point, in a process of its own, and a process that recovers what is left.

`crash STORE LOG POINT...` forks one process for each point; `recover STORE LOG` sweeps, like any process that boots.
A point is `commit:3:before`, `commit:3:after`, `model:2:asked`, `model:2:answered`, `tool:c1:before`, `tool:c1:after`.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn, cast

import anyio

from tenure import Agent, CheckpointedAgent, Ledger, ModelRequest, Store, ToolCall, ToolContext, open_store, tool
from tenure.core.messages import ToolMessage, assistant
from tenure.core.run import Change, Commit
from tenure.testing.models import CallLog, FunctionModel

DIED = 9


def die() -> NoReturn:
    os._exit(DIED)


class DyingStore:
    """Kills its process before or after the n-th commit of a lease."""

    def __init__(self, store: Store, number: int, side: str) -> None:
        self._store = store
        self._number = number
        self._side = side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, change: Change, /) -> Any:
        self._number -= isinstance(change, Commit)
        doomed = isinstance(change, Commit) and self._number == 0
        if doomed and self._side == "before":
            die()
        answer = await self._store.commit(change)
        if doomed:
            die()
        return answer


def agent_with(log: CallLog, point: str = "") -> Agent[dict[str, Any]]:
    @tool
    async def look(context: ToolContext, at: int) -> dict[str, int]:
        if point == f"tool:{context.call_id}:before":
            die()
        log.write("tool/made", run=context.run_id, call=context.call_id, attempt=context.attempt)
        if point == f"tool:{context.call_id}:after":
            die()
        return {"at": at}

    def answer(request: ModelRequest) -> Any:
        if point == f"model:{request.step}:asked":
            die()
        match request.step:
            case 1:
                calls = [ToolCall(id=f"c{n}", name="look", arguments={"at": n}) for n in (1, 2)]
                found: Any = assistant("two places", *calls)
            case 2:
                found = assistant("one more", ToolCall(id="c3", name="look", arguments={"at": 3}))
            case _:
                found = '{"seen": %d}' % sum(isinstance(message, ToolMessage) for message in request.messages)  # noqa: UP031
        if point == f"model:{request.step}:answered":
            log.write("model/answered", run=request.run_id, step=request.step, attempt=request.attempt)
            die()
        return found

    return Agent(FunctionModel(answer, log=log), name="walker", tools=[look], output=dict[str, Any])


async def crash(url: str, log: CallLog, point: str) -> None:
    what, number, side = point.split(":")
    async with open_store(url) as store:
        dying = DyingStore(store, int(number), side) if what == "commit" else store
        async with Ledger(cast("Store", dying)) as ledger:
            await CheckpointedAgent(agent_with(log, point), ledger).run("go", id=run_id_of(point))


def run_id_of(point: str) -> str:
    return point.replace(":", "-")


async def recover(url: str, log: CallLog) -> None:
    for entry in await CheckpointedAgent(agent_with(log), url).recover_all():
        print(entry.run_id, entry.output if entry.ok else repr(entry.error))


def main(what: str, url: str, path: str, *points: str) -> None:
    log = CallLog(path)
    if what == "recover":
        anyio.run(recover, url, log)
        return
    for point in points:
        if (pid := os.fork()) == 0:
            anyio.run(crash, url, log, point)
            os._exit(0)
        print(point, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
