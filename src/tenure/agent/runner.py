"""Driving an agent under a lease: ask the stepper what is next, do it, write it down.

There is one path: fold the journal, then loop. A run that begins has a journal of one event, a run that was taken over
has a longer one.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from tenure.agent.agent import Agent, StepBoundary
from tenure.agent.asking import Asking, Watcher
from tenure.agent.calls import Calls, decline
from tenure.agent.fitting import Fitting, broken
from tenure.agent.output import Blobs
from tenure.calling import Threads
from tenure.core.journal import Event
from tenure.core.lineage import unexplained
from tenure.core.loop import (
    MAX_REPAIRS,
    AgentState,
    Ask,
    Call,
    Fail,
    Finish,
    next_action,
)
from tenure.core.messages import ToolCall
from tenure.core.saying import answer, distinct, output_refused, request
from tenure.current import CurrentRun, running
from tenure.errors import (
    CancelRequested,
    CorruptRecord,
    InvalidContent,
    OutputInvalid,
    RunQuarantined,
    RunSuspended,
    StepLimit,
    StoreTooNew,
)
from tenure.lease import Lease
from tenure.redaction import changes

Out = TypeVar("Out")


Gate = Callable[[str], AbstractAsyncContextManager[None]]
"""Lets one thing after another begin, named for people; raises, or does not come back, where nothing may begin."""


async def drive(
    agent: Agent[Out],
    lease: Lease,
    /,
    *,
    scope: str = "",
    watcher: Watcher | None = None,
    gate: Gate | None = None,
    threads: Threads | None = None,
    whole: bool = True,
) -> Out:
    """Return the agent's output, from wherever its journal stands; the caller settles the run.

    `gate` is entered around each model call, and around the calls of each answer, with what they write; `threads`
    counts the threads of tools; `whole` says that nobody but the agent records anything in the run.
    StepLimit and OutputInvalid say that the agent failed for good. RunSuspended, RunDeclined and RunQuarantined are
    raised after the run was given up. An exception of the model leaves the run as it is, to be driven again.
    """
    state = AgentState(scope=scope)
    try:
        # Nothing before the commit that restates the whole state is needed to go on.
        async for _, found in lease.events(after=max(0, lease.run.base_seq - 1)):
            state.add(found)
    except StoreTooNew as error:
        await decline(lease, error.message, error)
    except CorruptRecord as error:
        await lease.quarantine(error.message)
        message = f"run {lease.run.id} was set aside: {error.message}"
        raise RunQuarantined(message, run=lease.run) from error
    return await _Runner(agent, lease, state, watcher, gate or _gate_of(lease), threads or Threads(), whole).run()


def _gate_of(lease: Lease) -> Gate:
    """The gate of a lease that no worker drains."""

    @asynccontextmanager
    async def gate(what: str, /) -> AsyncIterator[None]:
        lease.check()
        if lease.run.cancel_by_ms is not None:
            message = f"run {lease.run.id} was asked to end before {what}; clean up and return"
            raise CancelRequested(message, run=lease.run)
        yield

    return gate


class _Runner(Generic[Out]):
    """One attempt of an agent at its run."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        agent: Agent[Out],
        lease: Lease,
        state: AgentState,
        watcher: Watcher | None,
        gate: Gate,
        threads: Threads,
        whole: bool,  # noqa: FBT001 - same
    ) -> None:
        self._agent = agent
        self._lease = lease
        self._state = state
        self._watcher = watcher
        self._shape = agent.shape_event(state.shape, scope=state.scope, stored=lease.redacted)
        self._gate = gate
        self._blobs = Blobs(lease)
        self._asking = Asking(agent, lease, state, commit=self._commit, watcher=watcher)
        self._fitting = Fitting(
            agent, lease, state, commit=self._commit, asking=self._asking, ready=self._shaped, whole=whole
        )
        self._calls = Calls(agent, lease, state, commit=self._commit, land=self._land, threads=threads)

    async def run(self) -> Out:
        self._asking.check()
        while True:
            match next_action(self._state, max_steps=self._agent.max_steps):
                case Ask() as ask:
                    async with self._gate(f"model:{ask.step}"):
                        if not await self._fitting.replaced():
                            await self._ask(ask)
                case Call(calls=calls):
                    # As one: a call that was announced is also made, or a drain would leave it in doubt.
                    async with self._gate(f"calls:{self._state.step}"):
                        await self._boundary(calls)
                        await self._calls.settle(calls)
                case Fail(message=message):
                    raise StepLimit(f"run {self._lease.run.id}: {message}", run=self._lease.run)
                case Finish() as finish:
                    try:
                        return self._agent.read(finish)
                    except InvalidContent as error:
                        await self._refuse(finish, error)

    async def _boundary(self, calls: Sequence[ToolCall]) -> None:
        if (before := self._agent.before_calls) is None:
            return
        run, state = self._lease.run, self._state
        boundary = StepBoundary(scope=state.scope, step=state.step, calls=tuple(calls))
        with running(CurrentRun(lease=self._lease, scope=state.scope)):
            found = before(boundary)
            if inspect.isawaitable(found):
                await found
        self._lease.check()
        if self._lease.over:
            message = f"run {run.id} was given up before the calls of step {state.step}"
            raise RunSuspended(message, run=run)

    async def _refuse(self, finish: Finish, error: InvalidContent) -> None:
        if finish.repairs >= MAX_REPAIRS:
            message = f"the answer of {self._agent.name} does not fit its output type: {error.message}; see its schema"
            raise OutputInvalid(message, run=self._lease.run) from error
        await self._commit([output_refused(error.message, scope=self._state.scope)])

    async def _ask(self, ask: Ask) -> None:
        run, scope = self._lease.run, self._state.scope
        if self._agent.enforce_lineage and (found := unexplained(self._state.lineage, ask.messages)) is not None:
            raise broken(found, run)
        shown = request(self._state, system=self._agent.system_digest, tools=self._agent.tools_digest)
        filled = replace(ask, messages=await self._blobs.filled(ask.messages))
        reply = await self._asking.reply(self._agent.request(filled, run_id=run.id, attempt=run.attempt, scope=scope))
        message_ = distinct(reply.message, self._state)
        refused = {call.id: why for call in message_.calls if (why := self._refusal(call)) is not None}
        refused |= self._asking.too_many(message_)
        events = answer(
            self._state,
            message_,
            usage=reply.usage,
            model=self._agent.model.name,
            finish=reply.finish,
            micros=self._asking.micros(self._agent.model, reply),
            refused=refused,
        )
        await self._commit([shown, *events], step=1)

    def _refusal(self, call: ToolCall) -> tuple[str, str] | None:
        if changes(self._lease.redaction, call.arguments):
            # What is stored is what is called, by this holder as by a successor; and what a person approves.
            return "Redacted", "the arguments hold what looks like a secret, which is not stored; pass a name for it"
        return self._agent.refusal(call)

    async def _shaped(self) -> None:
        if self._shape:
            await self._commit([])

    async def _commit(
        self, events: Sequence[bytes], /, *, step: int = 0, base: bool = False, blobs: Sequence[bytes] = ()
    ) -> None:
        # What changed since the last attempt goes with the first thing that this one writes.
        shape, self._shape = self._shape, []
        events = [*shape, *events]
        await self._land(await self._lease.write(events, step=step, base=base, blobs=tuple(blobs)))

    async def _land(self, stored: Sequence[Event]) -> None:
        # As read back from the stored bytes: what a successor will fold is what this holder folds.
        for found in stored:
            self._state.add(found)
        if self._watcher is not None:
            await self._watcher.landed()
