"""A model without a network: it decides by rules, from what it has read so far, what to read next and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from examples.license_audit.conclusion import conclude
from examples.license_audit.conversation import Conversation
from tenure.agent.model import ModelReply, ModelRequest
from tenure.core import canonical
from tenure.core.messages import ToolCall, Usage, assistant

NAME = "license-rules"

Wish = tuple[str, dict[str, Any]]


class RuleModel:
    """The Model port by rules: the same conversation has the same answer, in whichever process it is asked."""

    name = NAME

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return the next calls, all that can be made side by side, or the finding as JSON."""
        found = Conversation.of(request.messages)
        calls = [
            ToolCall(id=f"{request.step}.{number}-{name}", name=name, arguments={"dist": found.dist, **arguments})
            for number, (name, arguments) in enumerate(next_calls(found), start=1)
        ]
        text = "" if calls else canonical.encode(conclude(found).model_dump(mode="json")).decode()
        message = assistant(text, *calls)
        seen = sum(len(str(part).split()) for one in request.messages for part in one.parts)
        usage = Usage(input_tokens=seen, output_tokens=len(text.split()) + 8 * len(calls))
        return ModelReply(message=message, usage=usage, finish="calls" if calls else "stop")


def next_calls(found: Conversation, /) -> list[Wish]:
    """Return what to call next; nothing when enough was read."""
    if not found.asked:
        return [("read_metadata", {}), ("list_files", {})]
    return list(_reads(found)) or list(_comparisons(found)) or _last_resort(found)


def _reads(found: Conversation) -> Iterator[Wish]:
    """Whatever has to be looked into and was not: all of it at once."""
    unread = [path for path in found.texts if path not in found.pages and path not in found.failed]
    yield from (("read_license", {"path": path}) for path in unread)
    metadata = found.metadata_file
    if found.metadata is None and metadata:
        if metadata not in found.pages and metadata not in found.failed:
            yield "read_license", {"path": metadata}
        elif (start := found.going_on(metadata)) is not None:
            yield "read_license", {"path": metadata, "start": start}
    for path in found.texts:
        # A long preface (authors, history) may stand before the first word about a licence.
        if path in found.pages and not found.speaks(path) and (start := found.going_on(path)) is not None:
            yield "read_license", {"path": path, "start": start}


def _comparisons(found: Conversation) -> Iterator[Wish]:
    """Texts that sound like a licence are compared with the known ones, as a whole."""
    for path in found.texts:
        if path in found.pages and path not in found.matches and path not in found.failed and found.speaks(path):
            yield "match_text", {"path": path}


def _last_resort(found: Conversation) -> list[Wish]:
    """Where neither metadata nor texts say anything, the sources may."""
    said = conclude(found)
    return [("find_mentions", {})] if said.confidence == "none" and found.mentions is None else []
