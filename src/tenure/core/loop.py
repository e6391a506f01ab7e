"""The agent stepper, pure: what the journal says so far, and the one thing to do next.

A step is a model turn. Its checkpoint is the event `assistant/message`: the answer with the calls that it holds. Each
call ends in a record `tool:{call id}`. A first run and a recovery are the same: fold, then `next_action`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenure.core import canonical, journal, restating
from tenure.core.budget import Spent
from tenure.core.journal import Event
from tenure.core.lineage import CONTEXT, MODEL, REFUSED, START, Lineage
from tenure.core.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    from_json,
    media_from_json,
    usage_from_json,
    user,
)
from tenure.errors import CorruptRecord

SHAPE = "agent/shape"
TOOL = "tool:"
RESOLVE = "resolve:"

MAX_REPAIRS = 1
"""How often a model is told that its final answer does not fit the output type."""


class Failing(StrEnum):
    """Why an agent gives up; the code of the error that ends its run."""

    STEP_LIMIT = "STEP_LIMIT"
    OUTPUT_INVALID = "OUTPUT_INVALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask the model: `step` is the number that its answer will have."""

    step: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Bring these calls to their results; they are held by the last answer and have none."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The model is done; `text` is its final answer, not yet checked against the output type."""

    text: str
    repairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Give up: the run fails with this code."""

    code: Failing
    message: str


Action = Ask | Call | Finish | Fail


@dataclass(slots=True, kw_only=True)
class AgentState:
    """What the events of one scope fold to. `held` are the calls of an answer until each of them has its result.

    `lineage` explains `messages`, block by block. `fitted` is (step, policies applied before it), `asides` the answers
    that a policy under way was given. What is restated, and how, stands in `restating.py`.
    """

    scope: str = ""
    begun: bool = False
    ended: bool = False
    step: int = 0
    repairs: int = 0
    messages: list[Message] = field(default_factory=list)
    held: tuple[ToolCall, ...] = ()
    results: dict[str, ToolResult] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    resolved: dict[str, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    spent: Spent = field(default_factory=Spent)
    shape: Mapping[str, Any] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    forgets: bool = False
    fitted: tuple[int, ...] = (0, 0)
    asides: dict[str, Any] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """Return what the answers used, those to context policies included."""
        return self.spent.usage

    @property
    def open(self) -> tuple[ToolCall, ...]:
        """Return the held calls that have no result, in order."""
        return tuple(call for call in self.held if call.id not in self.results)

    @property
    def in_doubt(self) -> frozenset[str]:
        """Return the ids of the calls that were started and have no result."""
        return frozenset(call.id for call in self.open if call.id in self.started)

    def request_of(self, call_id: str, /) -> str:
        """Return the id of the request that asks how this call ended; each time it is asked it has another one."""
        asked = self.resolved.get(call_id, 0)
        return f"{RESOLVE}{call_id}" if asked == 0 else f"{RESOLVE}{call_id}#{asked + 1}"

    def add(self, found: Event, /) -> None:
        """Take in the next event; those of other scopes and types are passed over, those that cannot be are refused."""
        if found.get("scope", "") != self.scope:
            return
        match found["type"]:
            case journal.RUN_START:
                self._begin(found)
            case "assistant/message":
                self._answer(found)
            case journal.RECORD if str(found.get("name")).startswith(TOOL):
                self._result(found)
            case journal.CALL_STARTED:
                names = (str(name) for name in found.get("names", ()))
                self.started.update(name.removeprefix(TOOL) for name in names if name.startswith(TOOL))
            case "output/refused":
                self.repairs += 1
                self.say(user(str(found.get("message"))), f"{REFUSED}{self.repairs}")
            case journal.CONSUMED:
                for call in self.open:
                    if self.request_of(call.id) == found.get("name"):
                        self.resolved[call.id] = self.resolved.get(call.id, 0) + 1
                        break
            case "agent/shape":
                self.shape = found
            case "model/request":
                self.lineage.told = len(self.lineage.blocks)
            case journal.RECORD if str(found.get("name")).startswith(CONTEXT):
                value = self.asides[str(found["name"])] = found.get("value") or {}
                self._spend(value, None)
            case "budget/reserved":
                self.spent = self.spent.reserve(found)
            case "budget/returned":
                self.spent = self.spent.returned(found)
            case journal.CONTEXT_REPLACE:
                self.begun = True
                restating.restore(self, found.get("agent"))
            case journal.RUN_END:
                self.ended = True
            case _:
                pass

    def _begin(self, found: Event) -> None:
        if self.begun:
            raise _impossible("it begins twice")
        self.begun = True
        if (value := found.get("agent")) is not None:
            restating.restore(self, value)
            return
        prompt = found.get("input")
        self.say(user(prompt if isinstance(prompt, str) else canonical.encode(prompt).decode()), START)

    def say(self, message: Message, *sources: str) -> None:
        """Add a message to what the model sees; `sources` are the records it comes from, of each part or of all."""
        self.messages.append(message)
        self.lineage.add(message, [(name,) for name in sources])

    def _answer(self, found: Event) -> None:
        if self.held:
            raise _impossible(f"an answer follows calls without result ({', '.join(c.id for c in self.open)})")
        if found.get("step") != self.step + 1:
            raise _impossible(f"answer {found.get('step')} follows answer {self.step}")
        message = from_json(found.get("message"))
        if not isinstance(message, AssistantMessage):
            raise _impossible(f"answer {self.step + 1} is no assistant message")
        for call in message.calls:
            if call.id in self.seen:
                raise _impossible(f"call id {call.id} is used twice")
            self.seen.add(call.id)
        self.step += 1
        self._spend(found, message)
        self.say(message, f"{MODEL}{self.step}")
        self.held = message.calls

    def _spend(self, found: Mapping[str, Any], message: AssistantMessage | None) -> None:
        self.spent = self.spent.answered(usage_from_json(found.get("usage", {})), int(found.get("micros", 0)), message)

    def _result(self, found: Event) -> None:
        call_id = str(found["name"]).removeprefix(TOOL)
        if call_id not in {call.id for call in self.open}:
            raise _impossible(f"a result of call {call_id} has no open call")
        self.results[call_id] = _result_of(call_id, found)
        if self.open:
            return
        message = ToolMessage(parts=tuple(self.results[call.id] for call in self.held))
        self.say(message, *(f"{TOOL}{call.id}" for call in self.held))
        self.held, self.results, self.started = (), {}, set()


def _result_of(call_id: str, found: Event) -> ToolResult:
    error = found.get("error")
    if error is None:
        media = media_from_json(found.get("media", ()))
        return ToolResult(call_id=call_id, content=found.get("value"), media=media)
    return ToolResult(call_id=call_id, content=f"{error.get('type')}: {error.get('message')}", is_error=True)


def fold(events: Iterable[Event], state: AgentState | None = None, /) -> AgentState:
    """Return the state after the events, which must be in order; the state given is continued in place."""
    state = AgentState() if state is None else state
    for found in events:
        state.add(found)
    return state


def next_action(state: AgentState, /, *, max_steps: int) -> Action:
    """Return what to do next; the same for a run that just began and for one that was taken over."""
    if not state.begun:
        raise _impossible("it has no beginning")
    if state.open:
        return Call(calls=state.open)
    last = state.messages[-1]
    if isinstance(last, AssistantMessage):
        return Finish(text=last.text, repairs=state.repairs)
    if state.step >= max_steps:
        message = f"the model was asked {state.step} times and max_steps is {max_steps}; raise it, or divide the work"
        return Fail(code=Failing.STEP_LIMIT, message=message)
    return Ask(step=state.step + 1, messages=tuple(state.messages))


def _impossible(what: str) -> CorruptRecord:
    return CorruptRecord(f"the journal of this agent cannot be continued: {what}; `tenure show --events` prints it")
