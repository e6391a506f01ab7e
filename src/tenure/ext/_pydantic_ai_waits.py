"""Waiting of Pydantic AI on a run: for an event from outside by a signal, for an approval by a request of the run.

A run that waits is suspended: it holds no lease, no worker and no memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import anyio
from pydantic import JsonValue
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolApprovalResult,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)

from tenure.core.approvals import Decision
from tenure.core.run import Run
from tenure.errors import NotAllowed
from tenure.ext._pydantic_ai_held import Held, agent_run, held
from tenure.ext._pydantic_ai_units import Unit
from tenure.ledger import Ledger


class Waiter(ExternalEventWaiter):
    """Waits with the run suspended; the token that is handed out names the run and a signal of it."""

    def __init__(self, found: Held) -> None:
        self._held = found

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Return what `ask` answered, else what the token was resolved with; `ask` is called once over all attempts."""
        run, path = self._held.run, agent_run.get()
        name = self._held.named(path, f"event:{name}")
        signal = "/".join(filter(None, (path, name)))
        unit = Unit(scope=path, name=f"ask:{name}", guard="", inner=signal)
        answer: Any = await self._held.once(unit, lambda: ask(f"{run.id}:{signal}"))
        if answer is not None:
            return answer  # type: ignore[no-any-return]
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            told = await run.wait_for(signal, timeout=seconds)
        except TimeoutError:
            message = f"No resolution arrived within {timeout}."
            raise ExternalEventError(message) from None
        if not isinstance(told, dict) or not {"payload", "error"} & set(told):
            message = f"signal {signal!r} of run {run.id} was not sent by resolve_event or fail_event; use one of them"
            raise NotAllowed(message, run_id=run.id)
        if "error" in told:
            raise ExternalEventError(str(told["error"]))
        return told["payload"]  # type: ignore[no-any-return]


async def resolve_event(ledger: Ledger, token: str, payload: Any, /) -> Run:
    """Resolve a token that a run handed out; the run goes on with the payload, a JSON value.

    The first resolution counts: a token that was resolved otherwise raises RunConflict, the same again is no error.
    """
    return await _send(ledger, token, {"payload": payload})


async def fail_event(ledger: Ledger, token: str, reason: str, /) -> Run:
    """Tell a run that what it waits for will not come."""
    return await _send(ledger, token, {"error": reason})


async def _send(ledger: Ledger, token: str, value: dict[str, Any]) -> Run:
    run_id, colon, signal = token.partition(":")
    if not colon or not signal:
        message = f"{token[:80]!r} is no token that a run handed out; pass it on as it was given"
        raise NotAllowed(message)
    return await ledger.handle(run_id).signal(signal, value, id=f"signal:{signal}")


class TenureApprovals(AbstractCapability[AgentDepsT]):
    """Asks people, by requests of the run, about tool calls that need an approval; the same agent run then goes on.

    A decision is bound to tool and arguments; a rejection is told to the model with its reason. `expires` is in
    seconds, `on_expiry` what it means that nobody decided by then. Outside of `durable(run)` calls stay deferred.
    """

    def __init__(
        self, *, expires: float | None = None, on_expiry: Literal["ask_again", "reject", "fail"] = "ask_again"
    ) -> None:
        self._expires = expires
        self._on_expiry: Literal["ask_again", "reject", "fail"] = on_expiry

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Return what people decided about the calls that need an approval; others are left to others."""
        found = held.get()
        if found is None or not requests.approvals:
            return None
        path, decisions = found.path(ctx), dict[str, Decision]()

        async def ask(call: ToolCallPart, key: str) -> None:
            content = {"agent": path, "tool": call.tool_name, "arguments": call.args_as_dict()}
            decisions[call.tool_call_id] = await found.run.ask(
                key, content, expires=self._expires, on_expiry=self._on_expiry
            )

        async with anyio.create_task_group() as tasks:
            for call in requests.approvals:
                key = found.named(path, f"{path}/{call.tool_name}@{ctx.run_step}.{call.tool_call_id}")
                tasks.start_soon(ask, call, key)
        return requests.build_results(approvals={call: _result(said) for call, said in decisions.items()})


def _result(said: Decision) -> DeferredToolApprovalResult:
    if said.approved:
        return ToolApproved()
    why = "nobody decided in time" if said.expired else said.reason
    return ToolDenied(f"The call was rejected: {why}" if why else "The call was rejected.")
