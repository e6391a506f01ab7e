"""The ledger: submit runs, hold one, look, cancel. One heartbeat serves every lease of a ledger."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import anyio
from anyio.abc import TaskGroup

from tenure.claims import Claims
from tenure.clock import Clock, SystemClock
from tenure.core import build, canonical, ids
from tenure.core.rules import OPEN
from tenure.core.run import NOW, Ask, Change, Create, How, Run, Status
from tenure.effects import due_of, lease_ms, milliseconds, opened, tags_of
from tenure.errors import NotAllowed, RunConflict, RunNotFound, TenureError
from tenure.forking import forked, place_before, retried
from tenure.handle import Handle, KindLike
from tenure.heartbeat import Heart, HeartbeatThread
from tenure.holding import Holding, leave
from tenure.pulse import Pulse
from tenure.redaction import Redaction, redaction_of
from tenure.refusals import error_of
from tenure.retrying import MAX_RESEND_S, resend
from tenure.run_ids import new_run_id
from tenure.store import ALL, Store, Where
from tenure.trust import LeaseChange
from tenure.watching import Watching

log = logging.getLogger("tenure.ledger")

In = TypeVar("In")
Out = TypeVar("Out")


class Ledger:
    """Runs and leases in one store.

    `owner` is a label for people: the default and a given name both get a random instance id, for ownership is by
    nonce. `ttl` and `max_stall` are seconds. `on_change` is called on the loop with what happens to leases. `redact`
    hides secrets in all that is written through it: True for what they usually look like, or a Redaction.
    """

    heart: type[Heart] = HeartbeatThread  # what hosts the heartbeat

    def __init__(
        self,
        store: Store,
        *,
        owner: str | None = None,
        ttl: float = 30,
        max_stall: float | None = None,
        on_change: Callable[[LeaseChange], None] | None = None,
        clock: Clock | None = None,
        code_version: str = "",
        redact: Redaction | bool | None = None,
    ) -> None:
        self.ttl_ms = lease_ms(ttl)
        stall_ms = round((max(30.0, 3 * ttl) if max_stall is None else max_stall) * 1000)
        if stall_ms <= 0:
            message = f"max_stall is a positive number of seconds, not {max_stall}"
            raise NotAllowed(message)
        name = f"{socket.gethostname()}-{os.getpid()}" if owner is None else ids.label(owner, "owner")
        self.owner = f"{name}/{secrets.token_hex(4)}"
        self.store = opened(store)
        self.clock = clock or SystemClock()
        self.code_version = ids.version(code_version)
        self.redaction = redaction_of(redact)
        self.pulse = Pulse(max_stall_ms=stall_ms)
        self._on_change = on_change
        self._tasks: TaskGroup | None = None
        self._heart: Heart | None = None
        self._claims: Claims | None = None

    async def __aenter__(self) -> Self:
        """Start the heartbeat; the store must be open, and stays its opener's."""
        await self.store.raise_ttl(self.ttl_ms)
        self.pulse.begin(self.clock.boot_ns())
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._heart = self.heart(self.store.beside(), self.pulse, self.clock, ttl_ms=self.ttl_ms, name=self.owner)
        self._heart.start()
        self._claims = Claims(self, self._tasks, self._heart, self._on_change)
        self._tasks.start_soon(Watching(self, self._heart).serve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop the heartbeat. Leases that are still held run out by themselves."""
        tasks, heart = self._tasks, self._heart
        if tasks is None or heart is None:
            return False
        tasks.cancel_scope.cancel()
        try:
            raised = await leave(tasks, kind, error, trace)
        finally:
            self._tasks = self._claims = None
            with anyio.CancelScope(shield=True):
                await heart.aclose()
        if raised is not None and raised is not error:
            raise raised
        return False

    @property
    def claims(self) -> Claims:
        """Return the part that claims; for workers and sweeps, who take what is due."""
        if self._claims is None:
            message = "the ledger is not open; use `async with Ledger(store) as ledger:`"
            raise NotAllowed(message)
        return self._claims

    @property
    def blame(self) -> bool:
        """Return whether a takeover may count as a crash: this process had contact with the store throughout."""
        return self.pulse.blames(self.clock.boot_ns(), self.ttl_ms)

    @overload
    async def submit(
        self,
        kind: KindLike[In, Out],
        input: In,
        /,
        *,
        id: str | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        parent: str = "",
    ) -> Handle[Out]: ...

    @overload
    async def submit(
        self,
        kind: str,
        input: Any,
        /,
        *,
        id: str | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        parent: str = "",
    ) -> Handle[Any]: ...

    async def submit(
        self,
        kind: KindLike[Any, Any] | str,
        input: Any,
        /,
        *,
        id: str | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        parent: str = "",
    ) -> Handle[Any]:
        """Queue a run and return its handle; the same id, kind and input again is the same run.

        RunConflict for the same id with another kind or input, InvalidId and InvalidContent for what no store takes.
        `at` is an aware datetime or seconds from now. A lost reply is asked again for up to 30 s.
        """
        name = ids.kind_name(kind if isinstance(kind, str) else getattr(kind, "name", kind))
        run_id = ids.run_id(id) if id is not None else new_run_id(self.clock)
        change = build.create(
            run=run_id,
            kind=name,
            value=input if isinstance(kind, str) else kind.encode_input(input),
            code_version=self.code_version,
            due=due_of(at) or NOW,
            priority=priority,
            tags=tags_of(tags),
            parent=parent,
        )
        await self.ask(change)
        await self.store.wake("due")
        return self.handle(run_id, None if isinstance(kind, str) else kind)

    def handle(self, run_id: str, /, kind: KindLike[Any, Out] | None = None) -> Handle[Out]:
        """Return the handle of a run, without any I/O."""
        return Handle(self.store, ids.run_id(run_id), kind, self.cancel, self.ask)

    def hold(self, run_id: str, /, *, wait: float = 0, ttl: float | None = None) -> Holding:
        """Return an async context that holds the run: `async with ledger.hold(run_id) as lease:`.

        Waits up to `wait` seconds for another holder. RunNotFound (it never creates), LeaseHeld, RunSuspended,
        RunClosed, RunQuarantined say why not. Leaving it without `settle` hands the run back, by an exception with
        one failure more; a lost lease cancels the block and is raised as LeaseLost.
        """
        ttl_ms = self.ttl_ms if ttl is None else lease_ms(ttl)
        return Holding(self.claims, ids.run_id(run_id), wait=wait, ttl_ms=ttl_ms)

    async def load(self, run_id: str, /) -> Run:
        """Return the record of a run; RunNotFound if there is none."""
        return await self.handle(run_id).load()

    async def find(self, where: Where = ALL, /, *, page_size: int = 100) -> AsyncIterator[Run]:
        """Yield runs, newest first, read in pages; a record that cannot be read is logged and passed over."""
        cursor: str | None = None
        while True:
            page = await self.store.find(where, cursor=cursor, limit=page_size)
            for run_id in page.corrupt:
                log.error("the record of run %s cannot be read; see `tenure show %s --raw`", run_id, run_id)
            for run in page.runs:
                yield run
            if page.cursor is None:
                return
            cursor = page.cursor

    async def cancel(
        self, run_id: str, /, *, reason: str = "", by: str | None = None, grace: float | None = None
    ) -> Run:
        """Cancel a run and its children at once, or ask it to end within `grace` seconds; RunClosed if it ended."""
        run_id = ids.run_id(run_id)
        if grace is not None:
            grace_ms = milliseconds(grace, "grace")
            item = f"cancel:{secrets.token_hex(8)}"
            value = {"reason": canonical.plain(reason, 200), "by": canonical.plain(by or "", 200)}
            post = build.post(run=run_id, item=item, name="cancel", ask=Ask.CANCEL, value=value, grace_ms=grace_ms)
            run = await self.ask(post)
        else:
            run = await self.ask(build.end(run=run_id, how=How.CANCEL, reason=reason, by=by or ""))
        await self.store.wake("run:" + run_id)
        await self.store.wake("due")
        await self.cancel_children(run, reason=reason, by=by, grace=grace)
        return run

    async def cancel_children(
        self, parent: Run, /, *, reason: str = "", by: str | None = None, grace: float | None = None
    ) -> None:
        """Cancel what a run has submitted since it was made (a clock may be set back) and is open, unless it ends."""
        where = Where(parent=parent.id, status=(*OPEN, Status.QUARANTINED), created_from_ms=parent.created_ms - 60_000)
        async for child in self.find(where):
            try:
                await self.cancel(child.id, reason=reason or f"parent {parent.id} was cancelled", by=by, grace=grace)
            except TenureError as error:
                log.info("child %s of %s was not cancelled: %s", child.id, parent.id, error)

    async def evict(self, run_id: str, /, *, reason: str = "", by: str | None = None) -> Run:
        """End a live lease and queue the run; its holder is refused from then on."""
        return await self._end_seen(run_id, How.EVICT, reason, by)

    async def release(self, run_id: str, /, *, reason: str = "", by: str | None = None) -> Run:
        """Queue a quarantined run again, with its crashes forgotten."""
        return await self._end_seen(run_id, How.RELEASE, reason, by)

    async def _end_seen(self, run_id: str, how: How, reason: str, by: str | None) -> Run:
        seen = await self.load(run_id)
        run = await self.ask(build.end(run=seen.id, how=how, token=seen.token, reason=reason, by=by or ""))
        await self.store.wake("run:" + seen.id)
        await self.store.wake("due")
        return run

    async def retry(self, run_id: str, /, *, step: int | None = None) -> Handle[Any]:
        """Submit an ended run again as `{id}-retry`, and return its handle; again, the same run.

        From its input, or with `step` from there: what stands before that step is kept, and the id is
        `{id}-retry-{step}`. RunConflict for a run that is still open.
        """
        run = await self.load(run_id)
        if run.status in OPEN:
            message = f"run {run.id} is {run.status.value} and goes on by itself; wait for it, or cancel it first"
            raise RunConflict(message, run=run)
        if step is not None:
            return await self.fork(run.id, at=place_before(run, step), id=f"{run.id}-retry-{step}")
        return await self._begin(await retried(self.store, run, code_version=self.code_version))

    async def fork(self, run_id: str, /, *, at: int | str, id: str | None = None) -> Handle[Any]:
        """Submit a run of the same kind that begins where `run_id` stood, and return its handle.

        `at` is a number of steps, or the address of a commit's last event. The state is restated in the new run and
        nothing is shared. With an `id`, the same again is the same run.
        """
        run = await self.load(run_id)
        new_id = ids.run_id(id) if id is not None else new_run_id(self.clock)
        return await self._begin(await forked(self.store, run, at, id=new_id, code_version=self.code_version))

    async def _begin(self, change: Create) -> Handle[Any]:
        await self.ask(change)
        await self.store.wake("due")
        return self.handle(change.run)

    async def ask(self, change: Change, /) -> Run:
        """Return the run after a change that needs no grant; a refusal is raised, a lost reply asked again for 30 s."""
        if self.redaction is not None:
            change = self.redaction.change(change)
        answer = await resend(self.clock, self.store.commit, change, within_s=MAX_RESEND_S)
        if not answer.ok:
            raise error_of(answer, change.run, kind=change.kind if isinstance(change, Create) else "")
        if answer.run is None:
            raise RunNotFound(f"run {change.run} is gone; it was deleted, submit it anew", run_id=change.run)
        return answer.run
