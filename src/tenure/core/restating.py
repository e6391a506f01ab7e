"""The folded state as a JSON value, and back: what `context/replace` and the `run/start` of a fork carry.

Whoever adds a field to `AgentState` or `journal.State` gives it its line here; a test compares the two lists. A state
that is restated and restored is the state: fold(all) = fold(from the restating commit on).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tenure.core.approvals import Asked
from tenure.core.budget import Spent, spent_from_json
from tenure.core.journal import Event, State
from tenure.core.lineage import CONTEXT, Lineage
from tenure.core.messages import (
    AssistantMessage,
    ToolMessage,
    from_json,
    to_json,
)
from tenure.errors import CorruptRecord

if TYPE_CHECKING:
    from tenure.core.loop import AgentState

Writer = Callable[[Any], Any]

_AGENT: dict[str, tuple[Writer, Writer]] = {
    "step": (int, int),
    "repairs": (int, int),
    "spent": (Spent.to_json, spent_from_json),
    "shape": (dict, dict),
    "started": (sorted, set),
    "resolved": (dict, dict),
    "seen": (sorted, set),
    "forgets": (bool, bool),
    "fitted": (list, tuple),
    "asides": (dict, dict),
}
"""Field -> how it is written and read. A field of another part of the state is one more line here."""

APART = frozenset({"scope", "begun", "ended", "messages", "lineage", "held", "results"})
"""Fields that are not restated as they are: the conversation with its calls, below; which run it is, and its end."""


OF_THE_CONVERSATION = ("tool:", CONTEXT)
"""What the names of records begin with that the messages hold, or a policy was given; others are a handler's own."""

OF_THE_RUN = frozenset({"resolved"})
"""Fields that speak of the run's own requests and decisions: a fork begins without them, and asks anew."""


def agent(state: AgentState, /, *, forget: bool = False, forked: bool = False) -> dict[str, Any]:
    """Return the state of one scope; with `forget` only the ids of calls that are still shown are kept.

    Ids that are forgotten are never given again all the same: from then on each answer's calls get ids with its number.
    """
    found = {
        name: write(getattr(state, name)) for name, (write, _) in _AGENT.items() if not (forked and name in OF_THE_RUN)
    }
    if forget:
        shown = [call.id for m in state.messages if isinstance(m, AssistantMessage) for call in m.calls]
        found |= {"seen": sorted(shown), "forgets": True}
    sources = state.lineage.by_message()
    found["messages"] = [
        {"message": to_json(message), "from": [list(block.sources) for block in blocks]}
        for message, blocks in zip(state.messages, sources, strict=True)
    ]
    found["results"] = to_json(ToolMessage(parts=tuple(state.results.values())))["parts"]
    found["held"] = bool(state.held)
    return found


def restore(state: AgentState, value: Any, /) -> None:
    """Make the state what the value says; CorruptRecord for what no state was written as."""
    try:
        for name, (_, read) in _AGENT.items():
            if name in value:
                setattr(state, name, read(value[name]))
        state.messages, state.lineage = [], Lineage()
        for entry in value["messages"]:
            message = from_json(entry["message"])
            names = [tuple(map(str, found)) for _, found in zip(message.parts, entry["from"], strict=True)]
            state.messages.append(message)
            state.lineage.add(message, names)
        state.lineage.told = len(state.lineage.blocks)
        last = next((m for m in reversed(state.messages) if isinstance(m, AssistantMessage)), None)
        state.held = last.calls if value["held"] and last is not None else ()
        results = from_json({"schema": 1, "role": "tool", "parts": value["results"]})
        state.results = {part.call_id: part for part in results.parts} if isinstance(results, ToolMessage) else {}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        message_ = f"a restated conversation cannot be read ({type(error).__name__}); `tenure show --events` prints it"
        raise CorruptRecord(message_) from None


def run(state: State, /, *, conversation: bool = False) -> dict[str, Any]:
    """Return the state of a run beside its agent; with `conversation` without the records that its messages hold."""
    records = [found for (scope, name), found in state.records.items() if not (conversation and _spoken(scope, name))]
    return {
        "input": state.input,
        "last": state.last,
        "checkpoints": state.checkpoints,
        "held_before": list(state.held_before),
        "records": [dict(found) for found in records],
        "started": sorted([scope, name] for scope, name in state.started),
        "consumed": [] if conversation else [dict(found) for found in state.consumed.values()],
        "waits": [dict(found) for found in state.waits.values()],
        "asked": state.asked.to_json(),
    }


def _spoken(scope: str, name: str) -> bool:
    return not scope and name.startswith(OF_THE_CONVERSATION)


def restore_run(state: State, value: Mapping[str, Any], /) -> None:
    """Make the state of a run what the value says, except for how many attempts it took."""
    try:
        state.input, state.last = value["input"], value["last"]
        state.checkpoints = int(value["checkpoints"])
        ordinal, ms = value.get("held_before", (0, 0))
        # The start of an attempt may have landed in front of it in the same commit, and is not in what it restates.
        state.held_before = max(state.held_before, (int(ordinal), int(ms)))
        records: list[Event] = value["records"]
        state.records = {(str(found.get("scope", "")), str(found["name"])): found for found in records}
        state.started = {(str(scope), str(name)) for scope, name in value["started"]}
        state.consumed = {str(found["item"]): found for found in value["consumed"]}
        state.waits = {str(found["name"]): found for found in value.get("waits", ())}
        state.asked = Asked.from_json(value.get("asked", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"a restated run cannot be read ({type(error).__name__}); `tenure show --events` prints it"
        raise CorruptRecord(message) from None
