"""An agent with everything that its journal has to carry: calls side by side, an approval, a summary, a window."""

from __future__ import annotations

from agent.test_loop import assert_valid
from tenure import Agent, App, ModelReply, ModelRequest, SlidingWindow, Summarise, ToolCall, Usage, tool
from tenure.core.messages import SystemMessage, UserMessage, assistant
from tenure.testing import FunctionModel, note_effect

app = App()
TURNS = 4


@tool
async def look(n: int) -> str:
    return f"{n} " * 200


@tool(approval=True)
async def sail(to: str) -> str:
    note_effect("sailed", key=to)
    return f"sailed to {to}"


def _answers(request: ModelRequest) -> ModelReply:
    shown = [message for message in request.messages if not isinstance(message, SystemMessage)]
    assert_valid(shown)  # what no provider takes ends the run otherwise than without a death
    usage = Usage(input_tokens=len(shown), output_tokens=1)
    if request.aside:
        return ModelReply(message=assistant(f"summed up before {request.step}"), usage=usage)
    if request.step > TURNS:
        first = shown[0]
        assert isinstance(first, UserMessage)
        return ModelReply(message=assistant(f"{len(shown)} shown, {len(first.parts)} parts first"), usage=usage)
    calls = [ToolCall(id=f"c{request.step}-{n}", name="look", arguments={"n": n}) for n in (1, 2)]
    third = ToolCall(id="c2-3", name="sail", arguments={"to": "Ithaca"})
    if request.step != 2:
        third = ToolCall(id=f"c{request.step}-3", name="look", arguments={"n": 3})
    return ModelReply(message=assistant("", *calls, third), usage=usage)


voyage = app.agent(
    Agent(
        FunctionModel(_answers, name="m"),
        name="voyage",
        tools=[look, sail],
        context=[Summarise(tokens=900, keep=1), SlidingWindow(turns=2, keep=1)],
        enforce_lineage=True,
    )
)
