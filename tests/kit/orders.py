"""Kinds as a user writes them, at the top level of a module, with fakes that note their effects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tenure import ActiveRun, Agent, App, ModelReply, ModelRequest, ToolCall, ToolContext, TryLater, tool
from tenure.core.messages import AssistantMessage, ToolMessage, assistant
from tenure.testing import FunctionModel, note_effect


@asynccontextmanager
async def lifespan(_: App) -> AsyncIterator[str]:
    yield "till"


app = App(version="7", lifespan=lifespan)


def charge(amount: int, key: str) -> str:
    note_effect("charged", key=key)
    return f"{amount} under {key}"


def mail(text: str) -> None:
    note_effect("mailed")


@app.kind("careful")
async def careful(run: ActiveRun[int], input: int) -> str:
    """Every effect in a step, and each under an idempotency key."""
    receipt = await run.step("charge", charge, input, run.effect_key("charge"))
    return await run.step("note", lambda: f"{run.deps}: {receipt}")


@app.kind("careless")
async def careless(run: ActiveRun[int], input: int) -> str:
    """Mails outside of any step: each takeover mails again."""
    price = await run.step("price", lambda: input * 2)
    mail(f"that will be {price}")
    return await run.step("receipt", lambda: f"receipt for {price}")


@app.kind("patient")
async def patient(run: ActiveRun[int], input: int) -> int:
    """Two days between its steps."""
    first = await run.step("first", lambda: 1)
    if run.lease.run.step < 2:
        await run.step("asked", lambda: None)
        raise TryLater(after=2 * 24 * 3600)
    return first + input


@app.kind("sleeper")
async def sleeper(run: ActiveRun[int], input: int) -> str:
    """Sleeps two days, asks a person, and waits for a parcel."""
    await run.step("packed", note_effect, "packed")
    await run.sleep("nap", 2 * 24 * 3600)
    decision = await run.ask("send it?", {"weight": input})
    parcel = await run.wait_for("parcel")
    await run.step("sent", partial(note_effect, "sent", key=run.effect_key("sent")))
    return f"{'sent' if decision.approved else 'kept'} {parcel}"


@app.kind("naps")
async def naps(run: ActiveRun[None], _: None) -> str:
    """Sleeps two days."""
    await run.sleep("nap", 2 * 24 * 3600)
    return "rested"


@app.kind("parent")
async def parent(run: ActiveRun[int], input: int) -> str:
    """Waits for a child."""
    child = await run.submit("child", careful, input)
    return f"child says {await child.result()}"


@app.kind("plain")
def plain(run: ActiveRun[int], input: int) -> int:
    """No coroutine."""
    if input < 0:
        message = "no such order"
        raise LookupError(message)
    return input + 1


@app.kind("waits")
async def waits(run: ActiveRun[None], _: None) -> None:
    """Waits for a signal."""
    await run.lease.suspend(signals=["go"])


@tool
async def weigh(context: ToolContext, item: str) -> int:
    """Weigh an item."""
    note_effect("weighed", key=context.call_id)
    return len(item)


def _answers(request: ModelRequest) -> AssistantMessage | ModelReply | str:
    if request.step == 1:
        calls = [ToolCall(id=f"c{n}", name="weigh", arguments={"item": "x" * n}) for n in (1, 2)]
        return assistant("two", *calls)
    found: list[Any] = [part.content for m in request.messages if isinstance(m, ToolMessage) for part in m.parts]
    return f"together {sum(found)}"


scales = app.agent(Agent(FunctionModel(_answers), name="scales", tools=[weigh]))
