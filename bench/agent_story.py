"""The run that `agent_deaths.py` kills: calls side by side, an approval, a context that is replaced, and a sleep."""

from tenure import ActiveRun, Agent, App, Budget, ModelReply, ModelRequest, Summarise, ToolCall, Usage, tool
from tenure.core.history import flaw
from tenure.core.messages import SystemMessage, assistant
from tenure.testing import FunctionModel, note_effect

TURNS = 4
CALLS = 7
QUESTIONS = TURNS + 1
EACH = Usage(input_tokens=10, output_tokens=5)
SLEEP_S = 3600
NOT_VALID = "not valid"

app = App()


@tool
async def look(n: int) -> str:
    """Answer at some length."""
    return f"{n} " * 300


@tool(approval=True)
async def sail(to: str) -> str:
    """Wait for an approval."""
    return f"sailed to {to}"


def _calls(step: int) -> list[ToolCall]:
    looks = [ToolCall(id=f"c{step}-{n}", name="look", arguments={"n": n}) for n in (1, 2, 3)]
    if step == 2:
        looks[1] = ToolCall(id="c2-2", name="sail", arguments={"to": "Ithaca"})
    return looks[:1] if step == TURNS - 1 else looks


def _answers(request: ModelRequest) -> ModelReply:
    shown = [message for message in request.messages if not isinstance(message, SystemMessage)]
    if found := flaw(shown):
        note_effect(NOT_VALID, key=f"{request.step}: {found}")
    if request.aside:
        return ModelReply(message=assistant("two looks and a voyage"), usage=EACH)
    if request.step == TURNS:
        return ModelReply(message=assistant(f"home, {len(shown)} shown"), usage=EACH)
    return ModelReply(message=assistant("", *_calls(request.step)), usage=EACH)


# What the run needs without a death, and one question more.
BUDGET = Budget(
    turns=TURNS + 1,
    tool_calls=CALLS,
    tokens=15 * (QUESTIONS + 1),
    cost=QUESTIONS + 1,
    price=lambda _, usage: usage.output_tokens / 5,
    reserve=EACH,
)

agent = Agent(
    FunctionModel(_answers, name="m"),
    name="sailor",
    tools=[look, sail],
    context=Summarise(tokens=700, keep=1),
    enforce_lineage=True,
    budget=BUDGET,
)
app.agent(agent)  # so that its calls are noted, whoever drives it


def pack() -> str:
    """Be a step of a handler that drives an agent."""
    return "bread and water"


@app.kind("tide-first", max_crashes=9)
async def tide_first(run: ActiveRun[str], to: str) -> str:
    """Sleep before the agent begins: what was recorded by then is known when its context has been replaced."""
    await run.sleep("tide", SLEEP_S)
    packed = await run.step("pack", pack)
    return f"{packed}: {await agent.drive(run)}, {to}"


@app.kind("tide-last", max_crashes=9)
async def tide_last(run: ActiveRun[str], to: str) -> str:
    """Sleep when the agent has answered: it is driven again by each call, and has nothing to do."""
    packed = await run.step("pack", pack)
    said = await agent.drive(run)
    await run.sleep("tide", SLEEP_S)
    return f"{packed}: {said}, {to}"
