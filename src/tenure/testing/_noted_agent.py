"""An agent whose model and tools note each call, for who looks for calls made twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.agent.agent import Agent
from tenure.agent.model import Model, ModelReply, ModelRequest
from tenure.agent.tool import Tool, ToolContext
from tenure.calling import Threads
from tenure.testing.models import CallLog


class _NotedModel:
    def __init__(self, model: Model, log: CallLog) -> None:
        self.name = model.name
        self._model = model
        self._log = log

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        self._log.write("call", name=request.aside or f"model:{request.step}", attempt=request.attempt)
        return await self._model.ask(request)


def note_calls(agent: Any, log: CallLog, /) -> None:
    """Let an agent's model and tools write a line before each call; an agent that is none of ours is left alone."""
    if not isinstance(agent, Agent):
        return
    agent.model = _NotedModel(agent.model, log)
    for found in agent.tools.values():
        _note_tool(found, log)


def _note_tool(found: Tool[..., Any], log: CallLog) -> None:
    plain = found.invoke

    async def invoke(context: ToolContext, arguments: Mapping[str, Any], /, *, threads: Threads) -> Any:
        log.write("call", name=f"tool:{context.call_id}", attempt=context.attempt)
        return await plain(context, arguments, threads=threads)

    found.invoke = invoke  # type: ignore[method-assign]
