"""One of several processes that decide about the same request and resume the same run at once.

`python crowd.py URL NAMESPACE LOG FIRST COUNT` says `ready`, and then for each line read, `decide` or `resume`, lets
COUNT deciders or resumers at it and writes what each of them was told, as JSON.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import anyio

from tenure import Agent, CheckpointedAgent, Ledger, TenureError, ToolCall, open_store, tool
from tenure.core.messages import assistant
from tenure.testing.models import CallLog, FunctionModel

RUN = "r1"


def agent_of(log: CallLog) -> Agent[str]:
    """An agent whose only call waits for an approval, and is written down when it is made."""

    @tool(approval=True)
    async def pay(cents: int) -> str:
        log.write("made", cents=cents)
        await anyio.sleep(0.05)
        return "paid"

    call = ToolCall(id="c1", name="pay", arguments={"cents": 7})
    model = FunctionModel(lambda request: assistant("", call) if request.step == 1 else "done", log=log)
    return Agent(model, name="cashier", tools=[pay])


async def crowd(ledger: Ledger, log: CallLog, what: str, first: int, count: int) -> list[str]:
    """Let `count` at it, and return what each was told: `won`, or the code of a refusal."""
    told: list[str] = []

    async def one(number: int) -> None:
        try:
            if what == "decide":
                how = "approve" if number % 2 else "reject"
                await ledger.handle(RUN).decide("approve:c1", how, by=f"decider {number}")  # type: ignore[arg-type]
            else:
                await CheckpointedAgent(agent_of(log), ledger).recover(RUN)
        except TenureError as error:
            told.append(error.code.value)
        else:
            told.append("won")

    async with anyio.create_task_group() as tasks:
        for number in range(first, first + count):
            tasks.start_soon(one, number)
    return told


async def _main(url: str, namespace: str, path: str, first: int, count: int) -> None:
    log = CallLog(Path(path))
    async with open_store(url, namespace=namespace) as store, Ledger(store, ttl=30) as ledger:
        print("ready", flush=True)
        while what := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip():
            print(json.dumps(await crowd(ledger, log, what, first, count)), flush=True)


if __name__ == "__main__":
    _, url, namespace, path, first, count = sys.argv
    anyio.run(functools.partial(_main, url, namespace, path, int(first), int(count)))
