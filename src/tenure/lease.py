"""The lease: the verbs of a holder. Every one of them is a fenced append to the run's journal.

A lost lease cancels the held block by scope and is raised bare outside it, so a tool's broad `except` cannot swallow
it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

import anyio
from anyio.abc import TaskGroup

from tenure import encoding, suspending, transacting
from tenure.codec import to_json_value
from tenure.committer import Committer
from tenure.core import canonical, journal
from tenure.core.run import Facts, Grant, Item, Outcome, Request, Run, Status
from tenure.core.text import share
from tenure.effects import Append, Effects, consumed, due_of
from tenure.errors import CorruptRecord, HistoryLost, LeaseLost, NotAllowed, RunQuarantined
from tenure.following import pages
from tenure.redaction import Redaction
from tenure.store import Store
from tenure.trust import Trust

log = logging.getLogger("tenure.lease")

_HINT_BYTES = 1000
_PAGE = 50


class Lease:
    """The right to write one run, while it lasts; made by `Ledger.hold`.

    `tasks` is a task group that dies with the lease. Every verb is a cancellation point, raises LeaseLost or
    HistoryLost once the grant is gone, and returns when the store has acknowledged the write.
    """

    tasks: TaskGroup

    def __init__(self, store: Store, trust: Trust, committer: Committer, *, redaction: Redaction | None = None) -> None:
        self.trust = trust
        self.redaction = redaction
        self._store = store
        self._committer = committer
        self._scope: anyio.CancelScope | None = None
        self.inbox_read = self._inbox_done = 0
        self._shown = b""
        trust.on_lost = self._fire

    @property
    def run(self) -> Run:
        """Return the record as this holder last knew it."""
        return self._committer.run

    @property
    def state(self) -> journal.State:
        """Return what the run's journal folds to, this holder's own landed commits included."""
        return self._committer.state

    @property
    def grant(self) -> Grant:
        """Return the current grant; it is another one after the store's history changed."""
        return self.trust.grant

    @property
    def token(self) -> int:
        """Return the fencing token, to be given to outside resources that compare it."""
        return self.trust.grant.token

    @property
    def live(self) -> bool:
        """Return whether an effect may start now; False from the moment on at which the lease is being ended."""
        return self.trust.live

    @property
    def over(self) -> bool:
        """Return whether its own holder ended the lease: settled, suspended or handed back."""
        return self.trust.over

    @property
    def lost(self) -> LeaseLost | HistoryLost | None:
        """Return the LeaseLost or HistoryLost that ended the lease, None while it was not lost."""
        return self.trust.error

    @property
    def remaining_ms(self) -> int:
        """Return the milliseconds until the local deadline, at which the held block is cancelled."""
        return self.trust.remaining_ms

    @property
    def last(self) -> Any:
        """Return the value of the last checkpoint, None before the first."""
        return self.state.last

    def check(self) -> None:
        """Raise LeaseLost or HistoryLost unless an effect may start now; call it before each effect."""
        self.trust.check()
        if not self.trust.live:
            message = "the lease is being ended; start nothing after settle, suspend or hand_back"
            raise NotAllowed(message, run=self.run)

    async def events(self, *, after: str | int = 0) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield (address, event) of the run so far, in pages; `after` is an address `seq.index` or a seq."""
        async for found in pages(self._store, self.run.id, after):
            yield found

    async def facts(self) -> Facts:
        """Return what the store knows now; its clock is the one that counts."""
        return await self._store.facts()

    async def blob(self, digest: str, /) -> bytes:
        """Return a blob of the run; CorruptRecord if the store does not have it, or something else under its name."""
        data = await self._store.blob(self.run.id, digest)
        if data is None or canonical.digest(data) != digest:
            message = f"blob {digest[:16]} of run {self.run.id} is not what was written; restore the store"
            raise CorruptRecord(message, run=self.run)
        return data

    async def commit(self, events: Sequence[bytes], /, **effects: Any) -> int:
        """Return the seq of the commit that carries the events (`journal.event`) and effects (`effects.Effects`)."""
        return (await self._append(events, effects)).seq

    async def write(self, events: Sequence[bytes], /, **effects: Any) -> list[journal.Event]:
        """Commit, and return the events as they are stored: what a successor will read, redacted if that is on."""
        return (await self._append(events, effects, shown=True)).stored

    async def _append(self, events: Sequence[bytes], effects: Mapping[str, Any], *, shown: bool = False) -> Append:
        found = Effects(**effects)
        if self.redaction is not None:
            events = [self.redaction.event(data) for data in events]
            found.outcome = self.redaction.outcome(found.outcome)
            self.redaction.names(found.tags or {}, "a tag")
        return await self._committer.append(list(events), found, shown=shown)

    def redacted(self, value: Any, /) -> Any:
        """Return a JSON value as it will be stored, and as whoever wrote it goes on with it."""
        return value if self.redaction is None else self.redaction.value(value)

    async def record(
        self,
        name: str,
        value: Any = None,
        *,
        error: Mapping[str, Any] | None = None,
        scope: str = "",
        guard: str | None = None,
        step: int = 0,
    ) -> None:
        """Record one call's result (or its error) under its name; a successor replays it and calls nothing."""
        content: dict[str, Any] = {"name": name}
        if error is not None:
            content.update(error=dict(error), failures=self.run.failures)
        else:
            content["value"] = to_json_value(value)
        if guard is not None:
            content["guard"] = guard
        await self.commit([encoding.event(journal.RECORD, scope=scope, **content)], step=step)

    async def started(self, names: Sequence[str], *, scope: str = "") -> None:
        """Write that calls are about to be dispatched; without a record later, they are in doubt."""
        await self.commit([journal.event(journal.CALL_STARTED, scope=scope, names=list(names))])

    def transaction(self, name: str = "", value: Any = None, *, scope: str = "") -> AbstractAsyncContextManager[Any]:
        """Give a connection to the store's own database: what the block does lands with its record, or neither does."""
        return transacting.begin(self, self._store, name, value, scope=scope)

    async def checkpoint(self, added: Any, /) -> None:
        """End a step with what it *added*, never the whole state: a run of n steps writes n additions."""
        event = encoding.event(journal.CHECKPOINT, value=to_json_value(added))
        if len(event) > _HINT_BYTES and share(self._shown, event) > 0.9:
            message = "run %s: two checkpoints in a row share 90 %% of their bytes; pass what the step added"
            log.info(message, self.run.id)
        self._shown = event
        await self._append([event], {"step": 1})

    async def inbox(self) -> list[Item]:
        """Return what was posted and not consumed, in order, and remember how far the inbox is read."""
        items = await self._store.inbox(self.run.id, after=self._inbox_done)
        self.inbox_read = items[-1].seq if items else self._inbox_done
        left = [item for item in items if not item.consumed]
        # What was consumed stays so: of a long inbox only what is new is read again.
        self._inbox_done = left[0].seq - 1 if left else self.inbox_read
        return left

    async def consume(
        self, items: Sequence[Item], /, *, closes: Sequence[str] = (), also: Sequence[bytes] = (), step: int = 0
    ) -> list[journal.Event]:
        """Turn items into events of the journal, with what follows from them in `also`, in one commit.

        `closes` are requests that are open no longer. InboxUnread if something was posted since the inbox was read.
        """
        return await self.write(
            [*(consumed(item) for item in items), *also],
            consume=tuple(item.id for item in items),
            closed=tuple(closes),
            inbox_seq=self.inbox_read,
            step=step,
        )

    async def suspend(
        self,
        *,
        until: datetime | float | None = None,
        requests: Mapping[str, Request] | None = None,
        signals: Sequence[str] = (),
        contents: Mapping[str, Any] | None = None,
    ) -> list[Item]:
        """Give the run up until a time (seconds from now, or an instant), a decision or a signal, whichever is first.

        `contents` are what the requests show, by id. A request that expires wakes it too. Returns an empty list when
        the lease is over; the items, with the lease kept, when something that is waited for had arrived already:
        nothing is ever slept over.
        """
        due = due_of(until)
        return await suspending.suspend(self, due=due, requests=requests, signals=signals, contents=contents)

    async def settle(
        self, status: Status | str = "completed", value: Any = None, *, code: str = "", message: str = "", by: str = ""
    ) -> None:
        """End the run: `value` is its result (completed); `code`, `message` and `by` what went wrong, or who asked."""
        if status not in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
            text = f"a run settles completed, failed or cancelled, not {status}; use suspend or hand_back"
            raise NotAllowed(text, run=self.run)
        status = Status(status)
        blobs: tuple[bytes, ...] = ()
        code, message = canonical.plain(code, 200), canonical.plain(str(self.redacted(message)), 1024)
        outcome = Outcome(code=code, message=message, by=canonical.plain(by, 200))
        if status is Status.COMPLETED:
            data = canonical.encode(self.redacted(to_json_value(value)))
            blobs = (data,)
            outcome = Outcome(result=canonical.digest(data))
        end = journal.event(journal.RUN_END, status=status.value, code=code, message=message, result=outcome.result)
        await self.commit([end], status=status, outcome=outcome, blobs=blobs)
        await self.ended("run:" + self.run.id)

    async def hand_back(self, *, after: float = 0, failure: str | None = None) -> None:
        """Put the run back into the queue, due in `after` seconds; `failure` counts one and leaves it as evidence."""
        said = canonical.plain(str(self.redacted(failure or "")), 1024)
        events = [] if failure is None else [journal.event(journal.ATTEMPT_FAILED, message=said)]
        failures = None if failure is None else self.run.failures + 1
        await self.commit(events, status=Status.QUEUED, due=due_of(after), failures=failures)
        await self.ended("due", "run:" + self.run.id)

    async def quarantine(self, reason: str) -> None:
        """Set the run aside because its data cannot be trusted, with the reason as evidence; ends the lease."""
        await self._committer.set_aside(str(self.redacted(reason)))

    async def read_back(self) -> None:
        """Fold the journal in pages; one that does not fit its digests quarantines the run, raising RunQuarantined."""
        base = max(1, self.run.base_seq)
        verifier, last = journal.Verifier(self.run.id, base=base), max(0, base - 2)
        try:
            while page := await self._store.tail(self.run.id, after=last, limit=_PAGE):
                last = max(last + len(page), page[-1].seq)
                for row in page:
                    for event in verifier.add(row):
                        self.state.add(event)
        except CorruptRecord as error:
            what = error.message
        else:
            found = verifier.end(self.run)
            if found.ok:
                return
            what = ", ".join(f"{f.code} at commit {f.seq}" for f in found.findings[:3])
        # If somebody else has written meanwhile, this is refused, and says so.
        await self.quarantine(f"corrupt journal: {what}")
        message = f"the journal of run {self.run.id} does not verify ({what}); it is set aside, restore it or cancel it"
        raise RunQuarantined(message, run=self.run) from CorruptRecord(message)

    async def ended(self, *topics: str) -> None:
        """Stop writing and wake who waits, after the commit that ended the lease."""
        self._committer.close()
        for topic in topics:
            await self._store.wake(topic)

    def close(self) -> None:
        """Stop writing; what was not sent is failed."""
        self._committer.close()

    def _fire(self) -> None:
        self._committer.close()
        if self._scope is not None:
            self._scope.cancel()

    def bind(self, scope: anyio.CancelScope, tasks: TaskGroup) -> None:
        """Name the scope that a loss cancels; one that was lost before is cancelled at once."""
        self._scope = scope
        self.tasks = tasks
        if self.trust.error is not None:
            scope.cancel()
