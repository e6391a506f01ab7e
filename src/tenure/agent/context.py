"""Context policies: what becomes of a conversation that grows long, applied at the step boundary and journaled.

A policy is shown the conversation and returns another one, or None to leave it. What it returns is written as
`context/replace` before the model sees it, and never computed again: a successor reads it. The built-in ones wait until
there is enough to gain, because each replacement writes the conversation that is left once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tenure.agent.model import Model, ModelReply
from tenure.core import canonical
from tenure.core.history import turns
from tenure.core.messages import Message, Text, ToolMessage, ToolResult, UserMessage, to_json, user

SUMMARY = "Summary of the conversation so far:\n"
"""What the part begins with in which a summary stands; the next summary takes its place."""


class Asking(Protocol):
    """Asks a model on behalf of a policy; the answer is recorded, and replayed in the next attempt."""

    async def __call__(
        self, messages: Sequence[Message], /, *, model: Model | None = None, instructions: str = ""
    ) -> ModelReply:
        """Return the answer of `model`, the agent's own if none is named."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a policy is shown: the conversation without the instructions, before the question of `step` is asked.

    `ask` calls a model; `tokens` is an estimate from the bytes, of four to a token.
    """

    messages: tuple[Message, ...]
    run_id: str
    scope: str
    step: int
    ask: Asking = field(repr=False)

    @property
    def tokens(self) -> int:
        """Return about how many tokens the conversation has."""
        return sum(size(message) for message in self.messages) // 4


ContextPolicy = Callable[[Context], Sequence[Message] | Awaitable[Sequence[Message] | None] | None]
"""May be async. Messages that it hands on are kept with their origin; those that it makes are journaled as its own."""


def size(message: Message, /) -> int:
    """Return the bytes of a message."""
    return len(canonical.encode(to_json(message), depth=canonical.RESTATED_DEPTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Keeps the prompt and the last `keep` turns, once there are more than `turns`.

    A turn is an answer and its results; it is kept whole or not at all, so that each call keeps its result.
    """

    turns: int = 40
    keep: int = 20

    def __call__(self, context: Context, /) -> Sequence[Message] | None:
        """Return the window, None while everything fits."""
        head, *rest = turns(context.messages)
        if len(rest) <= self.turns:
            return None
        return [*head, *(message for turn in rest[-self.keep :] for message in turn)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarise:
    """Has a model sum up all but the last `keep` turns, once the conversation has more than `tokens` tokens.

    `model` is the agent's own if none is named. The summary stands beside the prompt in the first message.
    """

    tokens: int = 50_000
    keep: int = 4
    model: Model | None = None
    instructions: str = (
        "You sum up the work of an agent for the agent itself. Keep every fact, decision, name, number and open point "
        "that it needs to go on. Answer with the summary alone."
    )

    async def __call__(self, context: Context, /) -> Sequence[Message] | None:
        """Return the conversation with its summary, None while it is short."""
        head, *rest = turns(context.messages)
        if len(rest) <= self.keep or context.tokens <= self.tokens:
            return None
        first, old = head[0], rest[: len(rest) - self.keep]
        told = [message for turn in [head, *old] for message in turn]
        text = canonical.encode([to_json(m) for m in told], depth=canonical.RESTATED_DEPTH).decode()
        reply = await context.ask(
            [user(f"Sum up this conversation, given as JSON:\n{text}")],
            model=self.model,
            instructions=self.instructions,
        )
        kept = [part for part in first.parts if isinstance(part, Text) and not part.text.startswith(SUMMARY)]
        begin = UserMessage(parts=(*kept, Text(text=SUMMARY + reply.message.text)))
        return [begin, *head[1:], *(message for turn in rest[len(old) :] for message in turn)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResults:
    """Cuts tool results of more than `over` bytes, but for the last `keep` turns, once that saves `gain` bytes.

    The model is shown the beginning of a result, its size and its digest; the whole one stays in the journal.
    """

    over: int = 2_000
    keep: int = 2
    gain: int = 32_000

    def __call__(self, context: Context, /) -> Sequence[Message] | None:
        """Return the conversation with shorter results, None while there is little to gain."""
        head, *rest = turns(context.messages)
        early = max(0, len(rest) - self.keep)
        found: list[Message] = list(head)
        saved = 0
        for number, turn in enumerate(rest):
            for message in turn:
                if number < early and isinstance(message, ToolMessage):
                    parts = tuple(self._short(part) for part in message.parts)
                    if parts != message.parts:
                        short = replace(message, parts=parts)
                        saved += size(message) - size(short)
                        found.append(short)
                        continue
                found.append(message)
        return found if saved >= max(1, self.gain) else None

    def _short(self, part: ToolResult) -> ToolResult:
        if part.media:
            part = replace(part, media=())  # as its content says, it was shown before
        data = _bytes(part.content)
        if len(data) <= self.over or (isinstance(part.content, str) and part.content.endswith(_CUT_END)):
            return part
        shown = data[: self.over // 2].decode(errors="ignore")
        digest = canonical.digest(data)
        return replace(part, content=f"{shown}... (cut: {len(data)} bytes in all, sha256 {digest[:16]}{_CUT_END}")


_CUT_END = ", the rest was shown before)"


def _bytes(content: Any) -> bytes:
    return content.encode() if isinstance(content, str) else canonical.encode(content)
