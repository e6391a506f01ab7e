"""An agent in processes that are killed and frozen; what it did stands in files of its folder.

`python durable_app.py URL NAMESPACE FOLDER` works until the run `r` has ended.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tenure import ActiveRun, App, Handle, Worker, open_store
from tenure.ext.pydantic_ai import TenureCheckpoint, TenureDurability, durable
from tenure.testing.models import CallLog

FOLDER = Path(sys.argv[3])
log = CallLog(FOLDER / "calls")


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """One tool after another, three of them, then the end."""
    done = len(messages) // 2
    log.write("model", number=done + 1)
    if done < 3:
        return ModelResponse(parts=[ToolCallPart("walk", {"to": done + 1}, tool_call_id=f"c{done + 1}")])
    return ModelResponse(parts=[TextPart("arrived")])


tools: FunctionToolset[None] = FunctionToolset(id="feet")


@tools.tool
async def walk(ctx: RunContext[None], to: int) -> int:
    """Walk somewhere; in the third place the process may be hit."""
    log.write("tool", to=to)
    if to == 3 and not (FOLDER / "hit").exists():
        (FOLDER / "hit").touch()
        os.kill(os.getpid(), signal.SIGKILL if (FOLDER / "kill").exists() else signal.SIGSTOP)
    return to


agent = Agent(FunctionModel(answer), name="walker", toolsets=[tools], capabilities=[TenureDurability()])
nameless: Agent[None, str] = Agent(FunctionModel(answer))
app = App()


@app.kind("walk")
async def walker(run: ActiveRun[Any], _: Any) -> list[Any]:
    """Ask the agent, and say what it cost."""
    if (FOLDER / "checkpoint").exists():
        there = await TenureCheckpoint(run).ask(nameless, "go", toolsets=[tools])
        return [there.output, there.usage.requests, there.usage.tool_calls]
    with durable(run):
        found = await agent.run("go")
    return [found.output, found.usage.requests, found.usage.tool_calls]


async def main(url: str, namespace: str) -> None:
    async with open_store(url, namespace=namespace) as store, Worker(app, store, ttl=2, drain=0) as worker:
        handle: Handle[Any] = worker.ledger.handle("r")
        await handle.result()
        # Whoever lost the run has noticed, and said so in its log, when it has nothing in hand.
        while worker.slots.executions:  # noqa: ASYNC110 - an execution that ends rings no bell
            await anyio.sleep(0.02)


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO)
    anyio.run(main, sys.argv[1], sys.argv[2])
