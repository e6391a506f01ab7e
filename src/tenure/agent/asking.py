"""Asking a model: what it may cost is set aside first, and what went wrong is tried again where that may help."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from tenure.agent.model import Delta, Model, ModelReply, ModelRequest, StreamingModel
from tenure.agent.trouble import patiently, turned_away
from tenure.core.budget import Exceeded, against, held_before_ms, reservation, reserved, returned
from tenure.core.loop import AgentState
from tenure.core.messages import AssistantMessage
from tenure.errors import NotAllowed, OutOfBudget
from tenure.lease import Lease

if TYPE_CHECKING:
    from tenure.agent.agent import Agent


class Watcher(Protocol):
    """Who is shown a run while it goes on."""

    async def delta(self, piece: Delta, /) -> None:
        """Take a piece of the answer that is on its way."""
        ...

    async def landed(self) -> None:
        """Take note that the journal has grown."""
        ...


class Committing(Protocol):
    """What writes events and folds them once they have landed."""

    async def __call__(self, events: Sequence[bytes], /) -> None:
        """Return when the events have landed."""
        ...


class Asking:
    """The questions of one attempt."""

    def __init__(
        self,
        agent: Agent[Any],
        lease: Lease,
        state: AgentState,
        /,
        *,
        commit: Committing,
        watcher: Watcher | None = None,
    ) -> None:
        self._agent = agent
        self._lease = lease
        self._state = state
        self._commit = commit
        self._watcher = watcher
        # Fixed here: a lease that is continued in another history of the store has one grant more in the record.
        self._before_ms = held_before_ms(lease.run, lease.state.held_before)
        self._began_s = anyio.current_time()

    @property
    def _held_ms(self) -> int:
        return self._before_ms + round((anyio.current_time() - self._began_s) * 1000)

    async def reply(self, request: ModelRequest, /, *, model: Model | None = None) -> ModelReply:
        """Return the answer of `model`, the agent's own if none is named; OutOfBudget before anything is sent."""
        aside, model = model is not None, model or self._agent.model
        self._lease.check()
        await self._reserve(model, step=request.step, turn=not aside)
        question = _Question(request=request, model=model, shown=not aside)
        budget = self._agent.budget
        wall_s = None if budget is None or budget.wall_time is None else budget.wall_time
        with anyio.move_on_after(None if wall_s is None else max(0.0, wall_s - self._held_ms / 1000)):
            try:
                return await patiently(self._agent.retry, partial(self._once, question))
            except Exception:
                if not question.may_cost:
                    await self._return(step=request.step, turn=not aside)
                raise
        message = f"wall_time: {wall_s} s are used, and the model had not answered; raise the budget"
        raise self.out(Exceeded(budget="wall_time", message=message))

    def check(self) -> None:
        """Raise OutOfBudget if nothing may be done any more, whether or not a model is to be asked."""
        budget, run = self._agent.budget, self._lease.run
        if budget is not None and budget.attempts is not None and run.attempt > budget.attempts:
            message = f"attempts: this is attempt {run.attempt} of {budget.attempts}; `tenure show {run.id}` says why"
            raise self.out(Exceeded(budget="attempts", message=message))

    def micros(self, model: Model, reply: ModelReply, /) -> int | None:
        """Return what an answer cost in millionths, None without a price."""
        return None if self._agent.budget is None else self._agent.budget.micros(model.name, reply.usage)

    def too_many(self, message: AssistantMessage, /) -> dict[str, tuple[str, str]]:
        """Return why calls of an answer are not made: those above the limit, in order; all others still are."""
        limit = self._agent.budget.tool_calls if self._agent.budget is not None else None
        if limit is None:
            return {}
        left = max(0, limit - self._state.spent.tool_calls)
        why = "OutOfBudget", f"the run may make {limit} tool calls, and this would be one more"
        return {call.id: why for call in message.calls[left:]}

    async def _reserve(self, model: Model, *, step: int, turn: bool) -> None:
        if (budget := self._agent.budget) is None:
            return
        spent = self._state.spent
        if spent.reserved is not None:
            spent = spent.given_up()
        asks = reservation(budget, spent, model.name)
        found = against(budget, spent, asks, attempt=self._lease.run.attempt, held_ms=self._held_ms, turn=turn)
        if found is not None:
            raise self.out(found)
        # The fence: who lost the run is refused here, and asks nothing.
        await self._commit([reserved(asks, scope=self._state.scope, step=step, turn=turn)])

    async def _return(self, *, step: int, turn: bool) -> None:
        # Without a budget nothing was set aside here: what is still there is of a holder that died, and stays spent.
        if self._agent.budget is not None and self._state.spent.reserved is not None and self._lease.lost is None:
            await self._commit([returned(scope=self._state.scope, step=step, turn=turn)])

    def out(self, found: Exceeded, /) -> OutOfBudget:
        """Return the error for a limit that is reached."""
        run = self._lease.run
        return OutOfBudget(f"run {run.id} is out of budget: {found.message}", budget=found.budget, run=run)

    async def _once(self, question: _Question) -> ModelReply:
        self._lease.check()
        request, model = question.request, question.model
        try:
            with anyio.fail_after(self._agent.model_timeout):
                if not question.shown or self._watcher is None or not isinstance(model, StreamingModel):
                    return _whole(model, await model.ask(request))
                return await self._streamed(question, model, self._watcher)
        except Exception as error:
            question.may_cost = question.may_cost or not turned_away(error)
            raise

    async def _streamed(self, question: _Question, model: Any, watcher: Watcher) -> ModelReply:
        reply: ModelReply | None = None
        pieces: Any = model.ask_stream(question.request)
        async with aclosing(pieces) if hasattr(pieces, "aclose") else nullcontext():
            async for piece in pieces:
                question.may_cost = True
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    await watcher.delta(piece)
        if reply is None:
            message = f"model {model.name} ended its stream without a whole answer; yield a ModelReply last"
            raise NotAllowed(message)
        return reply


def _whole(model: Model, reply: object) -> ModelReply:
    if not isinstance(reply, ModelReply) or not isinstance(reply.message, AssistantMessage):
        what = type(reply.message if isinstance(reply, ModelReply) else reply).__name__
        message = f"model {model.name} answered with {what}; its ask returns a ModelReply with an AssistantMessage"
        raise NotAllowed(message)
    return reply


@dataclass(slots=True, kw_only=True)
class _Question:
    """One question over all its tries; it may cost as soon as one of them was not turned away before its answer."""

    request: ModelRequest
    model: Model
    shown: bool
    may_cost: bool = False
