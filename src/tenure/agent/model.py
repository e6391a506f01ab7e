"""The model port: what an agent asks of a model, whoever offers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tenure.core.messages import AssistantMessage, Message, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model is told about a tool; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model, complete: a model keeps nothing between two.

    `output_schema` None asks for plain text, else the final answer is to be JSON of that schema. `run_id`, `scope`,
    `step` and `attempt` say for whom it is, `aside` for which context policy; `key` is the same whenever the same
    question has to be sent again.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""
    scope: str = ""
    step: int = 1
    attempt: int = 1
    aside: str = ""

    @property
    def key(self) -> str:
        """Return the idempotency key of the question."""
        return ":".join(filter(None, (self.run_id, self.scope, f"model-{self.step}", self.aside)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's whole answer; `finish` is the reason it stopped, in the provider's word."""

    message: AssistantMessage
    usage: Usage = field(default_factory=Usage)
    finish: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of an answer on its way; it is shown and not kept."""

    text: str


class Model(Protocol):
    """What an agent needs of a model; `name` is journaled with each answer."""

    @property
    def name(self) -> str:
        """Return the model's name."""
        ...

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return the answer; a cancellation point. An exception leaves the run to be recovered."""
        ...


@runtime_checkable
class StreamingModel(Protocol):
    """A model that can also show its answer while it comes."""

    def ask_stream(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelReply]:
        """Yield deltas and, last, the whole answer."""
        ...
