"""Approvals of calls: a person decides before a call is made, on exactly what will run.

A decision is bound to the digest of the call as it would be made here and now. What it approves is consumed in the
commit that says that the call is started: once, whatever dies when.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from tenure.core import approvals, journal
from tenure.core.approvals import APPROVE, Decision, OnExpiry, Reading, Standing
from tenure.core.journal import Event
from tenure.core.loop import AgentState
from tenure.core.messages import ToolCall
from tenure.core.run import Ask, Item, Request
from tenure.core.saying import calls_started, result_error
from tenure.effects import InboxUnread, milliseconds
from tenure.errors import CancelRequested, NotAllowed, RequestExpired, RunSuspended
from tenure.lease import Lease
from tenure.suspending import announce, decided, suspend, withdrawn

if TYPE_CHECKING:
    from tenure.agent.agent import Agent

log = logging.getLogger("tenure.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Which calls of a tool a person approves first: all of them, or those whose arguments `when` says yes to.

    `when` is given the arguments as the model gave them, and is not asked again once a request is open; if it raises, a
    person is asked. `expires` is in seconds by the store's clock. `on_expiry` says what follows when nobody decided in
    time, which denies nothing: ask again, count it as a rejection, or fail the run.
    """

    when: Callable[[Mapping[str, Any]], bool] | None = None
    expires: float | None = None
    on_expiry: OnExpiry | str = OnExpiry.ASK_AGAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_expiry", approvals.policy_of(self.on_expiry))
        if self.expires is not None and milliseconds(self.expires, "expires") <= 0:
            message = (
                f"a request expires after a time, not after {self.expires} s; leave it out for one that never does"
            )
            raise NotAllowed(message)

    def needed(self, call: ToolCall, /) -> bool:
        """Return whether the call needs an approval."""
        if self.when is None:
            return True
        try:
            return self.when(call.arguments if isinstance(call.arguments, dict) else {}) is not False
        except Exception as error:  # noqa: BLE001 - who cannot say that it is harmless has not said so
            log.warning("whether call %s needs approval could not be told (%s); it does", call.id, type(error).__name__)
            return True


def approval_of(given: object, name: str, /) -> Approval | None:
    """Return what `approval=` of a tool means."""
    match given:
        case None | False:
            return None
        case True:
            return Approval()
        case Approval():
            return given
        case _ if callable(given):
            return Approval(when=given)
    message = f"approval of tool {name} is True, a function of the arguments or an Approval, not {type(given).__name__}"
    raise NotAllowed(message)


class Approvals:
    """The approvals of one attempt."""

    def __init__(
        self, agent: Agent[Any], lease: Lease, state: AgentState, land: Callable[[Sequence[Event]], Awaitable[None]]
    ) -> None:
        self._agent = agent
        self._lease = lease
        self._state = state
        self._land = land
        self._shown: dict[str, Any] = {}

    async def recall(self, calls: Sequence[ToolCall], /) -> None:
        """Read what was shown of these calls, if any was asked about: that is what is decided on, and what runs."""
        wanted = {name for call in calls if (name := self._latest(call)) and name not in self._shown}
        if not wanted:
            return
        async for _, found in self._lease.events():
            if found["type"] == journal.REQUEST_OPENED and found.get("request") in wanted and "content" in found:
                self._shown[str(found["request"])] = found["content"]
        for name in wanted:  # a fork was told of what another run asked, and not what that showed
            self._shown.setdefault(name, None)

    def arguments(self, call: ToolCall, /) -> Any:
        """Return the arguments to make a call with: those that were shown, with the defaults of that time."""
        shown = self._shown.get(self._latest(call))
        read_as = shown.get("read_as") if isinstance(shown, Mapping) else None
        if read_as is not None and self._agent.tools[call.name].stands(call.arguments, read_as):
            return read_as
        return call.arguments

    def wanted(self, call: ToolCall, /) -> bool:
        """Return whether the call waits for a decision: not started, and asked about or to be asked about.

        What was asked about once is not made without a decision, whatever the tool says by now.
        """
        if call.id in self._state.started:
            return False
        approval = self._agent.tools[call.name].approval
        return self._latest(call) != "" or (approval is not None and approval.needed(call))

    def content(self, call: ToolCall, /) -> dict[str, Any]:
        """Return what a person decides on: the call with its arguments, and as what this code reads them."""
        tool = self._agent.tools[call.name]
        return {
            "boundary": "tool",
            "agent": self._agent.name,
            "scope": self._state.scope,
            "call": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "read_as": tool.plain(self.arguments(call)),
            "consequential": tool.consequential,
        }

    async def decided(self, calls: Sequence[ToolCall], /) -> list[ToolCall]:
        """Take note of what people said about these calls, in one commit with what follows; return those to make."""
        while open_ := [call for call in calls if self._open(call) is not None]:
            items = await self._lease.inbox()
            now_ms = (await self._lease.facts()).now_ms
            readings = [(call, self._read(call, items, now_ms)) for call in open_]
            readings = [(c, r) for c, r in readings if r.standing not in (Standing.OPEN, Standing.CHANGED)]
            if not readings:
                break
            follows, failing = [e for call, reading in readings for e in self._follow(call, reading)], None
            approved = [
                call for call, reading in readings if reading.decision is not None and reading.decision.approved
            ]
            if approved:
                follows.append(calls_started([call.id for call in approved], scope=self._state.scope))
            closes = [self._latest(call) for call, _ in readings]
            failing = next((c for c, r in readings if self._policy(c, r) is OnExpiry.FAIL), None)
            consumed = [item for _, reading in readings for item in reading.items]
            try:
                stored = await self._lease.consume(consumed, closes=closes, also=follows)
            except InboxUnread:
                continue  # something else was said meanwhile, a revocation maybe: read that too
            await self._land(stored)
            if failing is not None:
                message = f"nobody decided in time about call {failing.id} ({failing.name}); retry the run to ask again"
                raise RequestExpired(message, run=self._lease.run)
            return approved
        return []

    def _follow(self, call: ToolCall, reading: Reading) -> list[bytes]:
        """The events by which the run takes note of how a request stands."""
        scope, request, decision = self._state.scope, self._latest(call), reading.decision
        if self._policy(call, reading) is OnExpiry.REJECT:
            decision = approvals.expired_decision(request, self._lease.run.requests[request])
        if decision is None:
            return [withdrawn(request, reading.why or "expired", scope=scope)]
        events = [decided(decision, scope=scope)]
        return events if decision.approved else [*events, _rejected(call, decision, scope)]

    def _policy(self, call: ToolCall, reading: Reading) -> OnExpiry | None:
        if reading.standing is not Standing.EXPIRED:
            return None
        approval = self._agent.tools[call.name].approval or Approval()
        return OnExpiry(approval.on_expiry)

    async def requests(self, calls: Sequence[ToolCall], /) -> tuple[dict[str, Request], dict[str, Any]]:
        """Return the requests about these calls, those that are open and those that are to be, with what they show."""
        found: dict[str, Request] = {}
        contents: dict[str, Any] = {}
        now_ms = (await self._lease.facts()).now_ms if calls else 0
        for call in calls:
            content, asked = self.content(call), self._open(call)
            name = (
                self._latest(call) if asked is not None else self._lease.state.asked.following(APPROVE, self._of(call))
            )
            digest = approvals.content_digest(content)
            if asked is None or asked.digest != digest:
                expires = (self._agent.tools[call.name].approval or Approval()).expires
                expires_ms = None if expires is None else now_ms + milliseconds(expires, "expires")
                asked = Request(digest=digest, expires_ms=expires_ms)
            found[name], contents[name], self._shown[name] = asked, content, content
        return found, contents

    async def announce(self, calls: Sequence[ToolCall], /) -> None:
        """Ask while other calls go on, so that people can decide meanwhile."""
        try:
            await announce(self._lease, *await self.requests(calls))
        except InboxUnread:
            log.debug("run %s: something was said meanwhile; asked when it is read", self._lease.run.id)

    def _read(self, call: ToolCall, items: Sequence[Item], now_ms: int) -> Reading:
        request = self._latest(call)
        digest = approvals.content_digest(self.content(call))
        return approvals.read(request, self._lease.run.requests[request], items, now_ms=now_ms, digest=digest)

    def _of(self, call: ToolCall) -> str:
        return f"{self._state.scope}/{call.id}" if self._state.scope else call.id

    def _latest(self, call: ToolCall) -> str:
        return self._lease.state.asked.latest(APPROVE, self._of(call))

    def _open(self, call: ToolCall) -> Request | None:
        return self._lease.run.requests.get(self._latest(call))


async def wait_for_people(lease: Lease, requests: Mapping[str, Request], contents: Mapping[str, Any], /) -> None:
    """Give the run up until somebody says something about one of the requests; returns if somebody already has."""
    arrived = await suspend(lease, requests=requests, contents=contents)
    if any(item.ask is Ask.CANCEL for item in arrived):
        message = f"run {lease.run.id} was asked to end; clean up and return"
        raise CancelRequested(message, run=lease.run)
    if not arrived:
        raise_suspended(lease, requests)


def raise_suspended(lease: Lease, requests: Mapping[str, Request], /) -> NoReturn:
    """Raise RunSuspended with what can be said about the requests, and how."""
    run, told = lease.run, []
    if doubts := [name for name in requests if approvals.about(name)[0] == approvals.RESOLVE]:
        calls = [approvals.about(name)[1].partition("#")[0] for name in doubts]
        told.append(
            f"nobody knows how call {', '.join(calls)} ended; look at what it did, then "
            f"`tenure resolve {run.id} {calls[0]} --result VALUE|--repeat|--fail`"
        )
    if asks := [name for name in requests if name not in doubts]:
        told.append(
            f"{', '.join(asks)} waits to be decided; `tenure approvals show {run.id}`, then "
            f"`tenure approvals approve|reject {run.id} {asks[0]}`"
        )
    message = f"run {run.id} waits for a person: {'; '.join(told)}"
    raise RunSuspended(message, run=run)


def _rejected(call: ToolCall, decision: Decision, scope: str) -> bytes:
    """The result of a call that was rejected: an error that says who did, and that nothing was done."""
    who = "nobody approved this call in time" if decision.expired else f"{decision.by or 'a person'} rejected this call"
    reason = f": {decision.reason}" if decision.reason and not decision.expired else ""
    return result_error(call.id, "Rejected", f"{who}{reason}. It was not made.", scope=scope)
