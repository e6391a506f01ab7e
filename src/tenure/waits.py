"""What a handler waits for with its run suspended: a time, a signal, a person's decision.

How a wait ended is recorded under its key, and replayed. Until then the handler is called again from its first line and
comes to the same wait, whose end was fixed when it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tenure.codec import from_json_value, to_json_value
from tenure.core import approvals, canonical, ids, journal
from tenure.core.approvals import ASK, Decision, OnExpiry, Standing, expired_decision, policy_of
from tenure.core.journal import Event
from tenure.core.run import Ask, Item, Request
from tenure.effects import InboxUnread, due_of, milliseconds
from tenure.errors import InvalidContent, ReplayDrift, RequestExpired
from tenure.lease import Lease
from tenure.steps import Steps
from tenure.suspending import Wait, decided, withdrawn


class Waits:
    """The waits of one call of a handler."""

    def __init__(self, lease: Lease, steps: Steps) -> None:
        self._lease = lease
        self._steps = steps

    async def sleep(self, key: str, until: datetime | float) -> None:
        """Wait until a time; see `ActiveRun.sleep`."""
        name = self._begin("sleep", key)
        due = due_of(until)
        if due is None or self._found(name) is not None:
            return
        self._steps.may_wait("sleep", key)
        now_ms = (await self._lease.facts()).now_ms
        ends_ms, begun = self._ends(name, due.at(now_ms))
        if ends_ms > now_ms:
            await self._steps.wait(Wait(ends_ms=ends_ms, events=begun))
        await self._lease.record(name, step=1)

    async def signal(self, signal: str, key: str, timeout: float | None, type_: Any) -> Any:
        """Wait for a signal; see `ActiveRun.wait_for`."""
        name = self._begin("signal", key)
        ids.label(signal, "signal name")
        found = self._found(name)
        while found is None:
            self._steps.may_wait("wait", key)
            ends_ms, begun = await self._deadline(name, timeout)
            async with self._steps.turn:
                item = next((i for i in await self._lease.inbox() if (i.ask, i.name) == (Ask.SIGNAL, signal)), None)
                if item is not None:
                    record = journal.event(journal.RECORD, name=name, value=canonical.decode(item.body))
                    await self._consume([item], also=[record])
            if item is None and (ends_ms is None or ends_ms > (await self._lease.facts()).now_ms):
                await self._steps.wait(Wait(ends_ms=ends_ms, signals=(signal,), events=begun))
            if item is None:
                message = f"no signal {signal!r} came in time"
                await self._lease.record(name, error={"type": "TimeoutError", "message": message}, step=1)
            found = self._found(name)
        if (error := found.get("error")) is not None:
            raise TimeoutError(error.get("message"))
        return from_json_value(found.get("value"), type_, what=f"what came as signal {signal!r}")

    async def ask(self, key: str, question: Any, *, expires: float | None, on_expiry: OnExpiry | str) -> Decision:
        """Ask a person; see `ActiveRun.ask`."""
        name = self._begin(ASK, key)
        policy = policy_of(on_expiry)
        content = {"boundary": "handler", "name": key, "question": to_json_value(question)}
        try:
            digest = approvals.content_digest(content)
        except InvalidContent as error:
            raise error.of(f"request {key!r}") from error.__cause__
        if self._lease.redaction is not None:
            self._lease.redaction.verbatim(content, f"request {key!r}")
        while (found := self._found(name)) is None:
            self._steps.may_wait("request", key)
            async with self._steps.turn:
                asked = await self._read(name, key, digest, policy)
            if asked is None:
                continue
            request, open_ = asked
            if open_ is None:
                expires_ms = await self._from_now(expires)
                open_ = Request(digest=digest, expires_ms=expires_ms)
            await self._steps.wait(Wait(requests={request: open_}, contents={request: content}))
        if found.get("error") is not None:
            raise _expired(key, self._lease.run.id)
        decision = Decision.from_json(found.get("value", {}))
        if decision.digest != digest:
            message = (
                f"request {key!r} of run {self._lease.run.id} was decided about another question; "
                "keep the question as it was, or ask the changed one under a new key"
            )
            raise ReplayDrift(message, key=key, run_id=self._lease.run.id)
        return decision

    async def _read(self, name: str, key: str, digest: str, policy: OnExpiry) -> tuple[str, Request | None] | None:
        """The request to wait for, with what is open of it; None when something was consumed, and all is read anew."""
        asked, open_ = self._lease.state.asked, self._lease.run.requests
        request = asked.latest(ASK, key)
        if request not in open_:
            return asked.following(ASK, key), None
        now_ms = (await self._lease.facts()).now_ms
        reading = approvals.read(request, open_[request], await self._lease.inbox(), now_ms=now_ms, digest=digest)
        match reading.standing:
            case Standing.OPEN:
                return request, open_[request]
            case Standing.CHANGED:
                return request, None
            case Standing.EXPIRED if policy is OnExpiry.FAIL:
                error = {"type": "RequestExpired", "message": "nobody decided in time"}
                failed = journal.event(journal.RECORD, name=name, error=error, failures=self._lease.run.failures)
                await self._consume([], closes=[request], also=[withdrawn(request, "expired"), failed])
            case Standing.EXPIRED if policy is OnExpiry.REJECT:
                await self._decide(name, expired_decision(request, open_[request]), [])
            case Standing.DECIDED if reading.decision is not None:
                await self._decide(name, reading.decision, reading.items)
            case _:
                why = reading.why or "expired"
                await self._consume(reading.items, closes=[request], also=[withdrawn(request, why)], step=0)
        return None

    async def _decide(self, name: str, decision: Decision, items: Sequence[Item]) -> None:
        record = journal.event(journal.RECORD, name=name, value=decision.to_json())
        await self._consume(items, closes=[decision.request], also=[decided(decision), record])

    async def _consume(
        self, items: Sequence[Item], *, closes: Sequence[str] = (), also: Sequence[bytes], step: int = 1
    ) -> None:
        try:
            await self._lease.consume(items, closes=closes, also=also, step=step)
        except InboxUnread:
            return  # who asked looks again, and finds that nothing is recorded

    def _begin(self, what: str, key: str) -> str:
        self._steps.use(what, ids.label(key, f"key of a {what}"))
        return f"{what}:{key}"

    def _found(self, name: str) -> Event | None:
        found = self._lease.state.records.get(("", name))
        return None if found is not None and self._steps.void(found) else found

    async def _from_now(self, seconds: float | None) -> int | None:
        return None if seconds is None else (await self._lease.facts()).now_ms + milliseconds(seconds, "a time to wait")

    async def _deadline(self, name: str, timeout: float | None) -> tuple[int | None, tuple[bytes, ...]]:
        ends_ms = await self._from_now(timeout)
        return (None, ()) if ends_ms is None else self._ends(name, ends_ms)

    def _ends(self, name: str, ends_ms: int) -> tuple[int, tuple[bytes, ...]]:
        """When a wait ends, and the event that says so if it begins now."""
        failures = self._lease.run.failures
        begun, over = self._lease.state.waits.get(name), self._lease.state.records.get(("", name))
        # A wait that ended badly and is given its chance again, because the handler failed since, begins anew.
        if begun is not None and (over is None or begun.get("failures") == failures):
            return int(begun["ends_ms"]), ()
        return ends_ms, (journal.event(journal.WAIT_BEGUN, name=name, ends_ms=ends_ms, failures=failures),)


def _expired(key: str, run_id: str) -> RequestExpired:
    message = (
        f"nobody decided in time about {key!r} of run {run_id}; catch RequestExpired, or retry the run to ask again"
    )
    return RequestExpired(message, run_id=run_id)
