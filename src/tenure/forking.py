"""Beginning again: a new run with the input of another one, or with the state that another one had after a step.

Nothing is shared: what the new run needs stands in its own `run/start`. Nothing of the other one is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tenure.carry import named_blobs
from tenure.core import build, canonical, ids, journal, restating
from tenure.core.approvals import APPROVE
from tenure.core.journal import State
from tenure.core.loop import AgentState
from tenure.core.run import Create, Row, Run
from tenure.core.text import count
from tenure.errors import CorruptRecord, InvalidContent, NotAllowed, StoreUnavailable
from tenure.refusals import not_found
from tenure.store import Store, has_commit

PAGE = 100

_OF_AGENTS = frozenset({"agent/shape", "assistant/message", journal.CONTEXT_REPLACE})


@dataclass(slots=True, kw_only=True)
class Moment:
    """What a run had come to at a place in its journal: the commit, the number of steps, and the folded state."""

    run: Run
    seq: int = 0
    head: str = ""
    at: str = ""
    step: int = 0
    failures: int = 0
    start: Mapping[str, Any] = field(default_factory=dict)
    state: State = field(default_factory=State)
    agent: AgentState = field(default_factory=AgentState)
    spoken: bool = False
    scopes: set[str] = field(default_factory=set)
    last: Mapping[str, Any] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    status: str = "queued"
    at_ms: int = 0
    began_ms: int = 0

    def add(self, row: Row, events: list[dict[str, Any]], until: int | None = None) -> None:
        """Take in a commit, or its events up to and with one."""
        effects = canonical.decode(row.body).get("effects", {})
        self.blobs.update(effects.get("blobs", ()))
        for index, event in enumerate(events[: None if until is None else until + 1]):
            self.state.add(event)
            if event["type"] in _OF_AGENTS or "agent" in event:
                self.spoken = True
                self.scopes.add(str(event.get("scope", "")))
            if self.spoken or event["type"] not in (journal.RECORD, journal.CALL_STARTED):
                self.agent.add(event)  # handlers and own loops write these too, under names of their own
            self.at, self.last = f"{row.seq}.{index}", event
            if event["type"] == journal.ATTEMPT_START:
                self.began_ms = row.at_ms
            if event["type"] == journal.RUN_START and row.seq == 1:
                self.start = event
                self.step = int((event.get("fork") or {}).get("step", 0))
        self.at_ms = row.at_ms
        if until is None or until + 1 == len(events):
            self.seq, self.head = row.seq, row.digest
            self.step += int(effects.get("step", 0))
            self.failures = int(effects.get("failures", self.failures))
            self.status = str(effects.get("status", "running" if row.token else "queued"))

    @property
    def held_ms(self) -> int:
        """Return the milliseconds in which the run had been held by then, this grant's included."""
        ordinal, before_ms = self.state.held_before
        from_ms = next((line.from_ms for line in self.run.grants if line.ordinal == ordinal), self.began_ms)
        return before_ms + (max(0, self.at_ms - from_ms) if self.began_ms else 0)


async def moment(store: Store, run: Run, at: int | str, /) -> Moment:
    """Return what the run had come to: after so many steps, or with the event of an address `seq.index`.

    After step n means with everything that belongs to it: up to the commit that ends the next step. NotAllowed for a
    place that the run has not reached.
    """
    found, place = Moment(run=run), _place(run, at)
    after = 0
    while rows := await store.tail(run.id, after=after, limit=PAGE):
        for row in rows:
            events = journal.events_of(row)
            if isinstance(place, tuple):
                if row.seq < place[0]:
                    found.add(row, events)
                elif row.seq == place[0] and place[1] < len(events):
                    found.add(row, events, place[1])
                    return found
                else:
                    raise _no_event(run, row, len(events), at)
            else:
                ends = int(canonical.decode(row.body).get("effects", {}).get("step", 0))
                if found.seq and ends and found.step + ends > place:
                    if found.step == place:
                        return found
                    raise _between(run, found.step, ends, place)
                found.add(row, events)
                if found.step > place and row.seq == 1:
                    origin = found.start["fork"]["run"]
                    message = f"run {run.id} begins after step {found.step}; name a later one, or fork run {origin}"
                    raise NotAllowed(message, run=run)
        after = rows[-1].seq
    if not found.seq:
        raise not_found(run.id)
    if isinstance(place, tuple) or found.step < place:
        raise _beyond(found, at)
    return found


def _beyond(found: Moment, at: int | str) -> NotAllowed:
    reached = f"{count(found.step, 'step')} and comes to {found.at}"
    message = f"run {found.run.id} has {reached}, there is no {at!s:.40}; name an earlier place"
    return NotAllowed(message, run=found.run)


def _no_event(run: Run, row: Row, events: int, at: int | str) -> NotAllowed:
    holds = f"events {row.seq}.0 to {row.seq}.{events - 1}" if events > 1 else "one event" if events else "no event"
    named = f" {row.seq}.0" if events == 1 else ""
    message = f"commit {row.seq} of run {run.id} holds {holds}{named}, there is no {at!s:.40}; name another address"
    return NotAllowed(message, run=run)


def _between(run: Run, step: int, ends: int, place: int) -> NotAllowed:
    message = (
        f"run {run.id} has no state after step {place}: steps {step + 1} to {step + ends} landed together; "
        f"name {step} or {step + ends}"
    )
    return NotAllowed(message, run=run)


def _place(run: Run, at: int | str) -> int | tuple[int, int]:
    text = str(at)
    seq, dot, index = text.partition(".")
    if isinstance(at, bool) or not seq.isdecimal() or (dot and not index.isdecimal()):
        message = f"{text[:40]!r} is no place in run {run.id}; name a number of steps, or an address like 12.0"
        raise NotAllowed(message, run=run)
    return (int(seq), int(index)) if dot else int(seq)


def place_before(run: Run, step: int, /) -> int:
    """Return the place before a step, NotAllowed for a step that the run did not come to."""
    if isinstance(step, bool) or not 1 <= step <= run.step + 1:
        has = count(run.step, "step")
        message = f"run {run.id} has {has}, it cannot begin at step {step}; name 1 to {run.step + 1}"
        raise NotAllowed(message, run=run)
    return step - 1


async def forked(
    store: Store, run: Run, at: int | str, /, *, id: str, code_version: str, tags: Mapping[str, str] | None = None
) -> Create:
    """Return the change that begins a run with the state that `run` had; its key is its id with that place."""
    found = await moment(store, run, at)
    if int(found.at.partition(".")[0]) > found.seq:  # a commit may hold no event, and then the place is before it
        message = f"event {found.at} of run {run.id} is inside a commit; name the last event of one, or a step"
        raise NotAllowed(message, run=run)
    if found.scopes - {""}:
        message = f"run {run.id} holds agents in scopes of their own, which are not restated; retry it from its input"
        raise NotAllowed(message, run=run)
    # What was asked, said and waited for was said to that run: this one asks anew, and no decision counts twice.
    state = {**restating.run(found.state, conversation=found.spoken), "asked": [], "consumed": [], "waits": []}
    state["held_before"] = [0, found.held_ms]
    state["records"] = [kept for record in state["records"] if (kept := _kept(record, found.failures)) is not None]
    agent = restating.agent(found.agent, forked=True) if found.spoken else None
    if agent is not None:
        # That they were started was approved for that run: here they wait for a decision, whatever their tools say.
        approved = {call: asked for call in agent["started"] if (asked := found.state.asked.latest(APPROVE, call))}
        agent["started"] = [call for call in agent["started"] if call not in approved]
        state["asked"] = [*approved.values()]
    try:
        return build.fork(
            run=ids.run_id(id),
            kind=run.kind,
            value=found.start.get("input"),
            code_version=code_version,
            priority=run.priority,
            tags=run.tags if tags is None else tags,
            fork={"run": run.id, "seq": found.seq, "head": found.head, "step": found.step},
            state=state,
            agent=agent,
            blobs=await blobs(store, run, found.blobs, [state, agent]),
        )
    except InvalidContent as error:
        message = f"what run {run.id} had come to does not fit the one event that begins a fork ({error.message})"
        raise InvalidContent(f"{message}; fork it at an earlier place, or retry it from its input") from None


async def blobs(store: Store, run: Run, kept: Iterable[str], restated: Any) -> dict[str, bytes]:
    """Return what stands beside the journal and is named in what is restated: media, and results that were cut."""
    text = canonical.encode(restated, depth=canonical.RESTATED_DEPTH).decode()
    found: dict[str, bytes] = {}
    for digest in sorted(kept):
        if digest not in text:
            continue
        if (data := await store.blob(run.id, digest)) is None:
            if not await has_commit(store, run.id, run.last_seq, run.head):
                message = f"run {run.id} moved while it was read; ask again"
                raise StoreUnavailable(message, run_id=run.id)
            message = f"blob {digest[:16]}, which run {run.id} shows its model, is gone; restore the store"
            raise CorruptRecord(message, run=run)
        found[digest] = data
    return found


def _kept(record: Mapping[str, Any], failures: int) -> dict[str, Any] | None:
    """A record as the new run has it: its handler has not failed yet, and what was void is left out."""
    if "error" not in record:
        return dict(record)
    return None if int(record.get("failures", 0)) < failures else {**record, "failures": 0}


async def retried(store: Store, run: Run, /, *, code_version: str) -> Create:
    """Return the change that begins the run anew: with its input, or with the state that it was forked with."""
    rows = await store.tail(run.id, limit=1)
    if not rows:
        raise not_found(run.id)
    start = journal.events_of(rows[0])[0]
    if start["type"] != journal.RUN_START:
        message = f"run {run.id} does not begin with its input; `tenure verify {run.id}` tells what is wrong"
        raise CorruptRecord(message, run=run)
    new_id = ids.run_id(f"{run.id}-retry")
    if (fork := start.get("fork")) is not None:
        return build.fork(
            run=new_id,
            kind=run.kind,
            value=start.get("input"),
            code_version=code_version,
            priority=run.priority,
            tags=run.tags,
            fork=fork,
            state=start["state"],
            agent=start.get("agent"),
            blobs=await blobs(store, run, named_blobs(rows), [start["state"], start.get("agent")]),
        )
    return build.create(
        run=new_id,
        kind=run.kind,
        value=start.get("input"),
        code_version=code_version,
        priority=run.priority,
        tags=run.tags,
        origin=run.id,
    )
