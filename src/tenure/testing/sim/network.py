"""The road between a process and the server: late, lost, doubled and cut off, by a seed.

A request that was sent arrives even if its sender dies, and a reply to a dead or stopped process waits or is lost: the
server's callbacks belong to no process.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from tenure.core.run import Answer, Change, Facts, Item, Row, Run
from tenure.errors import NotAllowed, OutcomeUnknown, StoreUnavailable, TenureError
from tenure.store import ALL, Beat, Durability, Hint, Page, Refused, Where
from tenure.testing.sim.loop import Process, SimLoop
from tenure.testing.sim.server import SimServer
from tenure.testing.sim.story import Road

T = TypeVar("T")

NOBODY = contextvars.Context()


@dataclass(slots=True, kw_only=True)
class Network:
    """The road to one server, and who is cut off from it until when."""

    loop: SimLoop
    server: SimServer
    drawn: random.Random
    road: Road
    cut: dict[str, float] = field(default_factory=dict)
    down_until_s: float = 0.0
    sent: int = 0

    def delay(self) -> float:
        """Return how long one message is on its way."""
        if self.road.late and self.drawn.random() < self.road.late:
            return self.drawn.uniform(0, self.road.late_s)
        return self.drawn.expovariate(1 / self.road.delay_s)

    def arrives(self, process: Process) -> bool:
        """Return whether a message gets through between this process and the server now."""
        now_s = self.loop.now_s
        if self.cut.get(process.name, 0) > now_s or self.down_until_s > now_s:
            return False
        return not self.road.lost or self.drawn.random() >= self.road.lost


class SimStore:
    """The store as one process sees it; `timeout_s` is how long its driver waits for a reply."""

    level = Durability.MEMORY

    def __init__(self, network: Network, process: Process, *, timeout_s: float = 2.0) -> None:
        self.url = "sim://server"
        self.namespace = "default"
        self._network = network
        self._process = process
        self._timeout_s = timeout_s
        self._heard = network.server.space.bell.heard()

    async def __aenter__(self) -> Self:
        """Open: the server must answer."""
        await self.facts()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; there is nothing to close."""

    def beside(self) -> SimStore:
        """Return another store object of the same process."""
        return SimStore(self._network, self._process, timeout_s=self._timeout_s)

    async def _answer(self, call: Callable[[], T], /, *, unknown: bool = False) -> T:
        """Return what the server comes to; OutcomeUnknown or StoreUnavailable if no reply arrives in time."""
        network, process = self._network, self._process
        loop = network.loop
        reply: asyncio.Future[T] = loop.create_future()
        # Who asked may be dead, and then nobody takes in an error.
        reply.add_done_callback(lambda found: found.cancelled() or found.exception(), context=NOBODY)
        network.sent += 1

        def give(found: T | TenureError) -> None:
            if not reply.done():
                patience.cancel()
                if isinstance(found, TenureError):
                    reply.set_exception(found)
                else:
                    reply.set_result(found)

        def serve() -> None:
            if not network.arrives(process):
                return
            network.server.process = process.name
            try:
                found: T | TenureError = call()
            except TenureError as error:
                found = error
            if network.arrives(process):
                loop.call_later(network.delay(), give, found, context=NOBODY)

        def give_up() -> None:
            if unknown:
                give(OutcomeUnknown("no reply arrived; send the same request again, or look at the run"))
            else:
                give(StoreUnavailable("no reply arrived; ask again"))

        doubled = network.road.doubled
        times = 2 if doubled and network.drawn.random() < doubled else 1
        for _ in range(times):
            loop.call_later(network.delay(), serve, context=NOBODY)
        patience = loop.call_later(self._timeout_s, give_up, context=NOBODY)
        return await reply

    async def _read(self, name: str, *args: Any, **named: Any) -> Any:
        return await self._answer(lambda: finished(getattr(self._network.server, name)(*args, **named)))

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change."""
        return await self._answer(lambda: self._network.server.decide(change), unknown=True)

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids, in one round trip."""
        server = self._network.server

        def decide_all() -> list[Answer | TenureError]:
            answers: dict[int, Answer | TenureError] = {}
            for index in sorted(range(len(changes)), key=lambda i: changes[i].run):
                answers[index] = server.decide(changes[index])
            return [answers[index] for index in range(len(changes))]

        return await self._answer(decide_all, unknown=True)

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make `max_ttl_ms` at least this."""
        await self._read("raise_ttl", ttl_ms)

    async def facts(self) -> Facts:
        """Return what the store knows now."""
        found: Facts = await self._read("facts")
        return found

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record."""
        found: Run | None = await self._read("load", run_id)
        return found

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record as text fields."""
        found: dict[str, str] = await self._read("raw", run_id)
        return found

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return rows in order."""
        found: list[Row] = await self._read("tail", run_id, after=after, limit=limit)
        return found

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return items in order."""
        found: list[Item] = await self._read("inbox", run_id, after=after)
        return found

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob."""
        found: bytes | None = await self._read("blob", run_id, digest)
        return found

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return what the index says is due."""
        found: list[Hint] = await self._read("due", kinds, limit=limit)
        return found

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return the earliest entry of the index."""
        found: int | None = await self._read("next_due_ms", kinds)
        return found

    async def kinds(self) -> list[str]:
        """Return the kinds in the index."""
        found: list[str] = await self._read("kinds")
        return found

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of the index."""
        found: tuple[list[tuple[str, str]], str] = await self._read("entries", kind, cursor=cursor, limit=limit)
        return found

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first."""
        found: Page = await self._read("find", where, cursor=cursor, limit=limit)
        return found

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Write a worker's row."""
        await self._read("beat", row, ttl_ms=ttl_ms)

    async def beats(self) -> list[Beat]:
        """Return the rows of workers."""
        found: list[Beat] = await self._read("beats")
        return found

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the refused list."""
        await self._read("tell_refused", line)

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes."""
        found: list[Refused] = await self._read("refused", limit=limit)
        return found

    async def wake(self, topic: str, /) -> None:
        """Wake who waits for the topic, if the ring gets through."""
        if self._network.arrives(self._process):
            self._network.server.space.bell.ring(topic)

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics."""
        return await self._network.server.space.bell.woken(self._heard, topics, timeout=timeout)


def finished(call: Any, /) -> Any:
    """Return what a coroutine comes to that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    message = "a read of the simulated server waited for something"
    raise NotAllowed(message)
