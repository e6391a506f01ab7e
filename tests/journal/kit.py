"""What the tests of the journal share: an agent that walks, and rows as a forger would write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tenure import CheckpointedAgent, Ledger, ModelRequest, Run, SlidingWindow, tool
from tenure.agent.agent import Agent
from tenure.core import canonical, journal
from tenure.core.messages import ToolCall, assistant
from tenure.core.run import Row
from tenure.testing.models import FunctionModel

LAST = 9


@tool
async def look(n: int) -> dict[str, int]:
    return {"found": n}


def answer(request: ModelRequest) -> Any:
    if request.step >= LAST:
        return "done"
    call = ToolCall(id=f"c{request.step}", name="look", arguments={"n": request.step})
    return assistant(f"step {request.step}", call)


def walker(*, fn: Callable[[ModelRequest], Any] = answer, **more: Any) -> Agent[str]:
    context = more.pop("context", SlidingWindow(turns=4, keep=2))
    return Agent(FunctionModel(fn), name="walker", tools=[look], context=context, **more)


async def walk(ledger: Ledger, run_id: str = "w1", **more: Any) -> tuple[Run, list[Row]]:
    """A whole run of an agent, with its record and rows."""
    assert await CheckpointedAgent(walker(**more), ledger).run("go", id=run_id) == "done"
    return await ledger.load(run_id), await ledger.store.tail(run_id, limit=1000)


def forged(run: Run, rows: Sequence[Row], change: Callable[[dict[str, Any]], None]) -> tuple[Run, list[Row]]:
    """Rows with every event changed as asked and the whole chain made anew, and a record that names the new head."""
    prev, made = "", []
    for row in rows:
        body = canonical.decode(row.body)
        for event in body["events"]:
            change(event)
        data = canonical.encode(body, depth=canonical.RESTATED_DEPTH + 2)
        digest = journal.chain(run.id, row.seq, row.token, row.grant, prev, data)
        made.append(replace(row, body=data, digest=digest))
        prev = digest
    return replace(run, head=prev), made
