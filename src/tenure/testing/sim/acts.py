"""The code of the user in every story: three kinds and an agent, which say when they are called and take their time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import anyio

from tenure.active import ActiveRun
from tenure.agent.agent import Agent
from tenure.agent.model import ModelReply, ModelRequest
from tenure.agent.tool import tool
from tenure.app import App
from tenure.core.messages import ToolCall, Usage, assistant
from tenure.current import current_run
from tenure.retry import TryLater
from tenure.testing.sim.loop import PROCESS, Process
from tenure.testing.sim.notes import Effect

if TYPE_CHECKING:
    from tenure.testing.sim.history import Cast

STEPS = 3
TURNS = 3


@cache
def acts() -> App:
    """Return the app that every process of every story serves: it keeps nothing, so it is made once."""
    app = App()

    @app.kind("steps")
    async def steps(run: ActiveRun[int], count: int) -> list[str]:
        return [await run.step(f"s{n}", _work, run, f"s{n}") for n in range(count)]

    @app.kind("fails", retries=1)
    async def fails(run: ActiveRun[int], count: int) -> None:
        for n in range(count):
            await run.step(f"s{n}", _work, run, f"s{n}")
        message = "so it was ordered"
        raise ValueError(message)

    @app.kind("later")
    async def later(run: ActiveRun[int], count: int) -> list[str]:
        done = [await run.step("s0", _work, run, "s0")]
        begun = await run.step("begun", _now)
        if _cast().loop.now_s < begun + 1.5:
            raise TryLater(after=1.5)
        return [*done, *[await run.step(f"s{n}", _work, run, f"s{n}") for n in range(1, count)]]

    @tool
    async def look(run: str, name: str) -> str:
        _note(run, f"tool:{name}")
        await anyio.sleep(_cast().drawn.choice((0.0, 0.02, 0.3)))
        return f"{run}/{name}"

    app.agent(Agent(_Model(), name="agent", tools=[look]))
    return app


async def _work(run: ActiveRun[Any], name: str) -> str:
    _note(run.id, f"step:{name}")
    cast = _cast()
    await anyio.sleep(cast.drawn.choice((0.0, 0.02, 0.3, cast.story.ttl_s * 1.6)))
    # The second half of a longer step: nothing is written before it, so only the lease's own deadline stops it.
    run.check()
    _note(run.id, f"half:{name}")
    return f"{run.id}/{name}"


async def _now() -> float:
    return _cast().loop.now_s


class _Model:
    """A model that asks for two tools side by side, twice, and answers then; it says when it is asked."""

    name = "sim"

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return the answer of this step."""
        _note(request.run_id, f"model:{request.step}")
        cast = _cast()
        await anyio.sleep(cast.drawn.choice((0.01, 0.3, cast.story.ttl_s * 1.2)))
        if request.step >= TURNS:
            return ModelReply(message=assistant(f"{request.run_id} done"), usage=Usage())
        ids = [f"c{request.step}{n}" for n in range(2)]
        calls = [ToolCall(id=name, name="look", arguments={"run": request.run_id, "name": name}) for name in ids]
        return ModelReply(message=assistant("", *calls), usage=Usage())


def _process() -> Process:
    process = PROCESS.get()
    assert process is not None, "code of the user runs in a process"
    return process


def _cast() -> Cast:
    cast: Cast = _process().cast
    return cast


def _note(run_id: str, name: str) -> None:
    process, token = _process(), current_run().token
    effect = Effect(at_s=_cast().loop.now_s, process=process.name, run=run_id, name=name, token=token)
    process.cast.played.effects.append(effect)
