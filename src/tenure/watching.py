"""Watching over the leases of one ledger: their local deadlines, and what is done to their runs from outside."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from tenure.core import rules
from tenure.core.run import Status
from tenure.errors import TenureError
from tenure.heartbeat import Heart
from tenure.trust import Trust

if TYPE_CHECKING:
    from tenure.ledger import Ledger

log = logging.getLogger("tenure.ledger")


class Watching:
    """Two loops beside the holders of one ledger."""

    def __init__(self, ledger: Ledger, heart: Heart) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._clock = ledger.clock
        self._pulse = ledger.pulse
        self._heart = heart

    async def serve(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.watch)
            tasks.start_soon(self.listen)

    async def watch(self) -> None:
        """Show the heartbeat that this loop lives, and end each lease, and what it asks, at its local deadline."""
        while True:
            entered, before_ns = self._pulse.news(), self._clock.boot_ns()
            self._pulse.seen_ns = before_ns
            for trust in self._pulse.held():
                if isinstance(trust, Trust) and trust.remaining_ms <= 0 and not trust.ending:
                    trust.expire()
            self._pulse.cut(before_ns)
            if (period_s := self._until_next_s()) is None:
                with anyio.move_on_after(self._ledger.ttl_ms / 4000):
                    await entered.wait()
                continue
            await self._clock.sleep(period_s)
            self._tell_late(before_ns, (self._clock.boot_ns() - before_ns) / 1e9 - period_s)

    def _until_next_s(self) -> float | None:
        """Return when to look again: at the next local deadline, or soon enough to show a stall; None: nothing held."""
        held = self._pulse.held()
        if not held and not self._pulse.flying:
            return None
        # One that is lost stays until its holder has stopped, and has no deadline any more.
        left_ms = min((left for trust in held if (left := trust.remaining_ms) > 0), default=250)
        return min(0.25, self._shortest_ms() / 12_000, max(5, left_ms) / 1000)

    def _shortest_ms(self) -> int:
        return min((trust.grant.ttl_ms for trust in self._pulse.held()), default=self._ledger.ttl_ms)

    def _tell_late(self, before_ns: int, late_s: float) -> None:
        held = self._pulse.held()
        if not held or late_s * 1000 <= self._shortest_ms() / 3:
            return
        self._pulse.late_renewals += 1
        runs = ", ".join(trust.grant.run for trust in held)
        if stack := self._pulse.stood(before_ns):
            log.warning(
                "the event loop was blocked for %.1f s; runs %s; move blocking work to a thread; it stood at\n%s",
                late_s,
                runs,
                stack,
            )
        else:
            log.warning(
                "the event loop stood still for %.1f s and nothing saw where; runs %s; most likely the whole process"
                " did: stopped, short of processor time, or its machine suspended",
                late_s,
                runs,
            )

    async def listen(self) -> None:
        """Look at the held runs when somebody says that one was changed from outside: its holder learns it now."""
        posted: dict[str, tuple[int, int | None]] = {}
        while True:
            entered = self._pulse.news()
            held = [t for t in self._pulse.held() if isinstance(t, Trust) and not t.grant.run.startswith("_")]
            posted = {t.grant.run: posted.get(t.grant.run, (0, None)) for t in held}
            topics = ["run:" + trust.grant.run for trust in held]
            if not topics:
                await entered.wait()
                continue
            try:
                if not await self._store.woken(topics, timeout=0.5):
                    continue
                for trust in held:
                    if trust.over:
                        continue
                    # A wake may be for nothing (on SQLite any write to the file is one), and a renewal is a write that
                    # wakes others. So it is looked first, and renewed only to be told of what ended the grant.
                    run = await self._store.load(trust.grant.run)
                    if run is None or not rules.holds(run, trust.grant) or run.status is not Status.RUNNING:
                        # The answer to its own end tells a holder what became of the lease.
                        if not trust.ending and not trust.over:
                            self._heart.hurry()
                    elif posted[run.id] != (said := (run.inbox_seq, run.cancel_by_ms)):
                        posted[run.id] = said
                        trust.tell()
            except TenureError:
                await anyio.sleep(0.5)
