"""What every provider asks of a conversation: one result for each call, right after the answer that holds it."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage


def flaw(messages: Sequence[Message], /) -> str:
    """Return why no model takes these messages before its next answer; empty if every one does."""
    if not messages or not isinstance(messages[0], UserMessage):
        return "it does not begin with a user message"
    seen: set[str] = set()
    for index, message in enumerate(messages):
        before = messages[index - 1] if index else None
        held = [call.id for call in before.calls] if isinstance(before, AssistantMessage) else []
        results = [part.call_id for part in message.parts] if isinstance(message, ToolMessage) else []
        if isinstance(message, SystemMessage):
            return f"message {index} is of role system; instructions belong to the agent"
        if isinstance(message, ToolMessage) and not held:
            return f"message {index} has results of calls that no answer before it holds"
        if results != held:
            return f"message {index} does not answer the calls before it one by one ({', '.join(held)})"
        if isinstance(message, AssistantMessage):
            twice = [call.id for call in message.calls if call.id in seen]
            if twice:
                return f"call {twice[0]} stands in two answers"
            seen.update(call.id for call in message.calls)
    if isinstance(messages[-1], AssistantMessage):
        return "it ends with an answer, so there is nothing to ask"
    return ""


def turns(messages: Sequence[Message], /) -> list[list[Message]]:
    """Return what stands before the first answer, then each answer with what follows it up to the next."""
    found: list[list[Message]] = [[]]
    for message in messages:
        if isinstance(message, AssistantMessage):
            found.append([])
        found[-1].append(message)
    return found
