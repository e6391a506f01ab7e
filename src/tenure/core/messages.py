"""What a model and an agent say to each other, as frozen values, and as JSON with a schema number.

A message is a role and parts. What a journal holds of a conversation is exactly these JSON values; a part that this
version does not know is refused by name, because a conversation with a hole in it is another conversation.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.errors import CorruptRecord, StoreTooNew

SCHEMA = 2
"""The newest schema of messages that this version writes and reads; a newer one is refused by name.

A message says 2 only where it has what 1 had not, media: readers of 1 go on with all others.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's wish that a tool be called; `arguments` is a JSON value, `id` is the call's identity in its run."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image or a file: its `data`, or the `url` where it is. A large one is journaled as the digest of a `blob`."""

    media_type: str
    data: bytes = field(default=b"", repr=False)
    url: str = ""
    name: str = ""
    blob: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call came to; `content` is a JSON value, for an error the text that the model is shown.

    `media` belongs to it. A model that reads none is told of it by the content.
    """

    call_id: str
    content: Any
    is_error: bool = False
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPart:
    """Something that only models of `provider` read, carried verbatim: signatures, calls that the provider ran."""

    provider: str
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage:
    """Instructions of the agent."""

    parts: tuple[Text, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What the user, or the agent in the user's place, says."""

    parts: tuple[Text, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """A model's answer: text, calls, or both."""

    parts: tuple[Text | ToolCall | ProviderPart, ...]

    @property
    def text(self) -> str:
        """Return the text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Return the calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage:
    """The results of the calls of one answer, one for each, in the order of the calls."""

    parts: tuple[ToolResult, ...]


Part = Text | ToolCall | ToolResult | ProviderPart
Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What model calls cost, in tokens."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Return both together."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


def user(text: str, /) -> UserMessage:
    """Return a user message of one text."""
    return UserMessage(parts=(Text(text=text),))


def assistant(text: str = "", /, *calls: ToolCall) -> AssistantMessage:
    """Return an answer of a text and calls; no part for the empty text."""
    return AssistantMessage(parts=(*((Text(text=text),) if text else ()), *calls))


_ROLES: dict[type[Message], str] = {
    SystemMessage: "system",
    UserMessage: "user",
    AssistantMessage: "assistant",
    ToolMessage: "tool",
}
_MESSAGES: dict[str, type[Message]] = {role: type_ for type_, role in _ROLES.items()}
_PARTS: dict[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "user": frozenset({"text"}),
    "assistant": frozenset({"text", "call", "provider"}),
    "tool": frozenset({"result"}),
}


def to_json(message: Message, /) -> dict[str, Any]:
    """Return the JSON value of a message."""
    schema = 2 if any(isinstance(part, ToolResult) and part.media for part in message.parts) else 1
    return {"schema": schema, "role": _ROLES[type(message)], "parts": [_part_to_json(part) for part in message.parts]}


def _part_to_json(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case ToolCall():
            return {"type": "call", "id": part.id, "name": part.name, "arguments": part.arguments}
        case ToolResult():
            media = {"media": [media_to_json(one) for one in part.media]} if part.media else {}
            found = {"type": "result", "call_id": part.call_id, "content": part.content, "is_error": part.is_error}
            return {**found, **media}
        case ProviderPart():
            return {"type": "provider", "provider": part.provider, "content": part.content}


def from_json(value: Any, /) -> Message:
    """Return the message of a JSON value; StoreTooNew for a newer schema, CorruptRecord for what is no message."""
    found = _object(value, "a message")
    schema, role = found.get("schema"), found.get("role")
    if isinstance(schema, int) and schema > SCHEMA:
        message = f"a message has schema {schema} and this version reads up to {SCHEMA}; upgrade this worker"
        raise StoreTooNew(message)
    if schema not in (1, 2):
        raise _unreadable(f"a message has schema {schema!r:.40}")
    parts = found.get("parts")
    if not isinstance(role, str) or role not in _MESSAGES:
        raise _unreadable(f"a message has the role {role!r:.40}")
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise _unreadable(f"a message of role {role} has no list of parts")
    read: Callable[..., Message] = _MESSAGES[role]  # which parts a role takes is checked part by part
    return read(parts=tuple(_part_from_json(part, role) for part in parts))


def _part_from_json(value: Any, role: str) -> Part:
    found = _object(value, f"a part of a message of role {role}")
    type_ = found.get("type")
    if type_ not in _PARTS[role]:
        raise _unreadable(f"a message of role {role} has a part of type {type_!r:.40}")
    try:
        match type_:
            case "text":
                return Text(text=_text(found, "text"))
            case "call":
                return ToolCall(id=_text(found, "id"), name=_text(found, "name"), arguments=found["arguments"])
            case "result":
                return ToolResult(
                    call_id=_text(found, "call_id"),
                    content=found["content"],
                    is_error=found["is_error"] is True,
                    media=media_from_json(found.get("media", ())),
                )
            case _:
                return ProviderPart(provider=_text(found, "provider"), content=found["content"])
    except KeyError as error:
        raise _unreadable(f"a part of type {type_} has no field {error.args[0]!r}") from None


def media_to_json(media: Media, /) -> dict[str, Any]:
    """Return the JSON value of media: its data as base64 text, what is empty left out."""
    found = {name: getattr(media, name) for name in ("media_type", "url", "name", "blob", "size")}
    found["data"] = base64.b64encode(media.data).decode() if not media.blob else ""
    return {name: value for name, value in found.items() if value}


def media_from_json(value: Any, /) -> tuple[Media, ...]:
    """Return the media of its JSON values."""
    try:
        return tuple(
            Media(
                **{name: str(one[name]) for name in ("media_type", "url", "name", "blob") if name in one},
                data=base64.b64decode(one.get("data", ""), validate=True),
                size=int(one.get("size", 0)),
            )
            for one in value
        )
    except (TypeError, ValueError, AttributeError):
        what = "media of a tool's result"
        raise _unreadable(what) from None


def usage_to_json(usage: Usage, /) -> dict[str, int]:
    """Return the JSON value of a usage."""
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}


def usage_from_json(value: Any, /) -> Usage:
    """Return the usage of a JSON value; what is missing counts as zero."""
    found = _object(value, "a usage")
    return Usage(
        input_tokens=int(found.get("input_tokens", 0)),
        output_tokens=int(found.get("output_tokens", 0)),
    )


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _unreadable(f"{what} is of type {type(value).__name__}")
    return value


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found[name]
    if not isinstance(value, str):
        raise _unreadable(f"field {name!r} of a part is of type {type(value).__name__}")
    return value


def _unreadable(what: str) -> CorruptRecord:
    return CorruptRecord(f"{what}, which this version cannot read; `tenure show --events` prints the journal")
