"""Applying an agent's context policies at the step boundary: what they return is journaled, then shown."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tenure.agent.agent import Agent
from tenure.agent.asking import Asking
from tenure.agent.context import CompactResults, Context, ContextPolicy, SlidingWindow, Summarise
from tenure.agent.model import Model, ModelReply, ModelRequest
from tenure.core import canonical, history
from tenure.core.lineage import CONTEXT, Block, Lineage, block_digest
from tenure.core.loop import AgentState
from tenure.core.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    from_json,
    to_json,
    usage_from_json,
)
from tenure.core.run import Run
from tenure.core.saying import aside, replacement
from tenure.errors import InvalidContent, LineageBroken, NotAllowed
from tenure.lease import Lease

_READ_ONLY = (SlidingWindow, Summarise, CompactResults)
"""Policies that are known to leave what they are shown as it is, and need no copy of it."""


MAX_LEFT_BYTES = canonical.MAX_EVENT_BYTES - 64 * 1024
"""An event has the rest of the state beside the conversation."""


class Committing(Protocol):
    """What writes events and folds them once they have landed."""

    async def __call__(self, events: Sequence[bytes], /, *, base: bool = False) -> None:
        """Return when the events have landed."""
        ...


class Fitting:
    """The policies of one attempt."""

    def __init__(
        self,
        agent: Agent[Any],
        lease: Lease,
        state: AgentState,
        /,
        *,
        commit: Committing,
        asking: Asking,
        ready: Callable[[], Awaitable[None]],
        whole: bool,
    ) -> None:
        self._agent = agent
        self._lease = lease
        self._state = state
        self._commit = commit
        self._asking = asking
        self._ready = ready
        self._whole = whole
        self._done = 0

    async def replaced(self) -> bool:
        """Apply each policy that was not applied before this step; return whether one changed the conversation."""
        state, step = self._state, self._state.step + 1
        if self._done == step:
            return False
        changed = False
        # Those up to the last one whose replacement has landed are done, in whichever attempt that was.
        begin = state.fitted[1] if state.fitted[0] == step else 0
        for index, policy in enumerate(self._agent.context[begin:], begin):
            messages = tuple(state.messages)
            given = messages if isinstance(policy, _READ_ONLY) else copy.deepcopy(messages)
            found: Any = policy(self._context(given, index))
            if inspect.isawaitable(found):
                found = await found
            if found is not None and tuple(found) != messages:
                await self._replace(policy, index, given, tuple(found))
                changed = True
        self._done = step
        return changed

    def _context(self, messages: tuple[Message, ...], index: int) -> Context:
        asked = 0

        async def ask(
            prompt: Sequence[Message], /, *, model: Model | None = None, instructions: str = ""
        ) -> ModelReply:
            nonlocal asked
            name = f"{CONTEXT}{self._state.step + 1}.{index}.{asked}"
            asked += 1
            return await self._aside(name, prompt, model or self._agent.model, instructions)

        scope, step = self._state.scope, self._state.step + 1
        return Context(messages=messages, run_id=self._lease.run.id, scope=scope, step=step, ask=ask)

    async def _aside(self, name: str, prompt: Sequence[Message], model: Model, instructions: str) -> ModelReply:
        if (value := self._state.asides.get(name)) is not None:
            message = from_json(value["message"])
            assert isinstance(message, AssistantMessage)  # noqa: S101 - it was written by the line below
            return ModelReply(message=message, usage=usage_from_json(value["usage"]))
        run, state = self._lease.run, self._state
        system = (SystemMessage(parts=(Text(text=instructions),)),) if instructions else ()
        request = ModelRequest(
            messages=(*system, *prompt),
            run_id=run.id,
            scope=state.scope,
            step=state.step + 1,
            attempt=run.attempt,
            aside=name,
        )
        reply = await self._asking.reply(request, model=model)
        # A summary without its calls: nobody would make them.
        message = AssistantMessage(parts=tuple(p for p in reply.message.parts if isinstance(p, Text)))
        micros = self._asking.micros(model, reply)
        await self._commit(
            [aside(name, message, scope=state.scope, usage=reply.usage, model=model.name, micros=micros)]
        )
        return replace(reply, message=message)

    async def _replace(
        self, policy: ContextPolicy, index: int, given: tuple[Message, ...], found: tuple[Message, ...]
    ) -> None:
        state, name = self._state, policy_name(policy)
        if why := history.flaw(found):
            message = f"context policy {name} returned a conversation that no model takes: {why}; keep turns whole"
            raise NotAllowed(message, run=self._lease.run)
        if made := _calls(found) - _calls(state.messages):
            message = f"context policy {name} returned call {min(made)}, which the model never made; take it out"
            raise NotAllowed(message, run=self._lease.run)
        try:
            canonical.encode([to_json(one) for one in found], depth=canonical.RESTATED_DEPTH, limit=MAX_LEFT_BYTES)
        except InvalidContent as error:
            message = f"what context policy {name} left cannot be stored ({error.message}); let it keep less"
            raise InvalidContent(message, path=error.path) from None
        await self._ready()
        label = f"{CONTEXT}{state.step + 1}.{index}"
        lineage, dropped = _derived(state.lineage, given, found, label)
        after = replace(
            state,
            messages=list(found),
            lineage=lineage,
            asides={},
            fitted=(state.step + 1, index + 1),
        )
        # A handler's steps and waits may land beside this one, and in any number: its successor reads from the start.
        base = self._whole and not state.scope
        event = replacement(after, self._lease.state, policy=name, index=index, dropped=dropped, base=base)
        await self._commit([event], base=base)


def policy_name(policy: ContextPolicy, /) -> str:
    """Return the name by which a policy is journaled."""
    return str(getattr(policy, "__name__", None) or type(policy).__name__)[:100]


def broken(found: Block | tuple[int, int], run: Run, /) -> LineageBroken:
    """Return the error for a block that the journal does not explain."""
    at, what = (found.at, f"{found.role} {found.type}") if isinstance(found, Block) else (found, "block")
    message = (
        f"run {run.id} would show its model a {what} (message {at[0]}, part {at[1]}) that its journal does not "
        "explain; something changed it where it stands: change copies, or return it from a context policy"
    )
    return LineageBroken(message, run=run)


def _calls(messages: Sequence[Message]) -> set[str]:
    return {call.id for message in messages if isinstance(message, AssistantMessage) for call in message.calls}


def _derived(
    before: Lineage, given: Sequence[Message], found: Sequence[Message], name: str
) -> tuple[Lineage, list[Block]]:
    """The lineage of what a policy returned, and the blocks that it left out.

    A part that was handed on, and says what it said, keeps its sources; everything else is the policy's own.
    """
    known: dict[tuple[str, int], Block] = {}
    for message, blocks in zip(given, before.by_message(), strict=True):
        for part, block in zip(message.parts, blocks, strict=True):
            known[block.role, id(part)] = block
    after, kept = Lineage(), set[tuple[int, int]]()
    for message in found:
        value = to_json(message)
        sources: list[tuple[str, ...]] = []
        for part, written in zip(message.parts, value["parts"], strict=True):
            origin = known.get((str(value["role"]), id(part)))
            if origin is not None and origin.at not in kept and block_digest(origin.role, written) == origin.digest:
                kept.add(origin.at)
                sources.append(origin.sources)
            else:
                sources.append((name,))
        after.add(message, sources or [(name,)])
    return after, [block for block in before.blocks if block.at not in kept]
