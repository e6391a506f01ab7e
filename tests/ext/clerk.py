"""A small agent of Pydantic AI that looks around, and kinds that ask it."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tenure import ActiveRun, App, TryLater
from tenure.core import journal
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import Inline


class Place:
    """A small agent, what it called, and ways to ask it."""

    def __init__(self, *, durability: TenureDurability[Any] | None = None) -> None:
        self.asked: list[int] = []
        self.called: list[str] = []
        toolset: FunctionToolset[Any] = FunctionToolset(id="tools")
        toolset.add_function(self.look)
        self.agent: Agent[None, str] = Agent(
            FunctionModel(self.answer, stream_function=self.stream),
            name="clerk",
            toolsets=[toolset],
            capabilities=[durability or TenureDurability()],
        )

    async def look(self, ctx: RunContext[None], at: int) -> int:
        """Look somewhere."""
        self.called.append(f"look {at}")
        if at == 9:
            message = "not there"
            raise ModelRetry(message)
        await self.look_at(at)
        return at * 7

    async def look_at(self, at: int) -> None: ...

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen = [part.content for m in messages for part in m.parts if isinstance(part, ToolReturnPart)]
        self.asked.append(len(messages))
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {"at": n}, tool_call_id=f"c{n}") for n in (1, 2)])
        if len(messages) == 3:
            return ModelResponse(parts=[ToolCallPart("look", {"at": 9}, tool_call_id="c9")])
        return ModelResponse(parts=[TextPart(f"found {sum(n for n in seen if isinstance(n, int))}")])

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        for part in self.answer(messages, info).parts:
            if isinstance(part, ToolCallPart):
                call = DeltaToolCall(name=part.tool_name, json_args=str(part.args_as_json_str()))
                call.tool_call_id = part.tool_call_id
                yield {int(part.tool_call_id[1:]): call}
            elif isinstance(part, TextPart):
                yield part.content


async def plainly(agent: Agent[Any, str]) -> str:
    return (await agent.run("look")).output


def twice(ask: Callable[[], Awaitable[Any]]) -> App:
    """A kind that asks, and comes back once when it has its answer, so that its second attempt is all replay."""
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> Any:
        with durable(run):
            found = await ask()
        if not run.lease.state.checkpoints:
            await run.lease.checkpoint("once")
            raise TryLater
        return found

    return app


async def records(inline: Inline, run_id: str) -> list[dict[str, Any]]:
    rows = await inline.store.tail(run_id, limit=1000)
    return [e for row in rows for e in journal.events_of(row) if e["type"] == journal.RECORD]
