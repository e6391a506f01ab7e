"""An agent in this process, under a lease: run, stream, recover. A fleet may take over its runs, and it theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from tenure.agent.agent import Agent
from tenure.agent.doubt import UNSET, resolve
from tenure.agent.recovery import Recovered, recover, recover_all
from tenure.agent.running import finish
from tenure.agent.streaming import RunStream, streamed
from tenure.approving import OpenRequest
from tenure.core.run import Run
from tenure.errors import NotAllowed
from tenure.ledger import Ledger
from tenure.redaction import Redaction, redaction_of
from tenure.store import Store

Out = TypeVar("Out")

DEFAULT_URL = "sqlite:///.tenure/tenure.db"


class CheckpointedAgent(Generic[Out]):
    """An agent whose runs survive the death of the process.

    Takes an open ledger, an open store, a store's URL, or nothing for `sqlite:///.tenure/tenure.db`. What it has to
    open it opens for each call, or once for the block `async with CheckpointedAgent(...)`. `redact` is the ledger's.
    """

    def __init__(
        self,
        agent: Agent[Out],
        store: Ledger | Store | str | None = None,
        /,
        *,
        redact: Redaction | bool | None = None,
    ) -> None:
        given: object = agent  # what a type checker refuses is said at run time, too
        if not isinstance(given, Agent):
            message = f"a CheckpointedAgent takes an Agent, not {type(given).__name__}; give it the agent itself"
            raise NotAllowed(message)
        self.agent = agent
        self._redaction = redaction_of(redact)
        if self._redaction is not None and isinstance(store, Ledger) and store.redaction is None:
            message = "the agent is to redact and the ledger it was given does not; pass redact= to the Ledger"
            raise NotAllowed(message)
        self._given: Ledger | Store | str = DEFAULT_URL if store is None else store
        self._ledger: Ledger | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open what has to be opened, once."""
        self._ledger = await self._stack.enter_async_context(self._opened())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Close what was opened here."""
        self._ledger = None
        return await self._stack.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Ledger]:
        _ = self.agent.shape  # a tool or output that cannot be stored is refused before anything is written
        found = self._ledger or self._given
        if isinstance(found, Ledger):
            yield found
        elif isinstance(found, str):
            from tenure.stores import open_store

            async with open_store(found) as store, Ledger(store, redact=self._redaction) as ledger:
                yield ledger
        else:
            async with Ledger(found, redact=self._redaction) as ledger:
                yield ledger

    async def run(self, prompt: str, /, *, id: str | None = None, tags: Mapping[str, str] | None = None) -> Out:
        """Return the agent's output.

        The same id and prompt again is the same run: its result if it has ended, else it is joined, and taken over if
        its holder dies. RunConflict for another prompt, RunFailed or RunCancelled if it ended so, RunSuspended if it
        waits for a person. An exception of the model is raised as it is; the run stays and can be recovered.
        """
        async with self._opened() as ledger:
            handle = await ledger.submit(self.agent, prompt, id=id, tags=tags)
            return await finish(self.agent, ledger, handle)

    def stream(
        self,
        prompt: str,
        /,
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        after: str | int = 0,
    ) -> AbstractAsyncContextManager[RunStream[Out]]:
        """Run as `run` does and show what happens: `async with agent.stream(...) as items: async for item in items`.

        Items are `Delta`, a piece of an answer on its way, and `Landed`, an event of the journal with its address. With
        `after` the address of the last one seen, a stream goes on where another one ended. Leaving the block before the
        end hands the run back.
        """
        return self._stream(prompt, id=id, tags=tags, after=after)

    @asynccontextmanager
    async def _stream(
        self, prompt: str, /, *, id: str | None, tags: Mapping[str, str] | None, after: str | int
    ) -> AsyncIterator[RunStream[Out]]:
        async with self._opened() as ledger:
            handle = await ledger.submit(self.agent, prompt, id=id, tags=tags)
            async with streamed(self.agent, ledger, handle, after=after) as found:
                yield found

    async def recover(self, run_id: str, /) -> Out:
        """Bring a run that its process left to its end, from its journal; returns the output.

        RunClosed (its `run` has the outcome) if it had ended, LeaseHeld if somebody runs it, RunNotFound.
        """
        async with self._opened() as ledger:
            return await recover(self.agent, ledger, run_id)

    async def recover_all(self, *, limit: int = 100, concurrency: int = 4) -> list[Recovered[Out]]:
        """Recover up to `limit` runs of this agent that are due, `concurrency` at a time; one entry for each.

        What goes wrong with a run is its entry's error, and the others go on. A store or shard that takes no writes is
        not waited for (StoreUnavailable: call this again). Runs that somebody else holds or took meanwhile have no
        entry.
        """
        async with self._opened() as ledger:
            return await recover_all(self.agent, ledger, limit=limit, concurrency=concurrency)

    async def requests(self, run_id: str, /) -> list[OpenRequest]:
        """Return what a run asks people, in the order in which it was asked."""
        async with self._opened() as ledger:
            return await ledger.handle(run_id).requests()

    async def decide(
        self,
        run_id: str,
        request: str | OpenRequest,
        how: Literal["approve", "reject"],
        /,
        *,
        by: str,
        reason: str = "",
        digest: str | None = None,
    ) -> Run:
        """Decide about a request of a run, which is due from then on; see `Handle.decide`."""
        async with self._opened() as ledger:
            return await ledger.handle(run_id).decide(request, how, by=by, reason=reason, digest=digest)

    async def resolve(
        self,
        run_id: str,
        call_id: str,
        /,
        *,
        result: Any = UNSET,
        repeat: bool = False,
        fail: bool = False,
        by: str = "",
    ) -> Run:
        """Say how a call in doubt ended; see `tenure.agent.doubt.resolve`. The run is due from then on."""
        async with self._opened() as ledger:
            return await resolve(ledger, run_id, call_id, result=result, repeat=repeat, fail=fail, by=by)
