"""The steps of one call: which keys are taken, what is replayed, what is recorded, and when a drain cuts the call.

Identity of a step is its key alone, never the order. A recorded step returns what is recorded and calls nothing; a
value goes through the codec and back on the first run too, so its type is the same then as on replay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio

from tenure.calling import cancelled_from_outside
from tenure.codec import from_json_value, round_trip
from tenure.core import canonical, ids
from tenure.core.journal import Event
from tenure.errors import CancelRequested, NotAllowed, ReplayDrift, StepFailed, said
from tenure.lease import Lease
from tenure.retry import Retry, of_the_attempt

EFFECTS = ("repeat", "reconcile", "ask", "fail")
DETAIL = 1024
NAME = 200

_inside: ContextVar[tuple[Steps, list[str]] | None] = ContextVar("tenure_inside_step", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One step as asked for: `made` calls the function once, `guard` is the digest of the guard value."""

    key: str
    made: Callable[[], Awaitable[Any]]
    retry: Retry
    effect: str
    type_: Any
    guard: str | None

    @property
    def name(self) -> str:
        """Return the name of the step's record."""
        return f"step:{self.key}"


class Steps:
    """The steps of one call of a handler; `scope` is the call, which a drain cuts between steps.

    `draining` starts no step any more; `one_more` begins to drain when a step has landed since the run's
    last crash.
    """

    def __init__(self, lease: Lease) -> None:
        self.scope = anyio.CancelScope()
        self.draining = False
        self.one_more = False
        self.cancel_asked = False
        self.cancel_told = False
        self._lease = lease
        self._run_id = lease.run.id
        self._used: set[str] = set()
        self._in_hand = 0
        self._parked = 0

    @asynccontextmanager
    async def gate(self, what: str) -> AsyncIterator[None]:
        """Hold what a drain waits for: entered only while something may start, else CancelRequested or LeaseLost."""
        await self._may_start(what)
        with self._holding(what):
            yield

    def use(self, what: str, key: str) -> None:
        """Take a key for this call; NotAllowed if it is taken."""
        if f"{what}:{key}" in self._used:
            message = f"key {key!r} is used twice in one call of run {self._run_id}; put what differs into the key"
            raise NotAllowed(message, run_id=self._run_id)
        self._used.add(f"{what}:{key}")

    def begin(self, key: str, effect: str) -> None:
        """Take a step's key; NotAllowed inside another step, and for an effect that is none."""
        within = _inside.get()
        if within is not None and within[0] is self and within[1]:
            message = f"step {key!r} is inside step {within[1][0]!r}; a step holds no steps, put them side by side"
            raise NotAllowed(message, run_id=self._run_id)
        if effect not in EFFECTS:
            message = f"effect {effect!r} of step {key!r} is none of {', '.join(EFFECTS)}; choose one"
            raise NotAllowed(message, run_id=self._run_id)
        self.use("step", ids.label(key, "step key"))
        if self._lease.redaction is not None:
            self._lease.redaction.name(key, "a step key")

    async def result(self, call: Call) -> Any:
        """Return what is recorded for the step, or make its call and record it."""
        state = self._lease.state
        found = state.records.get(("", call.name))
        if found is not None and not self._void(found):
            return self._replayed(call, found)
        await self._may_start(call.key)
        with self._holding(call.key):
            if call.effect != "repeat":
                await self._announce(call, in_doubt=("", call.name) in state.started)
            return await self._recorded(call)

    def _void(self, found: Event) -> bool:
        # The handler failed after this failure was recorded, and is called anew: the step gets its chance as well.
        return "error" in found and int(found.get("failures", 0)) < self._lease.run.failures

    def _replayed(self, call: Call, found: Event) -> Any:
        recorded = found.get("guard")
        if call.guard is not None and recorded is not None and recorded != call.guard:
            message = (
                f"step {call.key!r} of run {self._run_id} was recorded under another guard value; "
                "keep what it depends on, or give the changed step a new key"
            )
            raise ReplayDrift(message, key=call.key, run_id=self._run_id)
        if (error := found.get("error")) is not None:
            raise self._failed(call.key, str(error.get("type")), str(error.get("message")))
        return from_json_value(found.get("value"), call.type_)

    async def _may_start(self, key: str) -> None:
        if self.draining:
            await self._park()
        self._lease.check()
        if self.cancel_asked and not self.cancel_told:
            self.cancel_told = True
            message = f"run {self._run_id} was asked to end before step {key!r}; clean up, further steps are recorded"
            raise CancelRequested(message, run_id=self._run_id)

    async def _park(self) -> NoReturn:
        # The steps in hand end first: whichever is the last of them cuts the call.
        self._parked += 1
        if not self._in_hand:
            self.scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError  # pragma: no cover - nothing wakes it but cancellation

    @contextmanager
    def _holding(self, key: str) -> Iterator[None]:
        # A list, emptied at the end: a task that the step started and left behind is not inside it any more.
        inside = [key]
        token = _inside.set((self, inside))
        self._in_hand += 1
        try:
            yield
        finally:
            _inside.reset(token)
            inside.clear()
            self._in_hand -= 1
            if self.one_more and not self._lease.run.crashes:
                self.draining = True
            if self._parked and not self._in_hand:
                self.scope.cancel()

    async def _announce(self, call: Call, *, in_doubt: bool) -> None:
        if in_doubt:
            # Not recorded: somebody who knows how the call ended may still say so.
            detail = "the call was started by an earlier holder and its outcome is unknown"
            raise self._failed(call.key, "InDoubt", detail)
        await self._lease.started([call.name])

    async def _recorded(self, call: Call) -> Any:
        lease = self._lease
        try:
            value = await call.retry.call(call.made)
        except Exception as error:
            if isinstance(error, NotAllowed):
                raise
            if (found := of_the_attempt(error, self._run_id)) is not None:
                raise found from None
            raise await self._recorded_failure(call, type(error).__name__, said(error)) from error
        except anyio.get_cancelled_exc_class():
            if cancelled_from_outside():
                raise
            raise await self._recorded_failure(call, "Cancelled", "the step cancelled itself") from None
        plain, found = round_trip(value, call.type_, limit=canonical.MAX_EVENT_BYTES, stored=lease.redacted)
        await lease.record(call.name, plain, guard=call.guard, step=1)
        return found

    async def _recorded_failure(self, call: Call, type_name: str, detail: str) -> StepFailed:
        type_name, detail = type_name[:NAME], str(self._lease.redacted(detail[:DETAIL]))
        error = {"type": type_name, "message": detail}
        await self._lease.record(call.name, error=error, guard=call.guard, step=1)
        return self._failed(call.key, type_name, detail)

    def _failed(self, key: str, type_name: str, detail: str) -> StepFailed:
        message = (
            f"step {key!r} of run {self._run_id} failed with {type_name}: {detail}; "
            "catch StepFailed, or fix it and retry the run"
        )
        return StepFailed(message, key=key, type_name=type_name, detail=detail, run_id=self._run_id)
