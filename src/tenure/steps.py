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
import anyio.lowlevel

from tenure.calling import cancelled_from_outside
from tenure.codec import fits, from_json_value, round_trip
from tenure.core import canonical, ids, journal
from tenure.core.approvals import RESOLVE, content_digest, resolution
from tenure.core.journal import Event
from tenure.core.run import Ask, Request
from tenure.effects import InboxUnread
from tenure.errors import CancelRequested, InvalidContent, NotAllowed, ReplayDrift, RunSuspended, StepFailed, said
from tenure.heartbeat import native_loop, soon
from tenure.lease import Lease
from tenure.retry import Retry, of_the_attempt
from tenure.suspending import Wait

EFFECTS = ("repeat", "reconcile", "ask", "fail")
QUIET_TURNS = 8
"""Turns of the loop in which nothing may begin before a call that only waits is cut: tasks that were started side by
side come to what they wait for, too."""
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
    last crash. A call that only waits is cut, and `cut_for` says for what.
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
        self.turn = anyio.Lock()  # who reads the inbox consumes what it found, before another one reads
        self._loop = native_loop()
        self.cut_for: tuple[Wait, ...] = ()
        self._waits: list[Wait] = []
        self._in_hand = 0
        self._parked = 0
        self._calm = anyio.Event()

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

    def outside(self, what: str, key: str) -> None:
        """Raise NotAllowed inside a step."""
        within = _inside.get()
        if within is not None and within[0] is self and within[1]:
            message = f"{what} {key!r} is inside step {within[1][0]!r}; a step holds no steps, put them side by side"
            raise NotAllowed(message, run_id=self._run_id)

    def begin(self, key: str, effect: str, fn: object) -> None:
        """Take a step's key; NotAllowed inside another step, and for an effect or a function that is none."""
        self.outside("step", key)
        if effect not in EFFECTS:
            message = f"effect {effect!r} of step {key!r} is none of {', '.join(EFFECTS)}; choose one"
            raise NotAllowed(message, run_id=self._run_id)
        if not callable(fn):
            message = f"step {key!r} is given no function to call; give it one, and then its arguments"
            raise NotAllowed(message, run_id=self._run_id)
        self.use("step", ids.label(key, "step key"))
        if self._lease.redaction is not None:
            self._lease.redaction.name(key, "a step key")

    async def result(self, call: Call) -> Any:
        """Return what is recorded for the step, or make its call and record it."""
        state = self._lease.state
        found = state.records.get(("", call.name))
        if found is not None and not self.void(found):
            return self._replayed(call, found)
        await self._may_start(call.key)
        in_doubt = ("", call.name) in state.started
        if in_doubt and call.effect == "ask" and await self._resolved(call):
            return self._replayed(call, state.records["", call.name])
        with self._holding(call.key):
            if call.effect != "repeat":
                await self._announce(call, in_doubt=in_doubt and call.effect != "ask")
            return await self._recorded(call)

    def void(self, found: Event) -> bool:
        """Return whether a recorded failure does not count any more."""
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
        return from_json_value(found.get("value"), call.type_, what=f"the recorded result of step {call.key!r}")

    async def _may_start(self, key: str) -> None:
        if self.cut_for:
            # The handler's own clean-up: it runs whenever the run waits, so what it does is no step.
            await anyio.lowlevel.checkpoint()
            raise self._suspended(f"step {key!r}")
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
            self._cut()
        await anyio.sleep_forever()
        raise AssertionError  # pragma: no cover - nothing wakes it but cancellation

    def _suspended(self, what: str) -> RunSuspended:
        message = f"run {self._run_id} is being suspended at {what}; let the call end, it is made again"
        return RunSuspended(message, run=self._lease.run)

    def _cut(self) -> None:
        # From the loop and not from here: who cancels is passed over at first, and a coroutine that a thread awaits is
        # not reached any more when its thread's own wait has been cut.
        soon(self._loop, self.scope.cancel)

    def may_wait(self, what: str, key: str) -> None:
        """Raise LeaseLost, or CancelRequested, where nothing is waited for any more; NotAllowed inside a step."""
        self.outside(what, key)
        self._lease.check()
        if self.cancel_asked:
            self.cancel_told = True
            message = f"run {self._run_id} was asked to end and waits for nothing any more ({key!r}); clean up, return"
            raise CancelRequested(message, run_id=self._run_id)

    async def wait(self, wait: Wait) -> NoReturn:
        """Wait with the run suspended: the call is cut when the steps in hand have ended and nothing else begins."""
        self._waits.append(wait)
        try:
            while True:
                self._calm = calm = anyio.Event() if self._calm.is_set() else self._calm
                for _ in range(QUIET_TURNS):
                    if self._in_hand:
                        break
                    await anyio.lowlevel.checkpoint()
                else:
                    if not self._parked:  # else it is a drain that cuts, and the next call waits for this, too
                        self.cut_for = tuple(self._waits)
                    self._cut()
                    # On trio a coroutine that a thread awaits is in no scope of the handler's: it has to be told.
                    with anyio.move_on_after(0.05):
                        await anyio.sleep_forever()
                    raise self._suspended("a wait")
                await calm.wait()
        finally:
            self._waits.remove(wait)

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
            if not self._in_hand:
                self._calm.set()
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

    async def _resolved(self, call: Call) -> bool:
        """Ask a person how a call in doubt ended; return whether that is recorded, False if it is to be made again."""
        lease, content = self._lease, {"boundary": "doubt", "name": call.name, "guard": call.guard}
        while True:
            async with self.turn:
                request = lease.state.asked.latest(RESOLVE, call.name)
                asked = lease.run.requests.get(request)
                said = [item for item in await lease.inbox() if item.name == request and item.ask is not Ask.SIGNAL]
                if asked is None or not said:
                    break
                how, value = resolution(said)
                also: list[bytes] = []
                if how == "result" and fits(value, call.type_):
                    also = [journal.event(journal.RECORD, name=call.name, value=value)]
                elif how == "fail":
                    error = {"type": "OutcomeUnknown", "message": "nobody knows how the call ended; it was given up"}
                    also = [journal.event(journal.RECORD, name=call.name, error=error, failures=lease.run.failures)]
                try:
                    await lease.consume(said, closes=[request], also=also, step=len(also))
                except InboxUnread:
                    continue
            if also:
                return True
            if how == "repeat":
                return False
        request = request if asked is not None else lease.state.asked.following(RESOLVE, call.name)
        asked = Request(digest=content_digest(content))
        await self.wait(Wait(requests={request: asked}, contents={request: content}))
        raise AssertionError  # pragma: no cover - nothing ends it but cancellation

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
        try:
            plain, found = round_trip(value, call.type_, limit=canonical.MAX_EVENT_BYTES, stored=lease.redacted)
        except InvalidContent as error:
            raise error.of(f"the result of step {call.key!r}") from error.__cause__
        await lease.record(call.name, plain, guard=call.guard, step=1)
        return found

    async def _recorded_failure(self, call: Call, type_name: str, detail: str) -> StepFailed:
        type_name, detail = type_name[:NAME], str(self._lease.redacted(detail))[:DETAIL]
        error = {"type": type_name, "message": detail}
        await self._lease.record(call.name, error=error, guard=call.guard, step=1)
        return self._failed(call.key, type_name, detail)

    def _failed(self, key: str, type_name: str, detail: str) -> StepFailed:
        message = (
            f"step {key!r} of run {self._run_id} failed with {type_name}: {detail}; "
            "catch StepFailed, or fix it and retry the run"
        )
        return StepFailed(message, key=key, type_name=type_name, detail=detail, run_id=self._run_id)
