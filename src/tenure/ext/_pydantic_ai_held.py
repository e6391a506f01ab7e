"""A run that an agent of Pydantic AI works for: where in it each agent run stands, and how a unit is made once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.durable_exec import record_durable_unit
from pydantic_ai.tools import RunContext

from tenure.active import ActiveRun
from tenure.agent.tool import NOT_DONE
from tenure.errors import ReplayDrift
from tenure.ext._pydantic_ai_doubt import UNKNOWN, Call, looked, resolved
from tenure.ext._pydantic_ai_secrets import marked
from tenure.ext._pydantic_ai_units import Unit, differing

NOT_MADE = ("approval_required", "call_deferred")
"""Results of a tool call that say that it was not made; they are no answer for the next attempt."""


@dataclass(slots=True)
class Held:
    """A run whose handler is inside `durable`; `paths` are the agent runs begun there, by their run id."""

    run: ActiveRun[Any]
    key: str
    paths: dict[str, str] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    met: dict[tuple[str, str], int] = field(default_factory=dict)

    def begin(self, name: str) -> str:
        """Return the id of an agent run that begins here: the same in each attempt."""
        path = "/".join(filter(None, (within.get() or self.key, name)))
        self.begun[path] = number = self.begun.get(path, 0) + 1
        path = path if number == 1 else f"{path}~{number}"
        run_id = f"{self.run.id}/{path}"
        self.paths[run_id] = path
        return run_id

    def path(self, ctx: RunContext[Any] | None) -> str:
        """Return where the agent run of a context stands; a run id that the caller chose is a place of its own."""
        if ctx is None or ctx.run_id is None:
            return agent_run.get()
        return self.paths.get(ctx.run_id, ctx.run_id)

    def named(self, path: str, name: str) -> str:
        """Return the name, told apart from the same name met before in this call of the handler."""
        self.met[path, name] = number = self.met.get((path, name), 0) + 1
        return name if number == 1 else f"{name}~{number}"

    async def once(self, unit: Unit, body: Callable[[], Awaitable[object]], *, call: Call | None = None) -> object:
        """Return what is recorded for the unit, or what its body returns, recorded.

        A `call` with another effect than "repeat" is announced first; in doubt, its effect says what follows.
        """
        lease = self.run.lease
        found = lease.state.records.get((unit.scope, unit.name))
        if found is not None and not _not_made(found.get("value")):
            if (why := differing(found.get("guard"), unit.guard)) is not None:
                raise _drift(self.run.id, unit, why)
            record_durable_unit(executed=False)
            return found.get("value")
        payload = None
        if call is not None and (unit.scope, unit.name) in lease.state.started:
            payload = await self._settled(unit, call)
        if payload is not RECORDED:
            async with self._gate(unit):
                if payload is None:
                    if call is not None:
                        await lease.started([unit.name], scope=unit.scope)
                    payload = marked(await _inside(unit, body), lease.redaction)
                if _not_made(payload):
                    if call is not None:
                        # It was announced: without a record it would be in doubt, and it is asked anew all the same.
                        await lease.record(unit.name, payload, scope=unit.scope, guard=unit.guard)
                    return payload
                await lease.record(unit.name, payload, scope=unit.scope, guard=unit.guard, step=1)
        record_durable_unit(executed=True)
        # As it is stored, which is what the next attempt will read.
        return lease.state.records[unit.scope, unit.name].get("value")

    async def _settled(self, unit: Unit, call: Call) -> object:
        """The payload of a call in doubt, RECORDED if somebody has said it, None if the call is to be made again."""
        if call.effect == "reconcile":
            async with self._gate(unit):
                payload = await looked(self.run, call)
            if payload is not None:
                return None if payload is NOT_DONE else payload
        if call.effect == "fail" or within.get():
            return UNKNOWN  # what runs inside a tool goes with the tool, and cannot wait for a person
        return RECORDED if await resolved(self.run, unit, call) else None

    @asynccontextmanager
    async def _gate(self, unit: Unit) -> AsyncIterator[None]:
        # What runs inside a tool goes with the tool: a drain waits for the tool as a whole.
        gate = nullcontext() if within.get() else self.run.steps.gate(unit.name)
        async with gate:
            self.run.check()
            yield


RECORDED = object()
held: ContextVar[Held | None] = ContextVar("tenure_pydantic_ai_held", default=None)
within: ContextVar[str] = ContextVar("tenure_pydantic_ai_within", default="")
"""The unit that is being made, as the scope of agents that it asks; empty between units."""
agent_run: ContextVar[str] = ContextVar("tenure_pydantic_ai_agent_run", default="")
"""Where the agent run stands, for what does not carry its id."""


def _not_made(payload: object) -> bool:
    return isinstance(payload, Mapping) and payload.get("kind") in NOT_MADE


async def _inside(unit: Unit, body: Callable[[], Awaitable[object]]) -> object:
    token = within.set(unit.inner)
    try:
        return await body()
    finally:
        within.reset(token)


def _drift(run_id: str, unit: Unit, why: str) -> ReplayDrift:
    message = (
        f"{unit.name!r} of run {run_id} was recorded with another {why}; the handler must lead its agent to the same "
        "question in each attempt: put what changes into a step"
    )
    return ReplayDrift(message, key=unit.name, run_id=run_id)
