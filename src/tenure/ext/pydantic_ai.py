"""Pydantic AI on a run: its model requests, tool calls and discovery become records of the run, each made once.

A capability of the agent, on the durable-execution surface of Pydantic AI (extra `pydantic-ai`). Units are named by
what they are (the step of the agent, the id of the call) and never by the order in which they were met, so tools that
run side by side may end in any order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, RunContext

from tenure.active import ActiveRun
from tenure.errors import HistoryLost, LeaseLost, NotAllowed, ReplayDrift
from tenure.ext._pydantic_ai_units import Unit, differing, unit_of

NEVER_RECORDED = ("approval_required", "call_deferred")
"""Results of a tool call that say that it was not made."""
EFFECTS = ("repeat", "fail")

UnitConfig = dict[str, Any]
"""What tool metadata under the key `tenure` may say: `{"effect": "fail"}`."""


@dataclass(slots=True)
class _Held:
    """A run whose handler is inside `durable`; `paths` are the agent runs begun there, by their run id."""

    run: ActiveRun[Any]
    key: str
    paths: dict[str, str] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    met: dict[tuple[str, str], int] = field(default_factory=dict)

    def begin(self, within: str, name: str) -> str:
        """Return the id of an agent run that begins: the same in each attempt."""
        path = "/".join(filter(None, (within or self.key, name)))
        self.begun[path] = number = self.begun.get(path, 0) + 1
        path = path if number == 1 else f"{path}~{number}"
        run_id = f"{self.run.id}/{path}"
        self.paths[run_id] = path
        return run_id

    def named(self, path: str, name: str) -> str:
        """Return the name, told apart from the same name met before in this call of the handler."""
        self.met[path, name] = number = self.met.get((path, name), 0) + 1
        return name if number == 1 else f"{name}~{number}"


_held: ContextVar[_Held | None] = ContextVar("tenure_pydantic_ai_held", default=None)
_within: ContextVar[str] = ContextVar("tenure_pydantic_ai_within", default="")
_agent_run: ContextVar[str] = ContextVar("tenure_pydantic_ai_agent_run", default="")


@contextmanager
def durable(run: ActiveRun[Any], key: str = "", /) -> Iterator[None]:
    """Make what agents with `TenureDurability` do in this block part of the run.

    Agent runs are named by the agent, and the second one of an agent in a block by its number. Where several of one
    agent run side by side, give each a block of its own with a `key`, or a `run_id` that is the same in each attempt.
    """
    run.steps.use("pydantic-ai", key or "agents")
    token = _held.set(_Held(run, key))
    try:
        with replay_scope():
            yield
    finally:
        _held.reset(token)


class _Backend(JournalCallableOperationBackend[UnitConfig]):
    """Makes a unit once: the record of the run answers, or the body is called and recorded."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: UnitConfig,
    ) -> object:
        held = _held.get()
        if held is None:
            return await body()
        ctx = next((part for part in reversed(cache_key) if isinstance(part, RunContext)), None)
        run_id = ctx.run_id if ctx is not None and ctx.run_id is not None else None
        path = held.paths.get(run_id, run_id) if run_id is not None else _agent_run.get()
        unit = unit_of(operation_id, name, cache_key, path)
        unit = unit.renamed(held.named(path, unit.name))
        lease = held.run.lease
        found = lease.state.records.get((unit.scope, unit.name))
        if found is not None:
            if (why := differing(found.get("guard"), unit.guard)) is not None:
                raise _drift(held.run.id, unit, why)
            record_durable_unit(executed=False)
            return found.get("value")
        async with _gate(held, unit):
            if config.get("effect", "repeat") != "repeat":
                if (unit.scope, unit.name) in lease.state.started:
                    return await _unknown(held, unit)
                await lease.started([unit.name], scope=unit.scope)
            payload = await _within_unit(unit, body)
            if isinstance(payload, Mapping) and payload.get("kind") in NEVER_RECORDED:
                return payload
            await lease.record(unit.name, payload, scope=unit.scope, guard=unit.guard, step=1)
            record_durable_unit(executed=True)
        # As it is stored, which is what the next attempt will read.
        return lease.state.records[unit.scope, unit.name].get("value")


@asynccontextmanager
async def _gate(held: _Held, unit: Unit) -> Any:
    # What runs inside a tool goes with the tool: a drain waits for the tool as a whole.
    gate = nullcontext() if _within.get() else held.run.steps.gate(unit.name)
    async with gate:
        held.run.check()
        yield


async def _within_unit(unit: Unit, body: Callable[[], Awaitable[object]]) -> object:
    token = _within.set(unit.inner)
    try:
        return await body()
    finally:
        _within.reset(token)


async def _unknown(held: _Held, unit: Unit) -> object:
    """Tell the model that nobody knows how the call ended; what is recorded is what it was told."""
    message = "The call was begun by a process that ended before it had a result; it is not known whether it was made."
    payload = {"kind": "tool_failed", "message": message}
    await held.run.lease.record(unit.name, payload, scope=unit.scope, guard=unit.guard, step=1)
    record_durable_unit(executed=True)
    return payload


def _drift(run_id: str, unit: Unit, why: str) -> ReplayDrift:
    message = (
        f"{unit.name!r} of run {run_id} was recorded with another {why}; the handler must lead its agent to the same "
        "question in each attempt: put what changes into a step"
    )
    return ReplayDrift(message, key=unit.name, run_id=run_id)


class TenureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside `durable(run)`; outside of it the agent runs as ever.

    `Agent(model, name="clerk", capabilities=[TenureDurability()])`. The agent needs a name, and each of its toolsets an
    id. A tool with `metadata={"tenure": {"effect": "fail"}}` is announced before it is called, and in doubt after a
    death its call is not made again: the model is told that its outcome is unknown. `{"tenure": False}` leaves a tool
    out: it is called again in each attempt.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="tenure",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key="tenure",
        cancellation_error_types=(LeaseLost, HistoryLost),
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)

    @property
    def in_durable_context(self) -> bool:
        """Whether a handler is inside `durable`."""
        return _held.get() is not None

    def get_default_run_id(self) -> str | None:
        """The id of the agent run: the run's id and where in it the agent was asked."""
        held = _held.get()
        return None if held is None else held.begin(_within.get(), self.name)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """An id that follows from the agent run's."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """When the run was created: a `timeout=` counts from the first attempt."""
        del run_id
        held = _held.get()
        if held is None:
            return None
        lease = held.run.lease
        # The store's clock says how long ago that was, this machine's clock is what the deadline is compared with.
        age_ms = (await lease._store.facts()).now_ms - lease.run.created_ms  # noqa: SLF001 - a read that decides nothing
        return datetime.now(UTC) - timedelta(milliseconds=age_ms)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: Any) -> Any:
        """Name the agent run for what does not carry its id."""
        held = _held.get()
        if held is None:
            return await handler()
        token = _agent_run.set(held.paths.get(ctx.run_id or "", ctx.run_id or ""))
        try:
            return await super().wrap_run(ctx, handler=handler)
        finally:
            _agent_run.reset(token)

    def get_durable_operation_backend(self) -> DurableOperationBackend[UnitConfig]:
        """The backend whose units are records of the run."""

        def tool_config(
            operation_id: DurableOperationId, tool: Any | None, tool_name: str
        ) -> UnitConfig | Literal[False]:
            config = self._build_resolve_tool_config({})(tool, tool_name)
            if config is False:
                return False
            if (effect := config.get("effect", "repeat")) not in EFFECTS:
                message = f"effect {effect!r} of tool {tool_name} is none of {', '.join(EFFECTS)}; choose one"
                raise NotAllowed(message)
            return dict(config) if isinstance(operation_id, ToolsetCallToolId) else {}

        config: RoleBasedOperationConfig[UnitConfig] = RoleBasedOperationConfig(
            model={}, event={}, capability={}, tool={}, resolve_tool=tool_config
        )
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)


__all__ = ["TenureDurability", "durable"]
