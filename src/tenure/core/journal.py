"""The journal: events and the rows that carry them, what they fold to, and the proof that nobody edited them.

A commit is one row; its body is the canonical bytes of `{effects, events}`. An event is a JSON object with a `type`
and a `scope` (empty for a plain run); its address is `seq.index`. The journal is the checkpoint: there is no other
snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.core import canonical
from tenure.core.approvals import Asked
from tenure.core.run import Grant, Row, Run
from tenure.errors import CorruptRecord, InvalidContent

Event = Mapping[str, Any]

RUN_START = "run/start"
ATTEMPT_START = "attempt/start"
ATTEMPT_FAILED = "attempt/failed"
CHECKPOINT = "checkpoint"
RECORD = "record"
CALL_STARTED = "call/started"
CONSUMED = "inbox/consumed"
REQUEST_OPENED = "request/opened"
REQUEST_WITHDRAWN = "request/withdrawn"
REQUEST_DECIDED = "request/decided"
WAIT_BEGUN = "wait/begun"
CONTEXT_REPLACE = "context/replace"
RUN_END = "run/end"

_PLAIN_CHECKPOINT = b'{"scope":"","type":"checkpoint",'
"""How the canonical bytes of a checkpoint begin."""


def event(type_: str, /, *, scope: str = "", **content: Any) -> bytes:
    """Return the canonical bytes of one event; InvalidContent if it cannot be stored."""
    found = {"type": type_, "scope": scope, **content}
    return canonical.encode(found, limit=canonical.MAX_EVENT_BYTES, depth=canonical.MAX_DEPTH + 1)


def restatement(type_: str, /, *, scope: str = "", **content: Any) -> bytes:
    """Return the canonical bytes of an event that restates a state, whose values lie deeper than in other events."""
    found = {"type": type_, "scope": scope, **content}
    return canonical.encode(found, limit=canonical.MAX_EVENT_BYTES, depth=canonical.RESTATED_DEPTH)


def start_digest(found: Event, /) -> str:
    """Return the digest of what a run begins with, as its record keeps it: the input, and where it was forked from."""
    value, fork = found.get("input"), found.get("fork")
    return canonical.digest(canonical.encode(value if fork is None else [value, fork], depth=canonical.RESTATED_DEPTH))


def begin(run: Run, grant: Grant, code_version: str, held_ms: int, /) -> bytes:
    """Return the event that stands before all others of a grant."""
    return event(
        ATTEMPT_START,
        attempt=run.attempt,
        ordinal=run.ordinal,
        owner=grant.owner,
        code_version=code_version,
        held_ms=held_ms,
    )


def consumed(item: str, name: str, ask: str, value: Any, /) -> bytes:
    """Return the event by which a holder takes an item of its inbox into the journal."""
    return event(CONSUMED, item=item, name=name, ask=ask, value=value)


def body(events: Sequence[bytes], effects: Mapping[str, Any], /) -> bytes:
    """Return the body of a commit; events are canonical already, and so is what is put around them."""
    step = effects.get("step")
    # Nearly every commit ends a step and does nothing else.
    shown = b'{"step":%d}' % step if step and len(effects) == 1 else canonical.encode(dict(effects))
    data = b"".join((b'{"effects":', shown, b',"events":[', b",".join(events), b"]}"))
    if len(data) > canonical.MAX_COMMIT_BYTES:
        message = (
            f"a commit of {len(data)} bytes is over the limit of {canonical.MAX_COMMIT_BYTES}; "
            "checkpoint more often or keep a reference"
        )
        raise InvalidContent(message, size=len(data), limit=canonical.MAX_COMMIT_BYTES)
    return data


def row(run_id: str, seq: int, prev: str, data: bytes, grant: Grant | None, /) -> Row:
    """Return the row of a commit, chained to the one before by its digest; commit 1 has no grant."""
    token, mark = (grant.token, grant.mark) if grant is not None else (0, "")
    return Row(seq=seq, token=token, grant=mark, digest=chain(run_id, seq, token, mark, prev, data), body=data)


def chain(run_id: str, seq: int, token: int, mark: str, prev: str, data: bytes) -> str:  # noqa: PLR0917 - hot path
    """Return the digest of a row, which covers its predecessor's."""
    digest = hashlib.sha256(f"tenure1\n{run_id}\n{seq}\n{token}\n{mark}\n{prev}\n".encode())
    digest.update(data)  # joined before, a large body would be copied once more
    return digest.hexdigest()


def events_of(found: Row, /) -> list[dict[str, Any]]:
    """Return the events of a row; CorruptRecord if the body is not what a commit writes."""
    try:
        content = canonical.decode(found.body)
        events = content["events"]
    except (InvalidContent, KeyError, TypeError):
        message = f"commit {found.seq} cannot be read; `tenure show --raw` prints its bytes"
        raise CorruptRecord(message) from None
    if not isinstance(events, list) or not all(isinstance(e, dict) and isinstance(e.get("type"), str) for e in events):
        message = f"commit {found.seq} holds something else than events; `tenure show --raw` prints its bytes"
        raise CorruptRecord(message)
    return events


class _Looked:
    """A field of a state whose value stays an event's bytes until somebody looks: most holders only write."""

    def __get__(self, state: State | None, owner: type[State]) -> Any:
        if state is None:
            return None  # what a state begins with
        value = vars(state)["last"]
        if isinstance(value, bytes):
            value = vars(state)["last"] = canonical.decode_own(value).get("value")
        return value

    def __set__(self, state: State, value: Any) -> None:
        vars(state)["last"] = value


@dataclass(kw_only=True)
class State:
    """What a journal folds to for handlers and own loops; agents fold their own events beside it.

    `attempts` are those that began in what was folded, which may begin at the commit that restates the rest.

    `records` and `started` go by (scope, name): identity is the name, never the order. `started` are the calls in
    doubt: started, and without a record since. `waits` are the waits that have begun, by name, with their end.
    """

    input: Any = None
    last: Any = _Looked()
    checkpoints: int = 0
    attempts: int = 0
    held_before: tuple[int, int] = (0, 0)
    records: dict[tuple[str, str], Event] = field(default_factory=dict)
    started: set[tuple[str, str]] = field(default_factory=set)
    consumed: dict[str, Event] = field(default_factory=dict)
    waits: dict[str, Event] = field(default_factory=dict)
    asked: Asked = field(default_factory=Asked)

    def add_own(self, data: bytes, /) -> None:
        """Take in the next event, as this process has just encoded it."""
        if data.startswith(_PLAIN_CHECKPOINT):
            self.last = data
            self.checkpoints += 1
        else:
            self.add(canonical.decode_own(data))

    def add(self, found: Event, /) -> None:
        """Take in the next event; types of other readers are passed over."""
        match found["type"]:
            case "run/start":
                self.input = found.get("input")
                self._restate(found)
                self.held_before = (0, self.held_before[1])  # grants of the run that it goes back to are not its own
            case "context/replace":
                self._restate(found)
            case "attempt/start":
                self.attempts += 1
                self.held_before = int(found.get("ordinal", 0)), int(found.get("held_ms", self.held_before[1]))
            case "checkpoint":
                self.last = found.get("value")
                self.checkpoints += 1
            case "record":
                self.records[_name(found)] = found
                self.started.discard(_name(found))
            case "call/started":
                self.started.update((found.get("scope", ""), name) for name in found.get("names", ()))
            case "inbox/consumed":
                self.consumed[str(found.get("item"))] = found
            case "wait/begun":
                self.waits[str(found.get("name"))] = found
            case "request/opened":
                self.asked.add(found)
            case _:
                pass

    def _restate(self, found: Event) -> None:
        if (value := found.get("state")) is not None:
            from tenure.core import restating

            restating.restore_run(self, value)


def _name(found: Event) -> tuple[str, str]:
    return found.get("scope", ""), str(found.get("name"))


def fold(rows: Iterable[Row], state: State | None = None, /) -> State:
    """Return the state after the rows, which must be in order; the state given is continued in place."""
    state = State() if state is None else state
    for found in rows:
        for one in events_of(found):
            state.add(one)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a journal cannot explain: a stable code, and the commit (and event) at which it shows."""

    code: str
    seq: int
    index: int | None = None
    detail: str = ""

    @property
    def at(self) -> str:
        """Return the address: `seq.index`, or the number of the commit."""
        return str(self.seq) if self.index is None else f"{self.seq}.{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chained:
    """What the chain of one journal says; ok means no findings."""

    run: str
    commits: int
    events: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether every row is where and what the chain says."""
        return not self.findings


class Verifier:
    """Checks one journal against its record row by row: edits, drops, swaps, insertions and a cut tail each show.

    With `base` it begins at the commit that restates the state, and takes of the one before the digest only.
    """

    def __init__(self, run_id: str, *, base: int = 1) -> None:
        self._run_id = run_id
        self._base = base
        self._findings: list[Finding] = []
        self._prev, self._seq, self._token = "", 0, 0
        self._commits, self._events = 0, 0

    def add(self, found: Row, /) -> list[dict[str, Any]]:
        """Take in the next row and return its events; none if it cannot be read."""
        if found.seq == self._base - 1 and not self._commits:
            self._prev, self._seq, self._token = found.digest, found.seq, found.token
            return []
        self._commits += 1
        if found.seq != self._seq + 1:
            self._find("SEQUENCE", found.seq)
        if found.digest != chain(self._run_id, found.seq, found.token, found.grant, self._prev, found.body):
            self._find("DIGEST", found.seq)
        if found.token < self._token:
            self._find("TOKEN_ORDER", found.seq)
        self._prev, self._seq, self._token = found.digest, found.seq, found.token
        try:
            events = events_of(found)
        except CorruptRecord:
            self._find("CONTENT", found.seq)
            return []
        self._events += len(events)
        if found.seq == self._base and not {RUN_START, CONTEXT_REPLACE} & {one["type"] for one in events}:
            self._find("BASE", found.seq)
        return events

    def end(self, run: Run | None, /) -> Chained:
        """Return what was found, now that the record (if there is one) tells where the journal ends."""
        if run is not None and (self._seq, self._prev) != (run.last_seq, run.head):
            self._find("HEAD", run.last_seq)
        return Chained(run=self._run_id, commits=self._commits, events=self._events, findings=tuple(self._findings))

    def _find(self, code: str, seq: int) -> None:
        self._findings.append(Finding(code=code, seq=seq))
