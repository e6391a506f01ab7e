"""The events that an agent writes: the question, the answer with the calls that it holds, what calls come to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tenure.core import journal, restating
from tenure.core.journal import State
from tenure.core.lineage import CONTEXT, Block
from tenure.core.loop import TOOL, AgentState
from tenure.core.messages import AssistantMessage, Media, ToolCall, Usage, media_to_json, to_json, usage_to_json
from tenure.errors import NotAllowed

ASSISTANT = "assistant/message"
OUTPUT_REFUSED = "output/refused"
REQUEST = "model/request"

_CALL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_OURS = re.compile(r"call-\d+-\d")
"""What ids of our own begin with; a model that gives such a one is given another."""


def request(state: AgentState, /, *, system: str, tools: str) -> bytes:
    """Return the event that says what the model is shown: the blocks that are new since the last request, by digest.

    `digest` covers all blocks up to here, `system` and `tools` are the digests of the instructions and the tools.
    """
    return journal.event(
        REQUEST,
        scope=state.scope,
        name=f"request:{state.step + 1}",
        step=state.step + 1,
        blocks=state.lineage.untold(),
        count=len(state.lineage.blocks),
        digest=state.lineage.digest,
        system=system,
        tools=tools,
    )


def distinct(message: AssistantMessage, state: AgentState, /) -> AssistantMessage:
    """Return the answer with ids that name one call of the run each, in an alphabet that every key and command takes.

    Ids that do not get one of our own, here and once: from the checkpoint on they are the calls' identity. A state that
    has forgotten ids takes none of the model's: an id with the number of the answer was never given before.
    """
    taken = set(state.seen)
    parts: list[Any] = []
    for index, part in enumerate(message.parts):
        if not isinstance(part, ToolCall):
            parts.append(part)
            continue
        kept = not state.forgets and _CALL_ID.match(part.id) and not _OURS.match(part.id)
        call_id, n = part.id if kept else "", 0
        while not call_id or call_id in taken:
            call_id = f"call-{state.step + 1}-{index}" + (f"-{n}" if n else "")
            n += 1
        taken.add(call_id)
        parts.append(replace(part, id=call_id))
    return AssistantMessage(parts=tuple(parts))


def answer(
    state: AgentState,
    message: AssistantMessage,
    /,
    *,
    usage: Usage,
    model: str,
    finish: str = "",
    micros: int | None = None,
    refused: Mapping[str, tuple[str, str]],
) -> list[bytes]:
    """Return the events of a step's checkpoint: the answer, and the error results of calls that cannot be made.

    `refused` is call id to (type, message), `micros` what the answer cost, if that is known. A call that is held
    without such a result can be made by any worker of the same shape, which is how another worker knows that it should
    decline.
    """
    if state.open:
        message_ = f"calls {', '.join(c.id for c in state.open)} have no result; no model takes such a history"
        raise NotAllowed(message_)
    first = journal.event(
        ASSISTANT,
        scope=state.scope,
        name=f"model:{state.step + 1}",
        step=state.step + 1,
        model=model,
        finish=finish,
        message=to_json(message),
        usage=usage_to_json(usage),
        held=[call.id for call in message.calls if call.id not in refused],
        **_cost(micros),
    )
    return [first, *(result_error(call_id, *why, scope=state.scope) for call_id, why in refused.items())]


def result(call_id: str, value: Any, /, *, scope: str = "", media: Sequence[Media] = (), whole: str = "") -> bytes:
    """Return the record of a call that succeeded; InvalidContent if the value cannot be stored.

    `whole` is the digest of the blob that holds all of a value that was cut.
    """
    more: dict[str, Any] = {"media": [media_to_json(one) for one in media]} if media else {}
    more |= {"whole": whole} if whole else {}
    return journal.event(journal.RECORD, scope=scope, name=f"{TOOL}{call_id}", value=value, **more)


def result_error(call_id: str, type_: str, message: str, /, *, scope: str = "") -> bytes:
    """Return the record of a call that failed; the model is shown type and message."""
    error = {"type": type_, "message": message}
    return journal.event(journal.RECORD, scope=scope, name=f"{TOOL}{call_id}", error=error)


def calls_started(call_ids: Iterable[str], /, *, scope: str = "") -> bytes:
    """Return the event that says, before anything happens, that these calls are about to be made."""
    return journal.event(journal.CALL_STARTED, scope=scope, names=[f"{TOOL}{call_id}" for call_id in call_ids])


def output_refused(problem: str, /, *, scope: str = "") -> bytes:
    """Return the event that tells the model what is wrong with its final answer."""
    message = f"Your answer does not fit the schema of the output: {problem}. Answer again with JSON that fits it."
    return journal.event(OUTPUT_REFUSED, scope=scope, message=message)


def _cost(micros: int | None) -> dict[str, int]:
    return {} if micros is None else {"micros": micros}


def aside(
    name: str, message: AssistantMessage, /, *, scope: str, usage: Usage, model: str, micros: int | None = None
) -> bytes:
    """Return the record of an answer that a context policy was given; its name begins with `context:`."""
    value = {"message": to_json(message), "usage": usage_to_json(usage), "model": model, **_cost(micros)}
    return journal.event(journal.RECORD, scope=scope, name=name, value=value)


def replacement(
    state: AgentState, run: State, /, *, policy: str, index: int, dropped: Iterable[Block], base: bool
) -> bytes:
    """Return the event by which a policy's conversation takes the place of the one before.

    `state` is the state after it, restated wholly: whoever folds needs nothing that stands before this event. `base`
    restates what the run holds beside its conversation as well.
    """
    return journal.restatement(
        journal.CONTEXT_REPLACE,
        scope=state.scope,
        name=f"{CONTEXT}{state.step + 1}.{index}",
        step=state.step + 1,
        policy=policy,
        dropped=[{"from": list(block.sources), "digest": block.digest} for block in dropped],
        agent=restating.agent(state, forget=True),
        **({"state": restating.run(run, conversation=True)} if base else {}),
    )
