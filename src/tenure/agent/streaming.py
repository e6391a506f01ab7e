"""A run as it goes on: pieces of answers, which are not kept, and events of the journal, which are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tenure.agent.agent import Agent
from tenure.agent.model import Delta
from tenure.agent.running import finish
from tenure.errors import TenureError
from tenure.handle import Handle
from tenure.ledger import Ledger

Out = TypeVar("Out")

AHEAD = 256
"""How many items the agent may be ahead of who watches it, before it waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """An event of the run's journal; `address` is `seq.index`, and a stream `after` it goes on with the next."""

    address: str
    event: Mapping[str, Any]

    @property
    def type(self) -> str:
        """Return the event's type."""
        return str(self.event["type"])


class RunStream(Generic[Out]):
    """What happens in a run, in order; iterate it once. What ended the run badly is raised at its end."""

    def __init__(self, run_id: str, items: MemoryObjectReceiveStream[Delta | Landed]) -> None:
        self.id = run_id
        self.error: Exception | None = None
        self._items = items
        self._output: list[Out] = []

    def __aiter__(self) -> AsyncIterator[Delta | Landed]:
        """Return the iterator over what happens."""
        return self._each()

    async def _each(self) -> AsyncIterator[Delta | Landed]:
        async for item in self._items:
            yield item
        if self.error is not None:
            raise self.error

    async def result(self) -> Out:
        """Return the output, passing over what was not looked at."""
        async for _ in self:
            pass
        return self._output[0]

    def end(self, output: Out, /) -> None:
        """Take the output in."""
        self._output.append(output)


class _View:
    """Sends what happens to a stream; the journal is read from where it was read last."""

    def __init__(self, handle: Handle[Any], send: MemoryObjectSendStream[Delta | Landed], after: str | int) -> None:
        self._handle = handle
        self._send = send
        self._after = after
        self._one_at_a_time = anyio.Lock()

    async def delta(self, piece: Delta, /) -> None:
        await self._send.send(piece)

    async def landed(self) -> None:
        async with self._one_at_a_time:
            async for address, event in self._handle.events(after=self._after):
                await self._send.send(Landed(address=address, event=event))
                self._after = address


@asynccontextmanager
async def streamed(
    agent: Agent[Out], ledger: Ledger, handle: Handle[Out], /, *, after: str | int = 0
) -> AsyncIterator[RunStream[Out]]:
    """Give a stream of the run while it is brought to its end; leaving the block stops driving and hands it back."""
    send, receive = anyio.create_memory_object_stream[Delta | Landed](AHEAD)
    found = RunStream[Out](handle.id, receive)

    async def pump() -> None:
        async with send:
            view = _View(handle, send, after)
            try:
                await view.landed()
                found.end(await finish(agent, ledger, handle, watcher=view))
                await view.landed()
            except Exception as error:  # noqa: BLE001 - it is raised where the stream is read
                found.error = error
                with suppress(TenureError):
                    await view.landed()

    left: Exception | None = None
    async with receive, anyio.create_task_group() as tasks:
        tasks.start_soon(pump)
        try:
            yield found
        except Exception as error:  # noqa: BLE001 - raised below, outside the group that would wrap it
            left = error
        tasks.cancel_scope.cancel()
    if left is not None:
        raise left
