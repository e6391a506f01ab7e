"""Approvals, pure: what a person is asked, and what follows from what was said.

A request is named by who asks (`ask`: a handler, `approve`: about a call of a tool, `resolve`: about how a call ended)
and by what it is about. Asked anew it has the next number, because an id takes one decision for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenure.core import canonical
from tenure.core.run import Ask, Item, Request
from tenure.errors import InvalidContent, NotAllowed

ASK = "ask"
APPROVE = "approve"
RESOLVE = "resolve"
SIGNAL = "signal:"
"""Item ids of signals begin with it: they share one space with those of decisions, which are request ids."""
REVOKE = "revoke:"
MAX_CONTENT_BYTES = canonical.MAX_EVENT_BYTES - 4096
"""An event has a request's id and digest beside what it shows."""


class Choice(StrEnum):
    """What a person may decide about a request."""

    APPROVE = "approve"
    REJECT = "reject"


class OnExpiry(StrEnum):
    """What follows when nobody decided in time, which denies nothing: ask anew, count it as a rejection, or fail."""

    ASK_AGAIN = "ask_again"
    REJECT = "reject"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about a request whose content has this digest.

    `expired`: nobody decided in time, and the request counts that as a rejection.
    """

    request: str
    digest: str
    approved: bool
    by: str = ""
    reason: str = ""
    expired: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value by which the journal keeps it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], /) -> Decision:
        """Return the decision of its JSON value."""
        return cls(
            request=str(value.get("request")),
            digest=str(value.get("digest")),
            approved=value.get("approved") is True,
            by=str(value.get("by", "")),
            reason=str(value.get("reason", "")),
            expired=value.get("expired") is True,
        )


class Standing(StrEnum):
    """How an open request stands: VOID was decided and does not count, CHANGED asks about something else by now."""

    OPEN = "open"
    DECIDED = "decided"
    EXPIRED = "expired"
    VOID = "void"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the inbox says about one request, and the items that say it."""

    standing: Standing
    decision: Decision | None = None
    items: tuple[Item, ...] = ()
    why: str = ""


def content_digest(content: Any, /) -> str:
    """Return the digest that binds a decision to what was shown; when and why it was asked stand outside of it."""
    return canonical.digest(canonical.encode(content, limit=MAX_CONTENT_BYTES))


def request_id(who: str, about: str, number: int, /) -> str:
    """Return the id of the number-th request about something."""
    return f"{who}:{about}" if number == 1 else f"{who}#{number}:{about}"


def about(request: str, /) -> tuple[str, str]:
    """Return who asks and what the request is about, without its number."""
    who, _, name = request.partition(":")
    return who.partition("#")[0], name


def read(request: str, asked: Request, items: Iterable[Item], /, *, now_ms: int, digest: str | None = None) -> Reading:
    """Return how a request stands, by what was posted; `digest` is that of the content as it would be asked now.

    A decision that was posted while the request was open counts, whenever it is read. A revocation voids it, and so
    does a change of what it was about.
    """
    said = tuple(item for item in items if item.name == request and item.ask in (Ask.DECIDE, Ask.REVOKE))
    changed = digest is not None and digest != asked.digest
    if not said:
        if changed:
            return Reading(standing=Standing.CHANGED)
        late = asked.expires_ms is not None and asked.expires_ms <= now_ms
        return Reading(standing=Standing.EXPIRED if late else Standing.OPEN)
    if any(item.ask is Ask.REVOKE for item in said):
        return Reading(standing=Standing.VOID, items=said, why="revoked")
    if changed:
        return Reading(standing=Standing.VOID, items=said, why="changed")
    decision = decision_of(said[0], asked)
    if decision is None:
        return Reading(standing=Standing.VOID, items=said, why="unreadable")
    return Reading(standing=Standing.DECIDED, decision=decision, items=said)


def decision_of(item: Item, asked: Request, /) -> Decision | None:
    """Return the decision that an item is; None for anything else, such as a result where a decision is due."""
    try:
        said = canonical.decode(item.body)
    except InvalidContent:
        return None
    how = said.get("how") if isinstance(said, dict) else None
    if how not in (Choice.APPROVE, Choice.REJECT):
        return None
    return Decision(
        request=item.name,
        digest=asked.digest,
        approved=how == Choice.APPROVE,
        by=str(said.get("by", "")),
        reason=str(said.get("reason", "")),
    )


def resolution(said: Sequence[Item], /) -> tuple[str, Any]:
    """Return what a person said about how a call ended (result, repeat, fail; else empty), and the result."""
    try:
        value = canonical.decode(said[0].body)
    except InvalidContent:
        value = None
    if not isinstance(value, dict) or any(item.ask is not Ask.DECIDE for item in said):
        return "", None
    return str(value.get("how")), value.get("result")


def expired_decision(request: str, asked: Request, /) -> Decision:
    """Return what stands for the decision that nobody made, where that counts as a rejection."""
    reason = "nobody decided in time"
    return Decision(request=request, digest=asked.digest, approved=False, reason=reason, expired=True)


def policy_of(on_expiry: OnExpiry | str, /) -> OnExpiry:
    """Return the policy of this name; NotAllowed if there is none."""
    try:
        return OnExpiry(on_expiry)
    except ValueError:
        message = f"on_expiry {on_expiry!r} is none of {', '.join(OnExpiry)}; choose one"
        raise NotAllowed(message) from None


@dataclass(slots=True)
class Asked:
    """What a run has asked so far, folded from its journal: who and about what, to the ids of the requests in order."""

    opened: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, found: Mapping[str, Any], /) -> None:
        """Take in a request that was opened; opened again with other content, it stays in its place."""
        request = str(found.get("request"))
        opened = self.opened.setdefault(about(request), [])
        if request not in opened:
            opened.append(request)

    def to_json(self) -> list[str]:
        """Return the requests in order, without what they show: for a journal that is folded from here on."""
        return [request for found in self.opened.values() for request in found]

    @classmethod
    def from_json(cls, value: Iterable[str], /) -> Asked:
        """Return what `to_json` wrote."""
        asked = cls()
        for request in value:
            asked.add({"request": request})
        return asked

    def latest(self, who: str, name: str, /) -> str:
        """Return the id of the last request about something, open or not; empty if there was none."""
        return self.opened.get((who, name), [""])[-1]

    def following(self, who: str, name: str, /) -> str:
        """Return the id of the next request about something."""
        return request_id(who, name, len(self.opened.get((who, name), ())) + 1)
