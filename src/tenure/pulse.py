"""What the loop of a ledger and its heartbeat tell each other, which in production run in two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from tenure.core.run import Answer, Grant
from tenure.store import Refused


class Renewed(Protocol):
    """What the heartbeat needs of a lease; all of it may be called from the heartbeat's thread."""

    @property
    def grant(self) -> Grant:
        """Return the current grant."""
        ...

    @property
    def deadline_ns(self) -> int:
        """Return the local deadline, which every answer that extends the lease moves, to a renewal or to a write."""
        ...

    @property
    def remaining_ms(self) -> int:
        """Return what is left until the local deadline, in milliseconds."""
        ...

    def answered(self, grant: Grant, answer: Answer, sent_ns: int, /) -> Refused | None:
        """Take in the answer to a renewal of `grant` that was sent at `sent_ns`; return what a refusal has to tell."""
        ...

    def unanswered(self, error: Exception, /) -> None:
        """Take in that a renewal had no answer; it never extends trust."""
        ...

    def stalled(self, stalled_ms: int, /) -> None:
        """Take in that the loop showed no life for too long: the lease is given up."""
        ...


class Flying(Protocol):
    """A request of the ledger's loop that has no answer yet."""

    def overdue(self, now_ns: int, /) -> None:
        """Give up waiting if the local deadline of its lease has passed."""
        ...


@dataclass(slots=True)
class Pulse:
    """What the ledger's loop and the heartbeat tell each other; both note their contact with the store.

    `flying`, by the `id` of the lease, and `entered` are the loop's to change; the heartbeat looks into `flying`.
    `stack` is where the loop stands in the stall that began at `stack_of_ns`.
    """

    max_stall_ms: int
    seen_ns: int = 0
    thread_id: int = 0
    turned_ns: int = 0
    leases: dict[int, Renewed] = field(default_factory=dict)
    flying: dict[int, Flying] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)
    late_renewals: int = 0
    lag_ms: int = 0
    stack: str = ""
    stack_of_ns: int = 0
    answered_ns: int = 0
    failing: bool = False
    outage_ended_ns: int | None = None
    idle: Callable[[], None] | None = None
    entered: anyio.Event | None = None

    def begin(self, now_ns: int, /) -> None:
        """Note that the ledger's loop runs, and in this thread."""
        self.seen_ns, self.thread_id = now_ns, threading.get_ident()

    def stood(self, since_ns: int, /) -> str:
        """Return where the loop stood in a stall since then; empty if nothing saw it."""
        return self.stack if self.stack_of_ns >= since_ns else ""

    def news(self) -> anyio.Event:
        """Return what is set when a lease is entered from here on; for who has nothing to do without one."""
        if self.entered is None or self.entered.is_set():
            self.entered = anyio.Event()
        return self.entered

    def enter(self, lease: Renewed) -> None:
        """Start renewing a lease; who had none to renew or to watch is woken. On the ledger's loop."""
        with self.guard:
            self.leases[id(lease)] = lease
            wake, self.idle = self.idle, None
        if wake is not None:
            wake()
        if self.entered is not None:
            self.entered.set()

    def leave(self, lease: Renewed) -> None:
        """Stop renewing a lease; no renewal is sent after this, one may be on its way."""
        with self.guard:
            self.leases.pop(id(lease), None)

    def held(self) -> list[Renewed]:
        """Return the leases to renew."""
        with self.guard:
            return list(self.leases.values())

    def held_or(self, wake: Callable[[], None], /) -> list[Renewed]:
        """Return the leases to renew; without any, `wake` is called when there is one, once and on its thread."""
        with self.guard:
            self.idle = None if self.leases else wake
            return list(self.leases.values())

    def writes(self, lease: Renewed, /) -> bool:
        """Return whether a request of this lease is under way; from any thread."""
        return id(lease) in self.flying

    def cut(self, now_ns: int, /) -> None:
        """Give up waiting for what was not answered before its deadline."""
        for request in [*self.flying.values()]:
            request.overdue(now_ns)

    def contact(self, now_ns: int, *, ok: bool, ttl_ms: int) -> None:
        """Note whether the store answered; an outage of more than ttl/3 is remembered, for it kills nobody."""
        if ok:
            if self.failing and self._silent(now_ns, ttl_ms):
                self.outage_ended_ns = now_ns
            self.answered_ns = now_ns
        self.failing = not ok

    def blames(self, now_ns: int, ttl_ms: int) -> bool:
        """Return whether a takeover may be counted against its run: not in, or within two ttl after, an outage."""
        if self._silent(now_ns, ttl_ms):
            return False
        return self.outage_ended_ns is None or now_ns - self.outage_ended_ns > 2 * ttl_ms * 1_000_000

    def _silent(self, now_ns: int, ttl_ms: int) -> bool:
        return self.failing and now_ns - self.answered_ns > ttl_ms * 1_000_000 // 3
