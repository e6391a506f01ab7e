"""Heartbeats: one function that renews all leases of one ledger, and the thread that hosts it.

It has a store connection and an event loop of its own, so neither a blocked handler nor an exhausted pool stops it; and
it renews only while the ledger's loop has shown life, so a hung worker does not keep its runs.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread

from tenure.clock import Clock
from tenure.core.run import Answer, Renew
from tenure.errors import RowLocked, TenureError
from tenure.pulse import Pulse, Renewed
from tenure.store import Refused, Store

log = logging.getLogger("tenure.heartbeat")


async def beat(store: Store, pulse: Pulse, clock: Clock, *, ttl_ms: int) -> None:
    """Renew all leases once, in one round trip without retry: renewed, lost, history or unknown for each."""
    # A lease past its local deadline is given up, even where the store would still renew it.
    held = [lease for lease in pulse.held() if lease.remaining_ms > 0]
    stalled_ms = (clock.boot_ns() - pulse.seen_ns) // 1_000_000
    if not held:
        return
    if stalled_ms > pulse.max_stall_ms:
        log.error(
            "the event loop was blocked for %d ms: its leases are given up; it stands at\n%s",
            stalled_ms,
            pulse.stood(pulse.seen_ns) or "a place that nothing saw",
        )
        for lease in held:
            lease.stalled(stalled_ms)
        return
    grants = [lease.grant for lease in held]
    before = [(pulse.writes(lease), lease.deadline_ns) for lease in held]
    sent_ns = clock.boot_ns()
    try:
        with anyio.fail_after(min(grant.ttl_ms for grant in grants) / 6000):
            answers = await store.commit_many([Renew(grant=grant) for grant in grants])
    except (TenureError, TimeoutError, OSError) as error:
        pulse.contact(clock.boot_ns(), ok=False, ttl_ms=ttl_ms)
        for lease in held:
            lease.unanswered(error)
        return
    now_ns = clock.boot_ns()
    own = [
        isinstance(answer, RowLocked) and _met_its_own(lease, pulse, *was)
        for lease, answer, was in zip(held, answers, before, strict=True)
    ]
    if not all(own):  # the writes that were met note the contact themselves
        pulse.contact(now_ns, ok=any(isinstance(answer, Answer) for answer in answers), ttl_ms=ttl_ms)
    pulse.lag_ms = (now_ns - sent_ns) // 1_000_000
    told: list[Refused] = []
    for lease, grant, answer, met in zip(held, grants, answers, own, strict=True):
        if met:
            continue
        if not isinstance(answer, Answer):
            lease.unanswered(answer)
        elif (line := lease.answered(grant, answer, sent_ns)) is not None:
            told.append(line)
    # Last, and not for long: the next renewals do not wait for a hint.
    with anyio.move_on_after(ttl_ms / 6000), suppress(TenureError):
        for line in told:
            await store.tell_refused(line)


def _met_its_own(lease: Renewed, pulse: Pulse, wrote: bool, deadline_ns: int) -> bool:  # noqa: FBT001 - as it was
    """Return whether the row was locked by the holder's own write, whose answer tells what there is and renews too.

    One that was answered meanwhile has moved the deadline. One under way may itself wait for a row that somebody else
    holds: by the next renewal that is worth a word, for then no answer has come for more than half the lease.
    """
    if lease.deadline_ns != deadline_ns:
        return True
    return (wrote or pulse.writes(lease)) and lease.remaining_ms * 2 > lease.grant.ttl_ms


class Heart(Protocol):
    """What a ledger needs of the host of its heartbeat."""

    def __init__(self, store: Store, pulse: Pulse, clock: Clock, *, ttl_ms: int, name: str) -> None:
        """Take what `beat` needs; `name` is for people."""
        ...

    def start(self) -> None:
        """Begin to beat."""
        ...

    def hurry(self) -> None:
        """Renew at once, because somebody has ended the grant of a held run."""
        ...

    async def aclose(self) -> None:
        """End the beat; leases that are still held run out by themselves."""
        ...


class Heartbeat:
    """The loop of `beat`, wherever it is hosted: every third of the shortest lease, and at once when it is hurried.

    It looks at the ledger's loop every `tick_s`, to note where a blocked one stands.
    """

    tick_s = 0.25

    def __init__(self, store: Store, pulse: Pulse, clock: Clock, *, ttl_ms: int) -> None:
        self._store = store
        self._pulse = pulse
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._stop = False
        self._bell: tuple[Any, anyio.Event] | None = None
        self._hurried = False

    def hurry(self) -> None:
        """Renew at once; from any thread."""
        self._hurried = True
        self._ring()

    def _ring(self) -> None:
        if (bell := self._bell) is not None:
            soon(bell[0], bell[1].set)

    def stop(self) -> None:
        """End `serve` after the beat that is under way; from any thread."""
        self._stop = True
        self.hurry()

    async def serve(self) -> None:
        """Open the store and beat until stopped; a store that cannot be opened is tried again."""
        while not self._stop:
            try:
                async with AsyncExitStack() as stack:
                    # An opening that hangs keeps no lease either, and its holders have to hear of it in time.
                    with anyio.fail_after(self._ttl_ms / 3000):
                        await stack.enter_async_context(self._store)
                    await self._beats()
            except (TenureError, TimeoutError, OSError) as error:
                # The store could not even be opened: that is an unanswered beat like any other.
                self._pulse.contact(self._clock.boot_ns(), ok=False, ttl_ms=self._ttl_ms)
                for lease in self._pulse.held():
                    lease.unanswered(error)
                await anyio.sleep(min(1.0, self._ttl_ms / 10_000))

    async def _beats(self) -> None:
        beaten_ns = 0
        while True:
            event = anyio.Event()
            self._bell = (native_loop(), event)
            # Asked behind the bell: a stop in between has rung the one before, and this wait may be long.
            if self._stop:
                return
            held = self._pulse.held_or(self._ring)
            now_ns = self._clock.boot_ns()
            self._note_stall(held, now_ns - self._pulse.turned_ns)
            self._pulse.turned_ns = now_ns
            # By the shortest lease as it is now: one that was added since the last renewals may need them sooner.
            every_ns = min((lease.grant.ttl_ms for lease in held), default=self._ttl_ms) * 1_000_000 // 3
            if not held:
                beaten_ns = now_ns
            elif self._hurried or now_ns >= beaten_ns + every_ns:
                self._hurried, beaten_ns = False, now_ns
                await beat(self._store, self._pulse, self._clock, ttl_ms=self._ttl_ms)
            self._pulse.turned_ns = self._clock.boot_ns()
            left_s = max(0.0, (beaten_ns + every_ns - self._pulse.turned_ns) / 1e9)
            with anyio.move_on_after(min(left_s, self.tick_s) if held else self._ttl_ms / 4000):
                await event.wait()

    def _note_stall(self, held: list[Renewed], away_ns: int) -> None:
        # Noted while it lasts: afterwards nobody could say where the loop stood. A heartbeat that was away for as long
        # stood still with it; where the loop is at this moment says nothing then.
        pulse, late_ns = self._pulse, self._ttl_ms * 1e6 / 6
        seen_ns = pulse.seen_ns
        if not held or self._clock.boot_ns() - seen_ns < late_ns or pulse.stack_of_ns == seen_ns:
            return
        if away_ns > self.tick_s * 1e9 + late_ns:
            return
        frame = sys._current_frames().get(pulse.thread_id)  # noqa: SLF001 - the only way to see a blocked thread
        pulse.stack, pulse.stack_of_ns = "".join(traceback.format_stack(frame)) if frame is not None else "", seen_ns


class HeartbeatThread:
    """The host in production: a daemon thread with a loop and a store connection of its own."""

    def __init__(self, store: Store, pulse: Pulse, clock: Clock, *, ttl_ms: int, name: str) -> None:
        self._beats = Heartbeat(store, pulse, clock, ttl_ms=ttl_ms)
        self._thread = threading.Thread(target=self._run, name=f"tenure-heartbeat-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hurry(self) -> None:
        """Renew at once, because somebody has ended the grant of a held run."""
        self._beats.hurry()

    async def aclose(self) -> None:
        """Stop and wait up to 5 s for the thread to end; a cancellation point."""
        self._beats.stop()
        await anyio.to_thread.run_sync(self._thread.join, 5.0)

    def _run(self) -> None:
        try:
            anyio.run(self._beats.serve)
        except Exception:
            log.exception("the heartbeat thread ended; every lease ends at its local deadline")


def native_loop() -> Any:
    """Return what can be told from another thread to run something on this loop."""
    return anyio.lowlevel.current_token().native_token


def soon(loop: Any, call: Callable[[], object]) -> None:
    """Run `call` on another thread's loop without waiting for it; nothing happens when that loop has ended."""
    try:
        if hasattr(loop, "call_soon_threadsafe"):
            loop.call_soon_threadsafe(call)
        else:
            loop.run_sync_soon(call)
    except RuntimeError:
        log.debug("the loop to be told has ended")
