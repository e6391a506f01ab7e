"""A call in doubt, announced by a holder that died before it had a result: looked up, asked about, or given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.tools import RunContext

from tenure.active import ActiveRun
from tenure.agent.tool import NOT_DONE
from tenure.calling import invoke
from tenure.core import journal
from tenure.core.approvals import RESOLVE, content_digest, resolution
from tenure.core.run import Ask, Request
from tenure.effects import InboxUnread
from tenure.ext._pydantic_ai_units import Unit, plain
from tenure.retry import of_the_attempt
from tenure.suspending import Wait

EFFECTS = ("repeat", "reconcile", "ask", "fail")

Reconcile = Callable[[RunContext[Any], Mapping[str, Any]], Any]
"""Finds out how a call in doubt ended: given context and arguments it returns the result, or NOT_DONE; may be async."""

UNKNOWN = {
    "kind": "tool_failed",
    "message": "The call was begun by a process that ended before it had a result; nobody knows whether it was made.",
}
"""What the model is told of a call in doubt whose outcome stays unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is known of a tool call beside its unit: what a person is shown, and how its outcome can be looked up."""

    tool: str
    arguments: Mapping[str, Any]
    effect: str
    look: Callable[[], Any] | None = None


async def looked(run: ActiveRun[Any], call: Call, /) -> object:
    """Return the payload of a call as its toolset finds it, NOT_DONE, or None if that cannot be found out."""
    if call.look is None:
        return None
    try:
        # A plain function in a thread, as plain tools are called: on the loop it would keep the heartbeat from asking.
        found = await invoke(call.look, (), run.threads)
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows how the call ended
        if (ours := of_the_attempt(error, run.id)) is not None:
            raise ours from None
        run.log.warning("how call of %s ended could not be looked up: %s", call.tool, type(error).__name__)
        return None
    return NOT_DONE if found is NOT_DONE else {"kind": "tool_return", "result": plain(found)}


async def resolved(run: ActiveRun[Any], unit: Unit, call: Call, /) -> bool:
    """Wait, with the run suspended, for a person to say how a call ended; return False if it is to be made again.

    What was said is recorded for the unit else. `tenure show RUN` names the call for `tenure resolve RUN CALL`.
    """
    lease, steps, about = run.lease, run.steps, f"{unit.scope}/{unit.name}"
    while True:
        async with steps.turn:
            request = lease.state.asked.latest(RESOLVE, about)
            asked = lease.run.requests.get(request)
            said = [item for item in await lease.inbox() if item.name == request and item.ask is not Ask.SIGNAL]
            if asked is None or not said:
                break
            how, value = resolution(said)
            payload = {"result": {"kind": "tool_return", "result": value}, "fail": UNKNOWN}.get(how)
            also: list[bytes] = []
            if payload is not None:
                content = {"name": unit.name, "value": payload, "guard": unit.guard}
                also = [journal.event(journal.RECORD, scope=unit.scope, **content)]
            try:
                await lease.consume(said, closes=[request], also=also, step=len(also))
            except InboxUnread:
                continue
        if also or how == "repeat":
            return bool(also)
    request = request if asked is not None else lease.state.asked.following(RESOLVE, about)
    shown = {"boundary": "doubt", "call": about, "name": call.tool, "arguments": plain(call.arguments)}
    await steps.wait(Wait(requests={request: Request(digest=content_digest(shown))}, contents={request: shown}))
    raise AssertionError  # pragma: no cover - nothing ends it but cancellation
