"""One process of a fleet: it looks for runs that are due, claims what it has slots for, and executes them.

Woken by the store, by the leader, and by its own runs that end; on its own it looks every 15 s at the latest.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import anyio
from anyio.abc import TaskGroup

from tenure.app import App
from tenure.core.run import Status
from tenure.errors import NotAllowed, TenureError
from tenure.executing import NoReports, Reports
from tenure.holding import leave
from tenure.leader import Leader
from tenure.ledger import Ledger
from tenure.looks import Found, Looks, together
from tenure.retention import retention as kept_for
from tenure.slots import CUT_S, Slots
from tenure.store import Store

log = logging.getLogger("tenure.worker")

DRAIN_S = 25.0
LOOK_AT_LEAST_S = (13.0, 15.0)
JITTER_S = 0.1
SPARE_FOR_S = 4.0


class Worker:
    """Executes an app's runs in this process: `await worker.run()`, or `async with Worker(app, store):` beside others.

    Given a store, it opens a ledger of its own with `ttl`; the store is opened by its owner. `concurrency` runs at a
    time, of `kinds` only where named. While this process leads, settled runs are deleted once `retention` (seconds by
    status) is over. `drain` (seconds) is what a step in hand is given when the worker stops. With
    `last_resort="exit"` the process ends when a run goes on in code that nothing stops, though its lease is over.
    """

    def __init__(
        self,
        app: App,
        store: Store | Ledger,
        /,
        *,
        concurrency: int = 10,
        kinds: Iterable[str] | None = None,
        drain: float = DRAIN_S,
        ttl: float = 30,
        name: str | None = None,
        code_versions: Iterable[str] | None = None,
        reports: Reports | None = None,
        spare: bool = False,
        last_resort: Literal["log", "exit"] = "log",
        retention: Mapping[Status | str, float | timedelta] | None = None,
    ) -> None:
        if concurrency < 1 or drain < 0:
            message = f"a worker has at least one slot and a drain of at least 0 s, not {concurrency} and {drain}"
            raise NotAllowed(message)
        self.app = app
        self.kinds = app.served(kinds)
        if not self.kinds:
            message = "the app has no kind, so there is nothing to do; register one with @app.kind"
            raise NotAllowed(message)
        if app.redaction is not None and isinstance(store, Ledger) and store.redaction is None:
            message = "the app redacts and the ledger it was given does not; pass redact= to the Ledger, or a store"
            raise NotAllowed(message)
        self.concurrency = concurrency
        self.looks, self.reachable = 0, False
        self._given = store
        self._ttl, self._name = ttl, name
        self._grace = drain
        self._versions = tuple(code_versions) if code_versions is not None else app.accepted
        self._reports: Reports = reports or NoReports()
        self._supervised = reports is not None
        self._wanted: dict[str, int] | None = {} if spare else None
        self._last_resort = last_resort
        self._kept = kept_for(retention)
        self._over = threading.Event()
        self._bell, self._ended = anyio.Event(), anyio.Event()
        self.draining = False
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._scopes: set[anyio.CancelScope] = set()

    async def __aenter__(self) -> Self:
        """Open the ledger and the app's lifespan, and begin to look."""
        if self._tasks is not None:
            message = "this worker was started before; make a new one"
            raise NotAllowed(message)
        await self._stack.__aenter__()
        try:
            if isinstance(self._given, Ledger):
                self.ledger = self._given
                # What this worker claims and writes is of the app's version, whoever opened the ledger.
                self.ledger.code_version = self.ledger.code_version or self.app.version
            else:
                version, redact = self.app.version, self.app.redaction
                opened = Ledger(self._given, owner=self._name, ttl=self._ttl, code_version=version, redact=redact)
                self.ledger = await self._stack.enter_async_context(opened)
            deps = await self._stack.enter_async_context(self.app.running())
            self._looking = Looks(self.ledger, self.kinds, code_versions=self._versions)
            self.leader = Leader(self.ledger, self.kinds, self._reports, self.wake, self._kept)
            self._tasks = await anyio.create_task_group().__aenter__()
            self.slots = Slots(
                self.app,
                self.ledger,
                self._reports,
                kinds=self.kinds,
                count=self.concurrency,
                patient=self._supervised,
                deps=deps,
                spawn=self._spawn,
                wake=self.wake,
            )
        except BaseException:
            await self._stack.aclose()
            raise
        for loop in (self._look_often, self._listen, self.slots.watch_overdue):
            self._spawn(loop)
        if self._wanted is None:
            self._spawn(self.leader.serve)
        if self._last_resort == "exit":
            watch = self.slots.exit_when_overdue
            threading.Thread(target=watch, args=(self._over,), name="tenure-last-resort", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Drain and close; when the block was cancelled or raised, steps in hand are cut at once."""
        with anyio.CancelScope(shield=True):
            await self.drain(grace=None if error is None else 0)
        try:
            raised = await leave(self._tasks_of(), kind, error, trace)
        finally:
            self._over.set()
            await self._stack.aclose()
        if raised is not None and raised is not error:
            raise raised
        return False

    async def run(self) -> None:
        """Work until drained."""
        async with self:
            await self.ended()

    async def ended(self) -> None:
        """Wait until the worker has drained."""
        await self._ended.wait()

    @property
    def ready(self) -> bool:
        """Return whether the store answered the last look and the worker takes runs."""
        return self.reachable and self.looks > 0 and not self.draining

    def wake(self) -> None:
        """Look for runs at once."""
        self._bell.set()

    def want(self, run_id: str, token: int, /) -> None:
        """Take in a run that needs an empty process; only a spare worker is told."""
        if self._wanted is not None:
            self._wanted[run_id] = token
            self.wake()

    async def drain(self, *, grace: float | None = None) -> None:
        """Take no more runs, let steps in hand end for `grace` seconds, hand all runs back and stop.

        Asked again with less grace, the wait that goes on is shortened. After the grace, steps are cut.
        """
        until = anyio.current_time() + (self._grace if grace is None else grace)
        limit = self.slots.limit
        if not self.draining:
            self.draining = True
            limit.deadline = until
            self._tasks_of().start_soon(self._finish)
        limit.deadline = min(limit.deadline, until)
        await self._ended.wait()

    async def _finish(self) -> None:
        log.info("%s drains with %d run(s) in hand", self.ledger.owner, len(self.slots.executions))
        self.leader.stop()
        self.wake()
        try:
            await self.slots.drain()
        finally:
            for scope in list(self._scopes):
                scope.cancel()
            try:
                # The look or the leader may have had a claim on its way: what it was granted is given back, too.
                with anyio.move_on_after(CUT_S):
                    await self.ledger.claims.quiet()
                    await self.slots.leave()
            finally:
                # Where a task of the worker has failed, this one is cancelled, and who leaves waits for it shielded.
                self._ended.set()

    async def _listen(self) -> None:
        while True:
            try:
                if await self.ledger.store.woken(["due"], timeout=LOOK_AT_LEAST_S[1]):
                    self.wake()
            except TenureError:
                await anyio.sleep(1)

    async def _look_often(self) -> None:
        await anyio.sleep(random.uniform(0, JITTER_S))  # noqa: S311 - not a secret
        pause_s = 0.25
        while not self.draining:
            self._bell = anyio.Event()
            try:
                again = await (self._look() if self._wanted is None else self._take_wanted())
                if pause_s > 0.25:
                    log.warning("the store can be looked at again")
                self.reachable, pause_s, self.looks = True, 0.25, self.looks + 1
            except TenureError as error:
                if self.reachable:
                    log.warning("the store cannot be looked at: %s", error)
                self.reachable, pause_s = False, min(2.0, pause_s * 2)
                await anyio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - not a secret
                continue
            if again:  # a little apart from those that were woken with this one
                await anyio.sleep(random.uniform(0, 0.02))  # noqa: S311 - not a secret
                continue
            with anyio.move_on_after(self._pause_s()):
                await self._bell.wait()

    def _pause_s(self) -> float:
        pause_s = random.uniform(*LOOK_AT_LEAST_S)  # noqa: S311 - not a secret
        if self._wanted is not None:
            return SPARE_FOR_S / 4
        if self.leader.leading:
            return pause_s
        return max(0.01, min(pause_s, self.leader.ends_in_s + random.uniform(0, JITTER_S)))  # noqa: S311 - not a secret

    async def _look(self) -> bool:
        """Look once; return whether to look again at once."""
        slots, found = self.slots, Found()

        async def look() -> None:
            nonlocal found
            if slots.crowded and not slots.executions:
                found = await self._looking.take_one(slots.crowded)
            else:
                found = await self._looking.look(slots.free, empty=not slots.executions)
            # Started here and not below: whatever the other requests come to, a lease is not left lying.
            for lease in found.leases:
                slots.start(lease)
            slots.note_crowded(found.crowded)

        await together(self.leader.look, slots.beat, *([look] if slots.free > 0 else []))
        await self._looking.tidy()
        return found.again and slots.free > 0

    async def _take_wanted(self) -> bool:
        """Take the next of the runs that this spare worker was started for; stop when none is left."""
        wanted = self._wanted or {}
        if self.slots.executions:
            if wanted:
                self.slots.pass_on()
            return False
        while wanted:
            run_id, token = next(iter(wanted.items()))
            lease = await self._looking.take(run_id, token)
            wanted.pop(run_id, None)
            if lease is not None:
                self.slots.start(lease)
                return False
        now_ns = self.ledger.clock.boot_ns()
        if now_ns - self.slots.emptied_ns > SPARE_FOR_S * 1e9:
            self._tasks_of().start_soon(self.drain)
        return False

    def _spawn(self, loop: Callable[..., Awaitable[None]], *args: Any) -> None:
        # A scope for each task: ending the task group itself would cancel the block of who entered the worker.
        async def scoped() -> None:
            with anyio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    await loop(*args)
                finally:
                    self._scopes.discard(scope)

        self._tasks_of().start_soon(scoped)

    def _tasks_of(self) -> TaskGroup:
        if self._tasks is None:
            message = "the worker is not started; use `async with worker:`"
            raise NotAllowed(message)
        return self._tasks
