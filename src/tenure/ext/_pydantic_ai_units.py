"""The units of an agent of Pydantic AI: how each is named in the journal, and what it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_ai.durable_exec import (
    CapabilityOperationId,
    DurableOperationId,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import RunContext

from tenure.core import canonical

VOLATILE = frozenset({"timestamp", "run_id", "conversation_id", "instructions", "metadata", "usage", "state"})
"""What differs between attempts, or may differ between versions of an agent, and is no part of the question."""
DIGEST = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit: its record's scope and name, the digests of what it depends on, and the scope of what runs inside."""

    scope: str
    name: str
    guard: str
    inner: str

    def renamed(self, name: str, /) -> Unit:
        """Return the unit under another name."""
        return replace(self, name=name)


def unit_of(operation_id: DurableOperationId, name: str, cache_key: tuple[Any, ...], path: str, /) -> Unit:
    """Return the unit of an operation of an agent run, which `path` names."""
    ctx = next((part for part in reversed(cache_key) if isinstance(part, RunContext)), None)
    step, inner = (ctx.run_step if ctx is not None else 0), path
    depends: dict[str, Any] = {}
    match operation_id:
        case ModelRequestId(streaming=streaming):
            # A stream and a plain answer are recorded in one shape, so either may replay the other.
            del streaming
            unit = f"model:{step}"
            depends = _question(cast("Sequence[ModelMessage]", cache_key[1]))
        case ModelCompactMessagesId():
            unit = f"compact:{step}"
        case ModelCancelSuspendedResponseId():
            unit = f"cancel:{step}"
        case ToolsetCallToolId() | ToolsetValidateToolArgumentsId():
            tool, arguments = cast("tuple[str, Mapping[str, Any]]", cache_key[:2])
            call = (ctx.tool_call_id if ctx is not None else None) or ""
            what = "tool" if isinstance(operation_id, ToolsetCallToolId) else "validate"
            unit = f"{what}:{tool}@{step}.{call}"
            depends = {"tool": tool, "arguments": plain(arguments)}
            inner = f"{path}/{call or unit}"
        case ToolsetGetToolsId(toolset_id=toolset_id):
            unit = f"tools:{toolset_id}@{step}"
        case ToolsetGetInstructionsId(toolset_id=toolset_id):
            unit = f"instructions:{toolset_id}@{step}"
        case CapabilityOperationId(capability_id=capability, operation=operation):
            unit = f"capability:{capability}.{operation}@{step}"
        case EventStreamHandlerId():
            unit = f"event:{_event(cache_key[0])}"
        case _:  # a kind of unit that is newer than this file
            unit = f"{name}@{step}"  # type: ignore[unreachable]  # the union may grow in a minor release
    return Unit(scope=path, name=unit, guard=_guard(depends), inner=inner)


def differing(recorded: str | None, wanted: str, /) -> str | None:
    """Return the first thing in which a unit differs from its record; None if it does not."""
    before = dict(part.split("=", 1) for part in (recorded or "").split(" ") if part)
    after = dict(part.split("=", 1) for part in wanted.split(" ") if part)
    return next((name.replace("_", " ") for name, digest in after.items() if before.get(name, digest) != digest), None)


def _guard(depends: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_digest(value)}" for name, value in depends.items())


def _digest(value: Any) -> str:
    return str(value) if isinstance(value, int) else canonical.digest(canonical.encode(value))[:DIGEST]


def _question(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    plain = [_stripped(message) for message in ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")]
    return {"number_of_messages": len(plain), "history": plain[:-1], "last_message": plain[-1:]}


def _stripped(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**_lasting(message), "parts": [_part(part) for part in message.get("parts", ())]}


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    # Instructions may change between versions of an agent.
    return {"part_kind": "system-prompt"} if part.get("part_kind") == "system-prompt" else _lasting(part)


def _lasting(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if name not in VOLATILE}


def plain(value: Any, /) -> Any:
    """Return the value as JSON, for a digest or for people."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, fallback=str)


def _event(event: Any) -> str:
    part = getattr(event, "part", None)
    call = getattr(event, "tool_call_id", None) or getattr(part, "tool_call_id", None) or ""
    return f"{getattr(event, 'event_kind', type(event).__name__)}@{call}"
