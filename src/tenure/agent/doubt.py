"""Calls in doubt: started, without a result, and not to be repeated silently. A person says how they ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tenure.core import approvals, build, canonical, ids, journal
from tenure.core.journal import Event
from tenure.core.loop import AgentState
from tenure.core.messages import ToolCall
from tenure.core.run import Ask, Item, Request, Run
from tenure.core.saying import calls_started, result, result_error
from tenure.effects import InboxUnread
from tenure.errors import InvalidContent, NotAllowed, RequestClosed
from tenure.lease import Lease
from tenure.ledger import Ledger

UNSET: Any = object()


def outcome_unknown(call_id: str, /, *, scope: str = "") -> bytes:
    """Return the record of a call that is given up: an error that claims neither success nor anybody's decision."""
    message = (
        "the outcome of this call is unknown: its worker stopped after the call was started and before a result was "
        "recorded. It may have taken effect, and it was not made again."
    )
    return result_error(call_id, "OutcomeUnknown", message, scope=scope)


def call_digest(call: ToolCall, /) -> str:
    """Return the digest of what a person decides on."""
    return canonical.digest(canonical.encode([call.id, call.name, call.arguments]))


class Doubt:
    """Asks people about calls, for one attempt, and turns what they said into events."""

    def __init__(self, lease: Lease, state: AgentState, land: Callable[[Sequence[Event]], Awaitable[None]]) -> None:
        self._lease = lease
        self._state = state
        self._land = land

    def was_asked(self, call: ToolCall) -> bool:
        """Return whether a request about this call is open."""
        return self._state.request_of(call.id) in self._lease.run.requests

    async def decided(self, calls: Sequence[ToolCall], /) -> list[ToolCall]:
        """Consume what people said about these calls, in one commit with what follows; return those to repeat."""
        while True:
            by_request = {self._state.request_of(call.id): call for call in calls}
            asks = (Ask.DECIDE, Ask.REVOKE)
            items = [item for item in await self._lease.inbox() if item.name in by_request and item.ask in asks]
            if not items:
                return []
            follows: list[bytes] = []
            again: list[ToolCall] = []
            # What was revoked decides nothing: it is consumed, and asked for anew.
            revoked = {item.name for item in items if item.ask is Ask.REVOKE}
            for item in (item for item in items if item.name not in revoked):
                call = by_request[item.name]
                how, event = self._follow(call, item)
                if how == "repeat":
                    again.append(call)
                elif event is not None:
                    follows.append(event)
            if again:
                follows.append(calls_started([call.id for call in again], scope=self._state.scope))
            try:
                stored = await self._lease.consume(items, closes=sorted({item.name for item in items}), also=follows)
            except InboxUnread:
                continue  # something else was said meanwhile: read that too
            await self._land(stored)
            return again

    def _follow(self, call: ToolCall, item: Item) -> tuple[str, bytes | None]:
        """What a decision comes to; one that cannot be read decides nothing, and is asked for again."""
        try:
            said = canonical.decode(item.body)
        except InvalidContent:
            said = None
        how = str(said.get("how")) if isinstance(said, dict) else ""
        if how == "result":
            return how, result(call.id, said.get("result"), scope=self._state.scope)
        if how == "fail":
            return how, outcome_unknown(call.id, scope=self._state.scope)
        return how, None

    def requests(self, calls: Sequence[ToolCall], /) -> dict[str, Request]:
        """Return the requests that ask how these calls ended."""
        return {self._state.request_of(call.id): Request(digest=call_digest(call)) for call in calls}

    def contents(self, calls: Sequence[ToolCall], /) -> dict[str, Any]:
        """Return what these requests show."""
        return {
            self._state.request_of(call.id): {
                "boundary": "doubt",
                "call": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in calls
        }


def _asks_about(request: str, call_id: str) -> bool:
    """Whether a request asks how this call ended: a tool's, by its id, or a step's, by its key."""
    who, name = approvals.about(request)
    of_a_tool = not name.startswith("step:") and name.partition("#")[0] == call_id
    return who == approvals.RESOLVE and (of_a_tool or name in (call_id, f"step:{call_id}"))


async def resolve(
    ledger: Ledger,
    run_id: str,
    call_id: str,
    /,
    *,
    result: Any = UNSET,
    repeat: bool = False,
    fail: bool = False,
    by: str = "",
) -> Run:
    """Say how a call in doubt ended: with this `result`, or that it is to be made again, or given up as unknown.

    The first one who says it wins; the same again is no error. RequestClosed for another, and if nobody asks.
    """
    said = [name for name, given in (("result", result is not UNSET), ("repeat", repeat), ("fail", fail)) if given]
    if len(said) != 1:
        message = "say exactly one of result=, repeat=True and fail=True"
        raise NotAllowed(message)
    run = await ledger.load(ids.run_id(run_id))
    value = {"how": said[0], "by": by, **({"result": result} if said[0] == "result" else {})}
    request = next((name for name in run.requests if _asks_about(name, call_id)), None)
    if request is None:
        if (before := await _said_before(ledger, run, call_id)) is not None:
            if {**before, "by": ""} == {**value, "by": ""}:
                return run
            first = f"by {canonical.plain(str(before.get('by') or 'somebody'), 200)}: {before.get('how')}"
            message = f"how call {call_id} of run {run.id} ended was said first, {first}, and the run took note of it"
            raise RequestClosed(message, run=run)
        asked = ", ".join(sorted(run.requests)) or "nothing"
        message = f"nobody asks how call {call_id} of run {run.id} ended (open: {asked}); see `tenure show {run.id}`"
        decides = next((name for name in run.requests if call_id in (name, approvals.about(name)[1])), None)
        if decides is not None:
            message = (
                f"{decides!r} of run {run.id} is decided and not resolved: "
                f"`tenure approvals approve|reject {run.id} {decides}`"
            )
        raise RequestClosed(message, run=run)
    post = build.post(
        run=run.id, item=request, name=request, ask=Ask.DECIDE, value=value, request=run.requests[request].digest
    )
    found = await ledger.ask(post)
    await ledger.store.wake("due")
    await ledger.store.wake(f"run:{run.id}")
    return found


async def _said_before(ledger: Ledger, run: Run, call_id: str) -> Mapping[str, Any] | None:
    """What was said last about a call, and consumed by the run."""
    found: Mapping[str, Any] | None = None
    async for _, event in ledger.handle(run.id).events():
        if event["type"] == journal.CONSUMED and event["ask"] == Ask.DECIDE and _asks_about(event["name"], call_id):
            found = event["value"] if isinstance(event["value"], dict) else found
    return found
