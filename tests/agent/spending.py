"""Agents whose budget is what they need, and what they need with one question lost."""

from __future__ import annotations

from tenure import Agent, App, Budget, ModelReply, ModelRequest, ToolCall, Usage, tool
from tenure.core.messages import assistant
from tenure.testing import FunctionModel

app = App()
TURNS = 3
EACH = Usage(input_tokens=10, output_tokens=5)


@tool
async def look(n: int) -> int:
    return n


def _answers(request: ModelRequest) -> ModelReply:
    last = request.step == TURNS
    calls = [ToolCall(id=f"c{request.step}-{n}", name="look", arguments={"n": n}) for n in range(2)]
    return ModelReply(message=assistant("done") if last else assistant("", *calls), usage=EACH)


def _agent(name: str, turns: int) -> Agent[str]:
    budget = Budget(turns=turns, tokens=15 * turns, cost=turns, price=lambda _, usage: usage.output_tokens / 5)
    return Agent(FunctionModel(_answers, name="m"), name=name, tools=[look], budget=budget)


with_one_more = app.agent(_agent("with-one-more", TURNS + 1))
exact = app.agent(_agent("exact", TURNS))
