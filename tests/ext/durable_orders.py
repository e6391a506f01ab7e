"""An agent of Pydantic AI whose tool pays, at the top level of a module, to die everywhere."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tenure import ActiveRun, App
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import note_effect

app = App()


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note_effect("asked", key=str(len(messages)))
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 7}, tool_call_id="c1")])
    return ModelResponse(parts=[TextPart("done")])


def _pay(amount: int) -> str:
    """Pay."""
    note_effect("paid")
    return f"paid {amount}"


def _agent(name: str, metadata: dict[str, Any] | None) -> Agent[None, str]:
    tools: FunctionToolset[None] = FunctionToolset(id="till")
    tools.add_function(_pay, name="pay", metadata=metadata)
    return Agent(FunctionModel(_answer), name=name, toolsets=[tools], capabilities=[TenureDurability()])


repeating = _agent("repeating", None)
failing = _agent("failing", {"tenure": {"effect": "fail"}})


@app.kind("repeating")
async def repeats(run: ActiveRun[str], prompt: str) -> str:
    with durable(run):
        return (await repeating.run(prompt)).output


@app.kind("failing")
async def fails(run: ActiveRun[str], prompt: str) -> str:
    with durable(run):
        return (await failing.run(prompt)).output
