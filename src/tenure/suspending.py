"""Suspension: what a run waits for becomes true in the commit that ends its lease, or the run is not suspended.

What was posted before that commit is found by it: a decision or signal that arrives meanwhile is never slept over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.core import journal
from tenure.core.approvals import Decision
from tenure.core.run import Ask, Due, Item, Request, Status
from tenure.effects import InboxUnread, soonest
from tenure.errors import NotAllowed

if TYPE_CHECKING:
    from tenure.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What one place of a call waits for: a time of the store, signals, requests with what they show, any of them.

    `events` land with the suspension.
    """

    ends_ms: int | None = None
    signals: tuple[str, ...] = ()
    requests: Mapping[str, Request] = field(default_factory=dict)
    contents: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[bytes, ...] = ()


async def suspend(
    lease: Lease,
    /,
    *,
    due: Due | None = None,
    requests: Mapping[str, Request] | None = None,
    signals: Sequence[str] = (),
    contents: Mapping[str, Any] | None = None,
    events: Sequence[bytes] = (),
) -> list[Item]:
    """Give the run up until a time, a decision, a signal or an expiry, whichever is first; see `Lease.suspend`.

    `contents` are what the requests show, by id; `events` land with the suspension, and only with it.
    """
    asked = dict(requests or {})
    wants = (*asked, *signals)
    if due is None and not wants:
        message = "a run that waits for nothing is never woken; name a time, a request or a signal"
        raise NotAllowed(message, run=lease.run)
    opening = opened_by(lease, asked, contents or {})
    now_ms = (await lease.facts()).now_ms if any(r.expires_ms for r in asked.values()) else 0
    due = soonest(due, asked, now_ms)
    while True:
        found = [item for item in await lease.inbox() if _meant(item, asked, signals)]
        try:
            if not found:
                opened = asked if opening else {}
                effects = {"status": Status.SUSPENDED, "wants": wants, "due": due, "opened": opened}
                await lease.commit([*opening, *events], **effects, inbox_seq=lease.inbox_read)
                await lease.ended("run:" + lease.run.id)
            elif opening:
                await lease.commit(opening, opened=asked, inbox_seq=lease.inbox_read)
        except InboxUnread:
            continue
        return found


async def announce(lease: Lease, requests: Mapping[str, Request], contents: Mapping[str, Any], /) -> None:
    """Open requests while the run goes on, so that people can decide meanwhile."""
    if opening := opened_by(lease, requests, contents):
        await lease.commit(opening, opened=dict(requests), inbox_seq=lease.inbox_read)


def opened_by(lease: Lease, requests: Mapping[str, Request], contents: Mapping[str, Any], /) -> list[bytes]:
    """Return the events of the requests that are not open as they are; redaction lets them through whole, or not."""
    return [
        journal.event(
            journal.REQUEST_OPENED,
            request=name,
            digest=asked.digest,
            expires_ms=asked.expires_ms,
            **({"content": contents[name]} if name in contents else {}),
        )
        for name, asked in requests.items()
        if lease.run.requests.get(name) != asked
    ]


def decided(decision: Decision, /, *, scope: str = "") -> bytes:
    """Return the event by which a run takes note of a decision."""
    return journal.event(journal.REQUEST_DECIDED, scope=scope, **decision.to_json())


def withdrawn(request: str, why: str, /, *, scope: str = "") -> bytes:
    """Return the event that closes a request without a decision: expired, revoked, changed or unreadable."""
    return journal.event(journal.REQUEST_WITHDRAWN, scope=scope, request=request, why=why)


def _meant(item: Item, requests: Mapping[str, Request], signals: Sequence[str]) -> bool:
    if item.ask is Ask.SIGNAL:
        return item.name in signals
    return item.ask is Ask.CANCEL or item.name in requests
