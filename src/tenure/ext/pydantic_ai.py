"""Pydantic AI on a run: its model requests, tool calls and discovery become records of the run, each made once.

A capability of the agent, on the durable-execution surface of Pydantic AI (extra `pydantic-ai`). Units are named by
what they are (the step of the agent, the id of the call) and never by the order in which they were met, so tools that
run side by side may end in any order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
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
    external_event_scope,
    replay_scope,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition

from tenure.active import ActiveRun
from tenure.errors import HistoryLost, LeaseLost, NotAllowed
from tenure.ext._pydantic_ai_checkpoint import TenureCheckpoint
from tenure.ext._pydantic_ai_doubt import EFFECTS, Call, Reconcile
from tenure.ext._pydantic_ai_held import Held, agent_run, held
from tenure.ext._pydantic_ai_secrets import refuse
from tenure.ext._pydantic_ai_units import unit_of
from tenure.ext._pydantic_ai_waits import TenureApprovals, Waiter, fail_event, resolve_event

__all__ = ["TenureApprovals", "TenureCheckpoint", "TenureDurability", "durable", "fail_event", "resolve_event"]

UnitConfig = dict[str, Any]
"""What tool metadata under the key `tenure` may say, `{"effect": "ask"}`, and the function that reconciles."""


@contextmanager
def durable(run: ActiveRun[Any], key: str = "", /) -> Iterator[None]:
    """Make what agents with `TenureDurability` do in this block part of the run.

    Agent runs are named by the agent, and the second one of an agent in a block by its number. Where several of one
    agent run side by side, give each a block of its own with a `key`, or a `run_id` that is the same in each attempt.
    """
    run.steps.use("pydantic-ai", key or "agents")
    found = Held(run, key)
    token = held.set(found)
    try:
        with replay_scope(), external_event_scope(Waiter(found)):
            yield
    finally:
        held.reset(token)


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
        found = held.get()
        if found is None:
            return await body()
        ctx = next((part for part in reversed(cache_key) if isinstance(part, RunContext)), None)
        path = found.path(ctx)
        unit = unit_of(operation_id, name, cache_key, path)
        unit = unit.renamed(found.named(path, unit.name))
        return await found.once(unit, body, call=_call(cache_key, ctx, config))


def _call(cache_key: tuple[Any, ...], ctx: RunContext[Any] | None, config: UnitConfig) -> Call | None:
    """What is done about the tool call if it is in doubt; None for what may be made again."""
    if (effect := config.get("effect", "repeat")) == "repeat":
        return None
    tool, arguments, look = str(cache_key[0]), dict(cache_key[1]), config.get("reconcile")
    return Call(
        tool=tool, arguments=arguments, effect=effect, look=partial(look, ctx, arguments) if look is not None else None
    )


class TenureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside `durable(run)`; outside of it the agent runs as ever.

    `Agent(model, name="clerk", capabilities=[TenureDurability()])`. The agent needs a name, and each of its toolsets an
    id. A tool with `metadata={"tenure": {"effect": "fail"}}` is announced before it is called, and in doubt after a
    death its call is not made again: the model is told that its outcome is unknown. With "ask" the run waits for a
    person, with "reconcile" the function of that tool in `reconcile` finds out, and a person is asked where it cannot.
    `{"tenure": False}` leaves a tool out: it is called again in each attempt.
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
        reconcile: Mapping[str, Reconcile] | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._reconcile = dict(reconcile or {})

    @property
    def in_durable_context(self) -> bool:
        """Whether a handler is inside `durable`."""
        return held.get() is not None

    def get_default_run_id(self) -> str | None:
        """The id of the agent run: the run's id and where in it the agent was asked."""
        found = held.get()
        return None if found is None else found.begin(self.name)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """An id that follows from the agent run's."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """When the run was created: a `timeout=` counts from the first attempt."""
        del run_id
        found = held.get()
        if found is None:
            return None
        lease = found.run.lease
        # The store's clock says how long ago that was, this machine's clock is what the deadline is compared with.
        age_ms = (await lease.facts()).now_ms - lease.run.created_ms
        return datetime.now(UTC) - timedelta(milliseconds=age_ms)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: Any) -> Any:
        """Name the agent run for what does not carry its id."""
        found = held.get()
        if found is None:
            return await handler()
        token = agent_run.set(found.path(ctx))
        try:
            return await super().wrap_run(ctx, handler=handler)
        finally:
            agent_run.reset(token)

    async def before_tool_validate(
        self, ctx: RunContext[AgentDepsT], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        """Tell the model of a call whose arguments may not be stored; it is not made, here or in a later attempt."""
        refuse(call)
        return await super().before_tool_validate(ctx, call=call, tool_def=tool_def, args=args)

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
            if effect == "reconcile" and tool_name not in self._reconcile:
                message = f"tool {tool_name} has effect reconcile; name its function: TenureDurability(reconcile=...)"
                raise NotAllowed(message)
            more = {"reconcile": self._reconcile[tool_name]} if effect == "reconcile" else {}
            return {**config, **more} if isinstance(operation_id, ToolsetCallToolId) else {}

        config: RoleBasedOperationConfig[UnitConfig] = RoleBasedOperationConfig(
            model={}, event={}, capability={}, tool={}, resolve_tool=tool_config
        )
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)
