"""The leader: one process of a fleet watches the due index, wakes the others, and does the repair pass.

It holds the lease on `_leader`, by the same verbs as any run. Nothing is unsafe without one: everybody looks by itself
every 15 s at the latest.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import anyio

from tenure.core import rules, set_back
from tenure.core.run import LEADER_ID, Answer, Create, Repair, Status
from tenure.errors import LeaseHeld, TenureError
from tenure.executing import Reports
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.looks import together
from tenure.repair import repair_pass
from tenure.retention import prune
from tenure.store import Hint

log = logging.getLogger("tenure.leader")

KIND = "_leader"
LOOK_S = 0.25
PASS_S = 60.0
KINDS_S = 15.0
MEASURE_MS = 600_000
JITTER_S = 0.1
WATCHED = 100


class Leader:
    """One process's part in leading: it runs for the lease when the last one seen ends, and leads while it holds it.

    `on_due` is called when runs of this process's own kinds have become due. `kept` is how long settled runs are
    kept, in ms by status; what is not named is kept for good.
    """

    def __init__(
        self,
        ledger: Ledger,
        kinds: Iterable[str],
        reports: Reports,
        on_due: Callable[[], None],
        kept: Mapping[Status, int] | None = None,
    ) -> None:
        self.lease: Lease | None = None
        self.passes = 0
        self._ledger = ledger
        self._own = frozenset(kinds)
        self._reports = reports
        self._on_due = on_due
        self._kept = kept or {}
        self._known: set[str] = set(self._own)
        self._told: dict[str, tuple[int, int]] = {}
        self._scope = anyio.CancelScope()
        self._vacant = anyio.Event()
        self._ends_ns = 0
        self._kinds_ns = self._offset_ms = 0
        self._measured_ms = -(1 << 62)

    @property
    def leading(self) -> bool:
        """Return whether this process leads."""
        return self.lease is not None and self.lease.live

    @property
    def ends_in_s(self) -> float:
        """Return how long the leader's lease as last seen goes on, in seconds."""
        return max(0.0, (self._ends_ns - self._ledger.clock.boot_ns()) / 1e9)

    async def look(self) -> None:
        """Look who leads, and until when by the store's clock."""
        if self.leading:
            return
        store, boot_ms = self._ledger.store, self._ledger.clock.boot_ns() // 1_000_000
        if boot_ms - self._measured_ms > MEASURE_MS:
            self._offset_ms, self._measured_ms = (await store.facts()).now_ms - boot_ms, boot_ms
        run = await store.load(LEADER_ID)
        if run is None or run.status is not Status.RUNNING:
            self._see(0)
        else:
            self._see(min(run.lease_until_ms - boot_ms - self._offset_ms, run.granted_ttl_ms))

    def _see(self, left_ms: int) -> None:
        self._ends_ns = self._ledger.clock.boot_ns() + max(0, left_ms) * 1_000_000
        if left_ms <= 0:
            self._vacant.set()

    def stop(self) -> None:
        """Lead no longer, and run for it no longer."""
        self._scope.cancel()

    async def serve(self) -> None:
        """Run for the lease and lead, until stopped."""
        with self._scope:
            await self._serve()

    async def _serve(self) -> None:
        while True:
            try:
                lease = await self._run_for_it()
            except LeaseHeld as held:
                self._see(held.remaining_ms)
                await self._wait_for_the_end()
                continue
            except TenureError as error:
                log.debug("could not run for leader: %s", error)
                await anyio.sleep(random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
                continue
            await self._lead(lease)

    async def _wait_for_the_end(self) -> None:
        # Looks move the end on while the leader renews: whoever waited for the first one would ask for nothing.
        while self.ends_in_s > 0:
            self._vacant = anyio.Event()
            with anyio.move_on_after(self.ends_in_s + random.uniform(0, JITTER_S)):  # noqa: S311 - not a secret
                await self._vacant.wait()

    async def _run_for_it(self) -> Lease:
        ledger = self._ledger
        run = await ledger.store.load(LEADER_ID)
        if run is None:
            run = (await ledger.store.commit(Create(run=LEADER_ID, kind=KIND, input_digest="", row=None))).run
        elif set_back.out_of_reach(run, (await ledger.store.facts()).now_ms):
            await ledger.store.commit(Repair(run=LEADER_ID))  # no pass of a leader sees to it
        token = run.token if run is not None else 0
        lease = await ledger.claims.claim(ledger.claims.change(LEADER_ID, token=token, blame=False, max_crashes=0))
        self._reports.granted(lease.grant)
        lease.trust.on_regrant = self._reports.granted
        return lease

    async def _lead(self, lease: Lease) -> None:
        log.info("%s leads", self._ledger.owner)
        self.lease = lease
        self._kinds_ns = 0
        self._told = {}
        try:
            async with anyio.create_task_group() as tasks:
                lease.bind(tasks.cancel_scope, tasks)
                # Beside the watch: over many runs a pass takes long, and what becomes due meanwhile is due now.
                tasks.start_soon(self._repair_often, lease)
                if self._kept:
                    tasks.start_soon(self._prune_often, lease)
                while lease.live:
                    await self._turn(lease)
                    await anyio.sleep(LOOK_S)
                tasks.cancel_scope.cancel()
        finally:
            self.lease = None
            if lease.lost is not None:
                log.warning("%s leads no longer: %s", self._ledger.owner, lease.lost)
                self._ledger.claims.drop(lease)
            else:
                with anyio.move_on_after(2, shield=True):
                    await self._ledger.claims.give_back(lease, reason="the leader stops")
                    await self._ledger.store.wake("due")
            self._reports.ended(lease.grant)

    async def _turn(self, lease: Lease) -> None:
        try:
            lease.check()
            await self._watch()
        except TenureError as error:
            log.debug("the leader could not look: %s", error)
            await anyio.sleep(random.uniform(0.2, 0.6))  # noqa: S311 - not a secret

    async def _repair_often(self, lease: Lease) -> None:
        while lease.live:
            begun_ns = self._ledger.clock.boot_ns()
            try:
                done = await repair_pass(self._ledger.store, go_on=lease.check)
            except TenureError as error:
                log.warning("the repair pass is not complete, the next one goes on: %s", error)
            else:
                self.passes += 1
                if done.lost or done.strays or done.stretched or done.late or done.corrupt:
                    log.warning("repair pass: %s", done)
            await anyio.sleep(pause_s((self._ledger.clock.boot_ns() - begun_ns) / 1e9))

    async def _prune_often(self, lease: Lease) -> None:
        while lease.live:
            try:
                deleted = await prune(self._ledger.store, self._kept, go_on=lease.check)
            except TenureError as error:
                log.warning("settled runs are not pruned, the next pass goes on: %s", error)
            else:
                if deleted:
                    log.info("%s settled runs have outlived their time and are deleted", deleted)
            await anyio.sleep(PASS_S)

    async def _watch(self) -> None:
        store = self._ledger.store
        if self._over(self._kinds_ns):
            self._kinds_ns = self._in_s(KINDS_S)
            self._known = {*self._own, *await store.kinds()}
        # One list for each kind that nobody here serves: a hundred due runs of one kind hide no other kind.
        foreign = [(kind,) for kind in self._known - self._own]
        lists = await together(*(partial(store.due, kinds, limit=WATCHED) for kinds in [tuple(self._own), *foreign]))
        hints = [hint for found in lists for hint in found]
        fresh = [hint for hint in hints if self._told.get(hint.run) != (hint.token, hint.due_ms)]
        self._told = {hint.run: (hint.token, hint.due_ms) for hint in hints}
        due = await self._really_due(fresh)
        if any(hint.kind in self._own for hint in due):
            self._on_due()
        if due:
            await store.wake("due")

    async def _really_due(self, hints: list[Hint]) -> list[Hint]:
        # Renewals do not move the index, so an entry may be early: asked to repair it, the store moves it and tells.
        if not hints:
            return []
        answers = await self._ledger.store.commit_many([Repair(run=hint.run) for hint in hints])
        return [
            hint for hint, answer in zip(hints, answers, strict=True) if isinstance(answer, Answer) and is_due(answer)
        ]

    def _over(self, at_ns: int) -> bool:
        return self._ledger.clock.boot_ns() >= at_ns

    def _in_s(self, seconds: float) -> int:
        return self._ledger.clock.boot_ns() + int(seconds * 1e9)


def pause_s(took_s: float, /) -> float:
    """Return how long to wait after a pass, in seconds: one a minute, and a tenth of the time at most.

    A pass reads every open run. Where a million sleep it takes long, and must not be all that the store does.
    """
    return max(1.0, PASS_S - took_s, 9 * took_s)


def is_due(answer: Answer, /) -> bool:
    """Return whether the run of an answer could be claimed at the answer's time."""
    run = answer.run
    due_ms = rules.due_index(run) if run is not None else None
    return due_ms is not None and due_ms <= answer.now_us // 1000
