"""Bringing held calls to their results: side by side, each with a record of its own, doubt first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, Protocol

import anyio

from tenure.agent.agent import Agent
from tenure.agent.approval import Approvals, wait_for_people
from tenure.agent.doubt import Doubt, outcome_unknown
from tenure.agent.output import output_of
from tenure.agent.tool import NOT_DONE, Effect, Tool, ToolContext
from tenure.calling import Threads, cancelled_from_outside
from tenure.core import canonical
from tenure.core.journal import Event
from tenure.core.loop import AgentState
from tenure.core.messages import ToolCall
from tenure.core.saying import calls_started, result, result_error
from tenure.current import CurrentRun, running
from tenure.errors import InvalidContent, RunDeclined, said
from tenure.lease import Lease
from tenure.retry import of_the_attempt

DECLINED_S = 15.0
MAX_ERROR_CHARACTERS = 16_000
MAX_RESULT_BYTES = canonical.MAX_EVENT_BYTES - 1024
"""An event has a name and a scope beside the value."""


Record = tuple[bytes, tuple[bytes, ...]]
"""The event of a call's result, and the blobs that it names."""


class Committing(Protocol):
    """What writes events and folds them once they have landed."""

    async def __call__(self, events: Sequence[bytes], /, *, blobs: Sequence[bytes] = ()) -> None:
        """Return when the events have landed, with the blobs that they name."""
        ...


async def decline(lease: Lease, why: str, cause: Exception | None = None) -> NoReturn:
    """Hand the run back, for a worker that can go on with it, and raise RunDeclined."""
    run = lease.run
    await lease.hand_back(after=DECLINED_S)
    message = f"run {run.id} was handed back: {why}; leave it to a worker that can, or start one"
    raise RunDeclined(message, run=lease.run) from cause


class Calls:
    """The calls of one attempt."""

    def __init__(
        self,
        agent: Agent[Any],
        lease: Lease,
        state: AgentState,
        /,
        *,
        commit: Committing,
        land: Callable[[Sequence[Event]], Awaitable[None]],
        threads: Threads,
    ) -> None:
        self._agent = agent
        self._lease = lease
        self._state = state
        self._commit = commit
        self._threads = threads
        self._doubt = Doubt(lease, state, land)
        self._approvals = Approvals(agent, lease, state, land)

    def _tool(self, call: ToolCall) -> Tool[..., Any]:
        return self._agent.tools[call.name]

    async def settle(self, calls: Sequence[ToolCall], /) -> None:
        """Return when each call has its result; RunSuspended if a person has to say how one ended."""
        for call in calls:
            # It could be made when it was held, so this worker is of another shape than the one that asked.
            if (why := self._agent.refusal(call)) is not None:
                await self._threads.ended()
                await decline(self._lease, f"call {call.id} cannot be made here ({why[0]})")
        await self._approvals.recall(calls)
        waiting = [call for call in calls if self._approvals.wanted(call)]
        sorted_ = self._sort([call for call in calls if call not in waiting])
        again = await self._doubt.decided(sorted_[Effect.ASK])
        again += await self._approvals.decided(waiting)
        first = [outcome_unknown(call.id, scope=self._state.scope) for call in sorted_[Effect.FAIL]]
        if marked := [call.id for call in sorted_[Effect.REPEAT] if self._tool(call).marks]:
            first.append(calls_started(marked, scope=self._state.scope))
        if first:
            await self._commit(first)
        made = [(self._make, call) for call in (*sorted_[Effect.REPEAT], *again)]
        looked = [(self._look, call) for call in sorted_[Effect.RECONCILE]]
        waiting = [call for call in waiting if call in self._state.open and call.id not in self._state.started]
        if waiting and (made or looked):
            await self._approvals.announce(waiting)
        await self._side_by_side([*made, *looked])
        if self._state.open:
            requests, contents = await self._approvals.requests(waiting)
            doubtful = [call for call in self._state.open if call not in waiting]
            requests |= self._doubt.requests(doubtful)
            contents |= self._doubt.contents(doubtful)
            # A thread of a tool that timed out would run beside the successor.
            await self._threads.ended()
            await wait_for_people(self._lease, requests, contents)

    def _sort(self, calls: Sequence[ToolCall]) -> dict[Effect, list[ToolCall]]:
        """What is to be done about each call; a call that is not in doubt is simply made."""
        sorted_: dict[Effect, list[ToolCall]] = {effect: [] for effect in Effect}
        doubtful = self._state.in_doubt
        for call in calls:
            if self._doubt.was_asked(call):
                sorted_[Effect.ASK].append(call)
            else:
                sorted_[self._tool(call).policy if call.id in doubtful else Effect.REPEAT].append(call)
        return sorted_

    async def _side_by_side(self, work: Sequence[tuple[Callable[[ToolCall], Awaitable[None]], ToolCall]]) -> None:
        """Each call ends in a record of its own; what ends the attempt is raised bare, when all of them have ended."""
        failures: list[Exception] = []

        limit = anyio.Semaphore(self._agent.parallel or len(work) or 1)

        async def one(fn: Callable[[ToolCall], Awaitable[None]], call: ToolCall) -> None:
            try:
                # What was announced is made at once: kept waiting, it would be in doubt after a death.
                async with limit if call.id not in self._state.started else nullcontext():
                    await fn(call)
            except Exception as error:  # noqa: BLE001 - it is raised below, outside the group that would wrap it
                # The others go on to their records: cut in the middle, they would be made again, or be in doubt. What
                # a lost lease or a drain cuts is cut from outside.
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for fn, call in work:
                tasks.start_soon(one, fn, call)
        if failures:
            raise failures[0]

    async def _make(self, call: ToolCall) -> None:
        event, blobs = await self._result(call)
        await self._commit([event], blobs=blobs)

    async def _look(self, call: ToolCall) -> None:
        tool, scope = self._tool(call), self._state.scope
        try:
            self._lease.check()
            with running(self._current(call)), anyio.fail_after(tool.timeout):
                arguments = tool.check(self._approvals.arguments(call))
                value = await tool.settle(self._context(call), arguments, threads=self._threads)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows how the call ended
            self._raise_if_of_the_attempt(error)
            return  # and a person is asked
        if value is NOT_DONE:
            await self._commit([calls_started([call.id], scope=scope)])
            await self._make(call)
        else:
            event, blobs = self._stored(call, value)
            await self._commit([event], blobs=blobs)

    def _context(self, call: ToolCall) -> ToolContext:
        run = self._lease.run
        return ToolContext(
            run_id=run.id,
            call_id=call.id,
            attempt=run.attempt,
            token=self._lease.token,
            scope=self._state.scope,
        )

    def _current(self, call: ToolCall) -> CurrentRun:
        return CurrentRun(lease=self._lease, call_id=call.id, scope=self._state.scope)

    async def _result(self, call: ToolCall) -> Record:
        """The record of a call: a tool's failure is a value like its success."""
        tool = self._tool(call)
        try:
            arguments = tool.check(self._approvals.arguments(call))
            value = await tool.retry.call(lambda: self._attempt(tool, call, arguments))
        except Exception as error:  # noqa: BLE001 - a tool's failure is its result
            self._raise_if_of_the_attempt(error)
            return self._error(call, type(error).__name__, said(error))
        except anyio.get_cancelled_exc_class():
            if cancelled_from_outside():
                raise
            # Nobody cancelled this call: something inside the tool was, and its result is that.
            return self._error(call, "Cancelled", "the tool cancelled itself")
        return self._stored(call, value)

    async def _attempt(self, tool: Tool[..., Any], call: ToolCall, arguments: Mapping[str, Any]) -> Any:
        self._lease.check()
        with running(self._current(call)), anyio.move_on_after(tool.timeout):
            return await tool.invoke(self._context(call), arguments, threads=self._threads)
        unknown = "; whether it took effect is not known" if tool.marks else ""
        message = f"no answer within {tool.timeout} s{unknown}"
        raise TimeoutError(message)

    def _raise_if_of_the_attempt(self, error: Exception) -> None:
        if (found := of_the_attempt(error, self._lease.run.id)) is not None:
            raise found from None

    def _stored(self, call: ToolCall, value: Any) -> Record:
        tool, scope = self._tool(call), self._state.scope
        cap = self._agent.max_output if tool.max_output is None else tool.max_output
        try:
            # Alone first, so that a path begins at the result.
            found = output_of(value, tool.returns, limit=MAX_RESULT_BYTES, cap=cap, redacted=self._lease.redacted)
            return result(call.id, found.content, scope=scope, media=found.media, whole=found.whole), found.blobs
        except InvalidContent as error:
            return self._error(call, "InvalidContent", error.message)
        except Exception as error:  # noqa: BLE001 - the call was made: without a record it would be made again
            return self._error(call, "InvalidContent", f"its result type cannot be stored ({type(error).__name__})")

    def _error(self, call: ToolCall, type_: str, message: str) -> Record:
        message = str(self._lease.redacted(message))[:MAX_ERROR_CHARACTERS]  # half a secret has not the form of one
        return result_error(call.id, type_, message, scope=self._state.scope), ()
