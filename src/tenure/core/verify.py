"""The proof, offline and row by row: nobody edited the journal, and it explains everything that its models were shown.

Failures are contradictions. What is not there to be compared (an answer of a version that did not name what it showed)
is inconclusive, never a failure. Nothing here reads a store; whoever has the record and the rows can verify.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tenure.core import canonical, journal, restating
from tenure.core.journal import Event, Finding, State
from tenure.core.lineage import CONTEXT, Block, block_digest
from tenure.core.loop import TOOL, AgentState
from tenure.core.run import Row, Run
from tenure.errors import CorruptRecord, InvalidContent, StoreTooNew

FOLD = "FOLD"
BROKEN_LINK = "BROKEN_LINK"
MISSING_CONTEXT_REPLACE = "MISSING_CONTEXT_REPLACE"
RESTATED = "RESTATED"
RECORD = "RECORD"
GRANT = "GRANT"
NO_REQUEST = "NO_REQUEST"
NEWER = "NEWER"
RESULT = "RESULT"
ORIGIN = "ORIGIN"

NO_LINEAGE = "no-lineage"
NOT_REPRODUCIBLE = "not-reproducible"

_MAY_DIFFER = frozenset({"seen", "forgets", "fitted", "asides", "started", "resolved"})
"""Parts of a restated conversation that a replacement sets anew."""


_OF_AN_AGENT = frozenset({"agent/shape", "model/request", "assistant/message"})
_OF_ANYBODY = frozenset({journal.RECORD, journal.CALL_STARTED})
"""Handlers and own loops write these too, under names of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How much was looked at."""

    commits: int = 0
    events: int = 0
    steps: int = 0
    requests: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of verifying one journal; ok means that nothing contradicts it."""

    run: str
    failures: tuple[Finding, ...] = ()
    inconclusive: tuple[Finding, ...] = ()
    stats: Stats = field(default_factory=Stats)

    @property
    def ok(self) -> bool:
        """Return whether there are no failures."""
        return not self.failures


class Audit:
    """Takes in a journal row by row, and compares it with itself and at its end with its record."""

    def __init__(self, run_id: str) -> None:
        self.failures: list[Finding] = []
        self.inconclusive: list[Finding] = []
        self.origin: Mapping[str, Any] = {}
        self._run_id = run_id
        self._chain = journal.Verifier(run_id)
        self._scopes: dict[str, _Conversation] = {}
        self._state = State()
        self._marks: dict[int, str] = {}
        self._held: dict[int, list[int]] = {}
        self._input = ""
        self._steps, self._base, self._token = 0, 0, 0

    def add(self, found: Row, /) -> None:
        """Take in the next row."""
        mark = self._marks.setdefault(found.token, found.grant)
        self._token = max(self._token, found.token)
        if mark != found.grant:
            self.fail(GRANT, found.seq, detail="one token is written by two grants")
        events = self._chain.add(found)
        if not events:
            return
        effects = canonical.decode(found.body).get("effects", {})
        self._steps += int(effects.get("step", 0))
        self._base = found.seq if effects.get("base") or found.seq == 1 else self._base
        for index, event in enumerate(events):
            try:
                self._event(event, found.seq, index)
            except (CorruptRecord, InvalidContent) as error:
                self.fail(FOLD, found.seq, index, error.message)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self.fail(FOLD, found.seq, index, f"it cannot be read ({type(error).__name__})")

    def unreadable(self, seq: int, message: str, /) -> None:
        """Take note of a row whose head cannot be read."""
        self.fail("CONTENT", seq, detail=message)

    def fail(self, code: str, seq: int, index: int | None = None, detail: str = "") -> None:
        """Add a failure."""
        self.failures.append(Finding(code=code, seq=seq, index=index, detail=detail))

    def doubt(self, code: str, seq: int, index: int | None = None, detail: str = "") -> None:
        """Add something that cannot be judged."""
        self.inconclusive.append(Finding(code=code, seq=seq, index=index, detail=detail))

    def end(self, run: Run | None, /) -> Verification:
        """Return what was found, now that the record (if there is one) tells where the journal ends."""
        chain = self._chain.end(run)
        if run is not None and chain.commits:
            self._compare(run)
        stats = Stats(
            commits=chain.commits,
            events=chain.events,
            steps=self._steps,
            requests=sum(found.requests for found in self._scopes.values()),
            blocks=sum(found.blocks for found in self._scopes.values()),
        )
        failures = sorted([*chain.findings, *self.failures], key=lambda one: (one.seq, one.index or 0))
        return Verification(
            run=self._run_id, failures=tuple(failures), inconclusive=tuple(self.inconclusive), stats=stats
        )

    def _compare(self, run: Run) -> None:
        told = {"step": (run.step, self._steps), "base_seq": (run.base_seq, self._base)}
        if self._input:
            told["input_digest"] = (run.input_digest, self._input)  # type: ignore[assignment]
        for name, (recorded, found) in told.items():
            if recorded != found:
                detail = f"{name} of the record is {recorded}, by the journal it is {found}"
                self.fail(RECORD, run.last_seq, detail=detail)
        if self._token > run.token:
            self.fail(GRANT, run.last_seq, detail="a commit has a later token than the record")

    def _event(self, event: Event, seq: int, index: int) -> None:
        scope = str(event.get("scope", ""))
        if event["type"] == journal.RUN_START and not scope:
            self.origin = event.get("fork") or {}
            self._input = journal.start_digest(event)
        if event["type"] == journal.CONTEXT_REPLACE and "state" in event:
            before = restating.run(self._state, conversation=True)
            if seq in self._held and event["state"].get("held_before") == self._held[seq]:
                before.pop("held_before")  # the start of the attempt was put in front of it when it was written
            if any(event["state"].get(name) != value for name, value in before.items()):
                self.fail(RESTATED, seq, index, "the state that it restates is not what the journal folds to")
        if event["type"] == journal.ATTEMPT_START:
            self._held = {seq: list(self._state.held_before)}
        self._state.add(event)
        self._scopes.setdefault(scope, _Conversation(self, scope)).add(event, seq, index)


class _Conversation:
    """What one scope was shown, compared with what its events explain."""

    def __init__(self, audit: Audit, scope: str) -> None:
        self.requests = 0
        self.blocks = 0
        self._audit = audit
        self._state = AgentState(scope=scope)
        self._asked = 0
        self._spoken = False
        self._readable = True

    def add(self, event: Event, seq: int, index: int) -> None:
        """Compare one event, then fold it; after one that cannot be folded nothing more is compared."""
        self._spoken = self._spoken or event["type"] in _OF_AN_AGENT or "agent" in event
        if not self._readable or (event["type"] in _OF_ANYBODY and not self._spoken):
            return
        match event["type"]:
            case "model/request":
                self._request(event, seq, index)
            case "assistant/message" if self._asked != event.get("step"):
                detail = "it does not say what its model was shown"
                self._audit.doubt(NO_REQUEST, seq, index, detail)
            case journal.CONTEXT_REPLACE:
                self._replacement(event, seq, index)
            case journal.CALL_STARTED:
                held = {call.id for call in self._state.open}
                for name in event.get("names", ()):
                    if str(name).startswith(TOOL) and str(name).removeprefix(TOOL) not in held:
                        self._audit.fail(BROKEN_LINK, seq, index, f"no answer holds {name}")
            case _:
                pass
        try:
            self._state.add(event)
        except StoreTooNew as error:
            self._readable = False
            self._audit.doubt(NEWER, seq, index, error.message)
        except Exception:
            self._readable = False
            raise

    def _request(self, event: Event, seq: int, index: int) -> None:
        lineage, audit = self._state.lineage, self._audit
        self.requests += 1
        self._asked = int(event["step"])
        named = list(event["blocks"])
        begin = int(event["count"]) - len(named)
        self.blocks += len(named)
        if self._asked != self._state.step + 1:
            audit.fail(BROKEN_LINK, seq, index, f"request {self._asked} follows answer {self._state.step}")
        for number, shown in enumerate(named, begin):
            if why := self._wrong(shown, lineage.blocks[number] if 0 <= number < len(lineage.blocks) else None):
                audit.fail(MISSING_CONTEXT_REPLACE, seq, index, f"block {shown['at']} ({shown['type']}): {why}")
                return
        if (event["count"], event["digest"]) != (len(lineage.blocks), lineage.digest):
            detail = f"{NOT_REPRODUCIBLE}: it shows {event['count']} blocks, the journal explains {len(lineage.blocks)}"
            audit.fail(MISSING_CONTEXT_REPLACE, seq, index, detail)

    def _wrong(self, shown: Mapping[str, Any], known: Block | None) -> str:
        if not shown.get("from"):
            return NO_LINEAGE
        if known is None or known.to_json() != dict(shown):
            return NOT_REPRODUCIBLE
        return ""

    def _replacement(self, event: Event, seq: int, index: int) -> None:
        """What it keeps stands as it stood, what is new is its own, and it counts what the journal counts."""
        state, audit, own = self._state, self._audit, str(event["name"])
        known = {(block.sources, block.digest) for block in state.lineage.blocks}
        known |= {((own,), "")}
        for entry in event["agent"]["messages"]:
            role = str(entry["message"]["role"])
            for part, names in zip(entry["message"]["parts"], entry["from"], strict=True):
                sources = tuple(map(str, names))
                digest = "" if sources == (own,) else block_digest(role, part)
                self.blocks += 1
                if (sources, digest) not in known:
                    why = f"a {part['type']} that is said to be kept ({', '.join(sources)}) stood nowhere before"
                    audit.fail(MISSING_CONTEXT_REPLACE, seq, index, f"{NOT_REPRODUCIBLE}: {why}")
        if not own.startswith(CONTEXT):
            audit.fail(BROKEN_LINK, seq, index, f"a replacement is named {own[:40]!r}")
        before = restating.agent(state)
        for name in before.keys() - _MAY_DIFFER - {"messages"}:
            if event["agent"].get(name) != before[name]:
                audit.fail(RESTATED, seq, index, f"{name} is not what the journal folds to")


def verify_run(run: Run, rows: Iterable[Row], /) -> Verification:
    """Check a whole journal against its record and against itself; pure, and the rows may be read as they come."""
    audit = Audit(run.id)
    for found in rows:
        audit.add(found)
    return audit.end(run)
