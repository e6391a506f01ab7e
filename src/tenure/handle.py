"""The handle: what anybody may know and ask of a run without a lease."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

import anyio

from tenure import approving
from tenure.approving import OpenRequest
from tenure.core import canonical
from tenure.core.approvals import Decision
from tenure.core.run import Run, Status
from tenure.core.verify import Verification
from tenure.errors import CorruptRecord, RunCancelled, RunFailed, StoreUnavailable
from tenure.following import followed, rows_after
from tenure.refusals import by_status, not_found
from tenure.retrying import UNANSWERED
from tenure.store import Store
from tenure.verifying import verified

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

INPUT_INVALID = "INPUT_INVALID"
"""The failure of a run whose input its handler does not take."""

TERMINAL = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.QUARANTINED)


class KindLike(Protocol[In_contra, Out_co]):
    """A registered kind: how its input becomes JSON, and its result becomes a value again."""

    @property
    def name(self) -> str:
        """Return the kind's name."""
        ...

    def encode_input(self, value: In_contra, /) -> Any:
        """Return the JSON value of an input; InvalidContent if it has none."""
        ...

    def decode_result(self, value: Any, /) -> Out_co:
        """Return the typed result of its JSON value."""
        ...


class Handle(Generic[Out]):
    """One run, by id; makes no I/O until it is asked something. Cancelling a wait never touches the run."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        kind: KindLike[Any, Out] | None,
        cancel: Callable[..., Awaitable[Run]],
        ask: approving.Asking,
    ) -> None:
        self.id = run_id
        self._store = store
        self._kind = kind
        self._cancel = cancel
        self._ask = ask

    async def load(self) -> Run:
        """Return the record; RunNotFound if there is none."""
        run = await self._store.load(self.id)
        if run is None:
            raise not_found(self.id)
        return run

    async def cancel(self, *, reason: str = "", by: str | None = None, grace: float | None = None) -> Run:
        """Cancel the run; with `grace` seconds it is asked first."""
        return await self._cancel(self.id, reason=reason, by=by, grace=grace)

    async def requests(self) -> list[OpenRequest]:
        """Return what the run asks people, in the order in which it was asked; `before` shows what it asked before."""
        return await approving.open_requests(self._store, await self.load(), history=True)

    async def decisions(self) -> list[Decision]:
        """Return the decisions that the run has consumed, in order."""
        return await approving.decisions(self._store, self.id)

    async def decide(
        self,
        request: str | OpenRequest,
        how: Literal["approve", "reject"],
        /,
        *,
        by: str,
        reason: str = "",
        digest: str | None = None,
    ) -> Run:
        """Decide about a request of the run, which goes on at once; the first decision stands.

        Bound to the content with this `digest`, by default that of the request as given, or as it stands. The same
        again is no error. RequestClosed for one that was decided otherwise, consumed, expired or never made;
        StaleDecision if it shows other content by now.
        """
        run = await self.load()
        post = await approving.decision(self._store, run, request, how, by=by, reason=reason, digest=digest)
        return await approving.say(self._store, self._ask, post)

    async def revoke(self, request: str | OpenRequest, /, *, by: str, reason: str = "") -> Run:
        """Take a decision back before the run has consumed it; the run asks anew. RequestClosed if it is too late."""
        post = await approving.revocation(self._store, await self.load(), request, by=by, reason=reason)
        return await approving.say(self._store, self._ask, post)

    async def signal(self, name: str, value: Any = None, /, *, id: str | None = None) -> Run:
        """Send the run a signal, which it keeps until it waits for it; the same `id` again is the same signal.

        RunConflict for the same id with another value, RunClosed for a run that has ended.
        """
        return await approving.say(self._store, self._ask, approving.signal(self.id, name, value, id=id))

    async def result(self, *, timeout: float | None = None) -> Out:
        """Wait for the run to end and return its result.

        RunFailed, RunCancelled or RunQuarantined say how else it ended, TimeoutError that `timeout` seconds passed. The
        wait is by wake-up with polling from 50 ms to 2 s as the base, and survives a restart of the store.
        """
        with anyio.move_on_after(timeout):
            pause = 0.05
            while True:
                try:
                    run = await self.load()
                    if run.status in TERMINAL:
                        try:
                            return await self._outcome(run)
                        except CorruptRecord:
                            # Record and result are two reads: a failover between them may have lost both.
                            if await self.load() == run:
                                raise
                    await self._store.woken(["run:" + self.id], timeout=pause)
                except UNANSWERED as error:
                    if not isinstance(error, StoreUnavailable):
                        raise
                    await anyio.sleep(pause)
                pause = min(2.0, pause * 1.5)
        message = f"run {self.id} has not ended in {timeout:g} s and goes on; wait again, or look at it"
        raise TimeoutError(message)

    async def _outcome(self, run: Run) -> Out:
        outcome = run.outcome
        if run.status is Status.QUARANTINED:
            raise by_status(run, run.id)
        code, detail = (outcome.code, outcome.message) if outcome is not None else ("", "")
        if run.status is Status.CANCELLED:
            message = (
                f"run {run.id} was cancelled ({detail or 'no reason given'}); retry it as a new run if it is needed"
            )
            raise RunCancelled(message, run=run)
        if run.status is Status.FAILED:
            # A retry would have the same input.
            todo = "" if code == INPUT_INVALID else "; fix the cause, then retry it as a new run"
            message = f"run {run.id} failed with {code}: {detail}{todo}"
            raise RunFailed(message, failure=code, detail=detail, run=run)
        data = await self._store.blob(run.id, outcome.result if outcome is not None else "")
        if data is None or outcome is None or canonical.digest(data) != outcome.result:
            message = f"the result of run {run.id} is missing or edited; restore the store or retry the run"
            raise CorruptRecord(message, run=run)
        value = canonical.decode(data)
        result: Out = self._kind.decode_result(value) if self._kind is not None else value
        return result

    async def verify(self) -> Verification:
        """Check the whole journal, and what the record, the result and the origin say of it; reads only."""
        return await verified(self._store, self.id)

    async def events(self, *, after: str | int = 0, follow: bool = False) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield (address, event) in order after an address `seq.index` or a number of commits.

        `follow` goes on until the run has ended or is set aside: by wake-up with polling from 50 ms to 1 s as the base.
        It survives a restart of the store, and repeats and leaves out nothing.
        """
        found = followed(self._store, self.id, after) if follow else rows_after(self._store, self.id, after)
        async for row, index, event in found:
            yield f"{row.seq}.{index}", event
