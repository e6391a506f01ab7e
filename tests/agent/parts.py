"""What the tests of agents share."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tenure import (
    LeaseLost,
    Ledger,
    Store,
)
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.tool import Tool, ToolContext, tool
from tenure.core import build
from tenure.core.messages import ToolCall, ToolMessage, assistant
from tenure.core.run import How
from tenure.testing.models import FunctionModel, ScriptedModel


def call(call_id: str, name: str = "look", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


async def events(ledger: Ledger, run_id: str) -> list[dict[str, Any]]:
    return [event async for _, event in ledger.handle(run_id).events()]


async def shown_results(model: ScriptedModel) -> list[Any]:
    last = model.asked[-1].messages[-1]
    assert isinstance(last, ToolMessage)
    return [(part.call_id, part.content, part.is_error) for part in last.parts]


class Bench:
    """A run whose first attempt dies inside its tool, and what was done in all attempts."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self.ledger = ledger
        self.store = store
        self.made: list[str] = []
        self.reached = anyio.Event()

    def effect(self, name: str, *, block: bool = True, **options: Any) -> Tool[..., Any]:
        async def fn(context: ToolContext) -> str:
            self.made.append(f"{name} {context.call_id} {context.attempt}")
            if block and context.attempt == 1:
                self.reached.set()
                await anyio.sleep(60)
            return f"{name} done"

        return tool(name=name, **options)(fn)

    async def abandon(self, agent: Agent[Any], run_id: str = "w1") -> None:
        """The first attempt: it is given up by its supervisor while the tool is at work."""

        async def first() -> None:
            with pytest.raises(LeaseLost):
                await CheckpointedAgent(agent, self.ledger).run("go", id=run_id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await self.reached.wait()
            await self.forfeit(run_id)

    async def forfeit(self, run_id: str = "w1") -> None:
        run = await self.ledger.load(run_id)
        await self.ledger.ask(build.end(run=run_id, how=How.FORFEIT, token=run.token, nonce=run.nonce))
        await self.store.wake(f"run:{run_id}")

    async def events(self, type_: str) -> list[dict[str, Any]]:
        return [event async for _, event in self.ledger.handle("w1").events() if event["type"] == type_]


def agent_of(*tools: Tool[..., Any], calls: tuple[ToolCall, ...] = ()) -> Agent[str]:
    calls = calls or tuple(call(f"c-{made.name}", made.name) for made in tools)
    return Agent(FunctionModel(lambda r: assistant("", *calls) if r.step == 1 else "done"), name="walker", tools=tools)


def shown(agent: Agent[Any]) -> dict[str, tuple[Any, bool]]:
    model = agent.model
    assert isinstance(model, FunctionModel)
    last = model.asked[-1].messages[-1]
    assert isinstance(last, ToolMessage)
    return {part.call_id: (part.content, part.is_error) for part in last.parts}
