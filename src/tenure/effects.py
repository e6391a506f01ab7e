"""What becomes true with an append, and how the effects of appends that share a commit are put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio

from tenure.core import canonical, ids, journal
from tenure.core.journal import Event
from tenure.core.run import Answer, Commit, Due, Item, Outcome, Request, Status
from tenure.core.text import shown
from tenure.errors import NotAllowed, RunConflict
from tenure.store import Store

_NOTHING = (None,) * 7
MAX_TAGS = 64
MIN_TTL_S = 1.0
MAX_TTL_S = 3600.0


@dataclass(slots=True, kw_only=True)
class Effects:
    """What becomes true with an append beside its events; `build.commit` says what each means."""

    step: int = 0
    status: Status | None = None
    failures: int | None = None
    consume: tuple[str, ...] = ()
    inbox_seq: int | None = None
    opened: Mapping[str, Request] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    wants: tuple[str, ...] | None = None
    tags: Mapping[str, str] | None = None
    due: Due | None = None
    outcome: Outcome | None = None
    blobs: tuple[bytes, ...] = ()
    base: bool = False
    through: Callable[[Commit], Awaitable[Answer]] | None = field(default=None, compare=False)

    @property
    def plain(self) -> bool:
        """Return whether nothing becomes true but that a step ended, if one did: so it is with nearly all appends."""
        others = (self.status, self.failures, self.inbox_seq, self.wants, self.tags, self.due, self.outcome)
        return others == _NOTHING and not (self.consume or self.opened or self.closed or self.blobs or self.base)


class InboxUnread(RunConflict):
    """Something was posted since the inbox was read: read it, then decide again."""


@dataclass(slots=True, kw_only=True, eq=False)
class Append:
    """One append that waits for its commit; `taken` once it is part of one.

    `stored` is what its events are then, for who is `shown` them.
    """

    events: list[bytes]
    effects: Effects
    shown: bool = False
    taken: bool = False
    error: BaseException | None = None
    seq: int = 0
    stored: list[Event] = field(default_factory=list)
    done: bool = False
    bell: anyio.Event | None = None

    @property
    def size(self) -> int:
        """Return how many bytes it takes in a commit."""
        return sum(map(len, self.events)) + sum(map(len, self.effects.blobs))

    def settle(self, error: BaseException | None = None) -> None:
        """Tell the caller that it has landed, or why not."""
        self.error = error
        self.done = True
        if self.bell is not None:
            self.bell.set()

    async def settled(self) -> None:
        """Wait for that; who writes alone waits for nobody, and needs no event."""
        if not self.done:
            self.bell = self.bell or anyio.Event()
            await self.bell.wait()


def taken(entries: list[Append], /) -> list[Append]:
    """Take from the appends that wait those which share the next commit, and return them."""
    found: list[Append] = []
    size = 0
    while entries and (not found or size + entries[0].size < canonical.MAX_COMMIT_BYTES // 2):
        if found and (entries[0].effects.through or found[0].effects.through):
            break  # a transaction of others carries its own commit and nothing beside it
        if found and entries[0].effects.base:
            break  # what restates the state holds what was folded before its commit, and nothing beside it
        entry = entries.pop(0)
        entry.taken = True
        found.append(entry)
        size += entry.size
    return found


def merged(effects: Sequence[Effects], requests: Mapping[str, Request], /) -> dict[str, Any]:
    """Return the arguments of `build.commit` for appends in order; `requests` are those open before them."""
    if len(effects) == 1 and effects[0].plain:
        return {"step": effects[0].step}  # so it is nearly always
    found: dict[str, Any] = {"step": sum(e.step for e in effects), "base": any(e.base for e in effects)}
    for name in ("status", "failures", "wants", "tags", "due", "outcome", "inbox_seq"):
        found[name] = next((v for e in reversed(effects) if (v := getattr(e, name)) is not None), None)
    found["consume"] = tuple(item for e in effects for item in e.consume)
    found["blobs"] = tuple(data for e in effects for data in e.blobs)
    if any(e.opened or e.closed for e in effects):
        after = dict(requests)
        for e in effects:
            after.update(e.opened)
            for request_id in e.closed:
                after.pop(request_id, None)
        found["requests"] = after
    return found


def consumed(item: Item, /) -> bytes:
    """Return the event by which a holder takes an item into the journal."""
    return journal.consumed(item.id, item.name, item.ask.value, canonical.decode(item.body))


def soonest(due: Due | None, requests: Mapping[str, Request], now_ms: int, /) -> Due | None:
    """Return the earlier of a time and the first expiry of requests: an expired request wakes who waits for it."""
    expiries = [request.expires_ms for request in requests.values() if request.expires_ms is not None]
    if not expiries:
        return due
    return Due(ms=min([*expiries, *([due.at(now_ms)] if due is not None else [])]), relative=False)


def due_of(until: datetime | float | None) -> Due | None:
    """Return when: seconds from now, or an instant (aware datetime); None for no time."""
    if until is None:
        return None
    if isinstance(until, datetime):
        if until.tzinfo is None:
            message = "a datetime without a time zone names no instant; pass an aware one or seconds from now"
            raise NotAllowed(message)
        return Due(ms=round(until.timestamp() * 1000), relative=False)
    return Due(ms=milliseconds(until, "a time from now"))


def milliseconds(seconds: object, what: str, /) -> int:
    """Return seconds in milliseconds; NotAllowed for what is no number of seconds that a store can add to its time."""
    if isinstance(seconds, int | float) and type(seconds) is not bool and abs(seconds) * 1000 <= canonical.MAX_NUMBER:
        return round(seconds * 1000)
    message = f"{what} is a number of seconds, not {shown(seconds)[:40]}; pass one that ends within some thousand years"
    raise NotAllowed(message)


def opened(store: Store, /) -> Store:
    """Return a store; NotAllowed for what is none, such as the URL of one."""
    if not hasattr(store, "raise_ttl"):
        form = "async with open_store(url) as store, Ledger(store) as ledger"
        message = f"a ledger works on an open store, not on {type(store).__name__}: {form}"
        raise NotAllowed(message)
    return store


def lease_ms(ttl: float, /) -> int:
    """Return a lease time in milliseconds; NotAllowed for one that no lease lasts."""
    if MIN_TTL_S * 1000 <= (ttl_ms := milliseconds(ttl, "ttl")) <= MAX_TTL_S * 1000:
        return ttl_ms
    message = f"a lease lasts {MIN_TTL_S:.0f} s to 1 h, not {ttl} s; choose one above the store's round trip"
    raise NotAllowed(message)


def tags_of(tags: object, /) -> dict[str, str]:
    """Return the tags of a run; NotAllowed for what is no mapping or too many, InvalidId for what is no label."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping) or len(tags) > MAX_TAGS:
        message = f"tags are a mapping of at most {MAX_TAGS} names to texts; put what is longer into the input"
        raise NotAllowed(message)
    return {ids.label(name, "tag"): ids.label(value, "tag value") for name, value in tags.items()}
