"""An agent of Pydantic AI that is saved at its step boundary, for agents that the durable engine does not take.

What the model said is saved before its calls are made, each with its usage, and each call's result alone. A successor
begins the agent with the saved conversation: the open calls are made, those with a result answer from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_ai import CallToolsNode
from pydantic_ai.agent import AbstractAgent, AgentRunResult
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailedError, ToolRetryError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolCallPart, ToolReturn, ToolReturnPart
from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition
from pydantic_ai.usage import RunUsage

from tenure.active import ActiveRun
from tenure.errors import NotAllowed
from tenure.ext._pydantic_ai_held import within
from tenure.ext._pydantic_ai_secrets import marked, refuse

Out = TypeVar("Out")

_PART: TypeAdapter[ToolReturnPart] = TypeAdapter(ToolReturnPart)
_RETURN: TypeAdapter[ToolReturn] = TypeAdapter(ToolReturn)
_USAGE: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)
_RAISED: dict[str, type[ToolRetryError | ToolFailedError]] = {"retried": ToolRetryError, "failed": ToolFailedError}
"""What a tool says by raising, as the hooks of an agent are shown it: with the part that the model is sent."""


class TenureCheckpoint(AbstractCapability[AgentDepsT]):
    """Saves one agent run at each step: `result = await TenureCheckpoint(run).ask(agent, prompt)`.

    For agents that `TenureDurability` does not take: without a name, with toolsets or models of a single run. The agent
    begins again in the middle: a question in flight is asked again, a call without a result is made again under its id.
    Several agent runs in one call of the handler have a `key` each.
    """

    def __init__(self, run: ActiveRun[Any], key: str = "agent", /) -> None:
        run.steps.use("pydantic-ai checkpoint", key)
        self._run = run
        self._key = key
        self._kept: list[ModelMessage] = []
        self._number = 0

    async def ask(self, agent: AbstractAgent[Any, Out], prompt: Any = None, /, **options: Any) -> AgentRunResult[Out]:
        """Return what the agent comes to, from its last checkpoint if there is one; options are those of `run`."""
        usage = self._recall()
        options["capabilities"] = [*(options.get("capabilities") or ()), self]
        if usage is not None:
            # Without a prompt: it stands in what was saved, and the calls of the last answer are still to be made.
            prompt, options = None, {**options, "message_history": self._kept, "usage": usage}
        found: AgentRunResult[Out] = await agent.run(prompt, **options)
        return found

    def _recall(self) -> RunUsage | None:
        records, usage = self._run.lease.state.records, None
        while (found := records.get((self._key, f"messages:{self._number + 1}"))) is not None:
            value = found["value"]
            self._number += 1
            added = ModelMessagesTypeAdapter.validate_python(value["messages"])
            self._kept = [*self._kept[: int(value["after"])], *added]
            usage = _USAGE.validate_python(value["usage"])
        return usage

    async def before_node_run(self, ctx: RunContext[AgentDepsT], *, node: Any) -> Any:
        """Save what is new when the model has answered, before any of its calls is made."""
        if isinstance(node, CallToolsNode):
            await self._save(list(ctx.messages), ctx.usage)
        return node

    async def _save(self, messages: list[ModelMessage], usage: RunUsage) -> None:
        after = _common(self._kept, messages)
        if after == len(messages) == len(self._kept):
            return
        lease = self._run.lease
        plain = ModelMessagesTypeAdapter.dump_python(messages[after:], mode="json")
        value = {
            "after": after,
            "messages": [marked(message, lease.redaction) for message in plain],
            "usage": _USAGE.dump_python(usage, mode="json"),
        }
        await lease.record(f"messages:{self._number + 1}", value, scope=self._key, step=1)
        self._number += 1
        self._kept = messages

    async def wrap_model_request(self, ctx: RunContext[AgentDepsT], *, request_context: Any, handler: Any) -> Any:
        """Ask the model only while the run may go on."""
        del ctx
        async with self._gate("a question"):
            return await handler(request_context)

    async def wrap_tool_execute(
        self, ctx: RunContext[AgentDepsT], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Give back what is recorded of a call, or make it and record what it comes to."""
        del ctx
        if (effect := _effect(tool_def)) != "repeat":
            message = f"tool {call.tool_name} has effect {effect}, and here a call in doubt is made again; "
            raise NotAllowed(message + "give the agent TenureDurability(), or the tool no effect")
        lease = self._run.lease
        refuse(call, lease.redaction)
        name = f"tool:{call.tool_name}@{self._number}.{call.tool_call_id}"
        if (self._key, name) not in lease.state.records:
            async with self._gate(name):
                try:
                    value = _stored(await handler(args), call)
                except (ToolRetryError, ToolFailedError) as error:
                    value = _said(error)
                await lease.record(name, value, scope=self._key, step=1)
        # As it is stored, which is what the next attempt will read.
        return _read(lease.state.records[self._key, name]["value"])

    @asynccontextmanager
    async def _gate(self, what: str) -> AsyncIterator[None]:
        if within.get():  # what runs inside a tool goes with the tool: a drain waits for the tool as a whole
            self._run.check()
            yield
            return
        async with self._run.steps.gate(f"{self._key}/{what}"):
            token = within.set(f"{self._key}/{what}")
            try:
                yield
            finally:
                within.reset(token)


def _effect(tool_def: ToolDefinition) -> str:
    said = (tool_def.metadata or {}).get("tenure")
    return str(said.get("effect", "repeat")) if isinstance(said, Mapping) else "repeat"


def _common(one: Sequence[ModelMessage], other: Sequence[ModelMessage]) -> int:
    """How many messages at the beginning are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a is not b and a != b), min(len(one), len(other)))


def _stored(value: Any, call: ToolCallPart) -> dict[str, Any]:
    if isinstance(value, ToolReturn):
        return {"kind": "tool_return", "result": _RETURN.dump_python(value, mode="json")}
    part = ToolReturnPart(tool_name=call.tool_name, content=value, tool_call_id=call.tool_call_id)
    return {"kind": "content", "result": _PART.dump_python(part, mode="json")["content"]}


def _said(error: ToolRetryError | ToolFailedError) -> dict[str, Any]:
    kind, part = ("retried", error.tool_retry) if isinstance(error, ToolRetryError) else ("failed", error.tool_failed)
    if not isinstance(part, ToolReturnPart):
        raise error  # an answer to no call
    return {"kind": kind, "part": _PART.dump_python(part, mode="json")}


def _read(value: dict[str, Any]) -> Any:
    if (raised := _RAISED.get(value["kind"])) is not None:
        raise raised(_PART.validate_python(value["part"]))
    if value["kind"] == "tool_return":
        return _RETURN.validate_python(value["result"])
    return _PART.validate_python({"tool_name": "", "content": value["result"], "tool_call_id": ""}).content
