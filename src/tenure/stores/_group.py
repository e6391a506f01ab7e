"""Group commit: many callers, one writer, one transaction; and the way back from a thread to the loops that wait.

What is asked for waits in a line. The writer takes one, drains what else waits, does all of it together and answers
all. Of many it may leave one half, and do that while the loop is with the other. Where the last batch was of one, a
request is lined up at once, else when the tasks of its turn have had theirs. Who is cancelled before its turn is
withdrawn and nothing was done; after that only the wait is dropped, because what was sent may land. asyncio and trio
are served alike, several loops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

from tenure.errors import NotAllowed

LIMIT = 256
"""How many items one transaction takes at most."""

T = TypeVar("T")
R = TypeVar("R")
Callback = Callable[[], object]
Ring = Callable[[Callback], object]


def ring_here() -> Ring:
    """Return what has a callback run soon on the loop of the calling task, from any thread, without waiting for it."""
    native: Any = current_token().native_token
    ring: Ring = native.call_soon_threadsafe if isinstance(native, asyncio.AbstractEventLoop) else native.run_sync_soon
    return ring


def ring_all(rings: Iterable[tuple[Ring, Callback]]) -> None:
    """Run every callback on its own loop, with one call a loop; a loop that has ended waits for nothing."""
    by_loop: dict[Ring, list[Callback]] = {}
    for ring, callback in rings:
        by_loop.setdefault(ring, []).append(callback)
    for ring, callbacks in by_loop.items():
        with contextlib.suppress(RuntimeError):
            ring(partial(_call_all, callbacks))


def _call_all(callbacks: Iterable[Callback]) -> None:
    for callback in callbacks:
        callback()


@dataclass(slots=True, eq=False)
class Asked:
    """What one caller waits for: how its loop is told, and how many answers are left."""

    left: int
    ring: Ring
    soon: Ring  # only on the loop: what it is given runs when the tasks of this turn have had theirs
    tell: Callback
    told: Callable[[], Awaitable[object]]


def _asked(left: int) -> Asked:
    native: Any = current_token().native_token
    if isinstance(native, asyncio.AbstractEventLoop):
        # A future of the loop, because an event costs twice as much, and this is most of what a lone request costs.
        done = native.create_future()
        return Asked(left, native.call_soon_threadsafe, native.call_soon, partial(_settle, done), lambda: done)
    event = anyio.Event()
    return Asked(left, native.run_sync_soon, native.run_sync_soon, event.set, event.wait)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


@dataclass(slots=True, eq=False)
class Slot(Generic[T, R]):
    """One item in the line, and its answer."""

    item: T
    asked: Asked
    answer: R | Exception | None = None
    taken: bool = False
    withdrawn: bool = False


class Line(Generic[T, R]):
    """What waits for one writer. `ask` belongs to tasks of any loop, `take` and `give` to the writer's thread.

    A queue in C and not a condition: half of what a lone request costs is the way to the thread and back.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: SimpleQueue[Slot[T, R] | None] = SimpleQueue()  # None only has the writer look up
        # Entered again where it is held: what is made meanwhile may begin a collection, and that throws a task of a
        # loop that is not run any more out of its wait, on this thread.
        self._guard = threading.RLock()
        self._closed = False
        self._alone = True  # whether the last batch was of one
        self._gathered: dict[Ring, list[Slot[T, R]]] = {}

    async def ask(self, items: Sequence[T], /) -> list[R | Exception]:
        """Return the answer to each item, in order; items asked for together stand together in the line."""
        asked = _asked(len(items))
        soon = asked.soon
        slots: list[Slot[T, R]] = [Slot(item=item, asked=asked) for item in items]
        with self._guard:
            if self._closed:
                message = "the store is closed; open it again with `async with store:`"
                raise NotAllowed(message)
            if self._alone:
                self._line_up(slots)
            elif gathered := self._gathered.get(soon):
                gathered += slots
            else:
                # Not at once: what other tasks of this turn of the loop ask for goes into the same transaction.
                self._gathered[soon] = slots[:]
                soon(lambda: self._flush(soon))
        try:
            if slots:
                await asked.told()
        except BaseException:
            with self._guard:
                for slot in slots:
                    slot.withdrawn = not slot.taken
            raise
        return [slot.answer for slot in slots]  # type: ignore[misc]

    def _line_up(self, slots: Iterable[Slot[T, R]]) -> None:
        for slot in slots:
            self._waiting.put(slot)

    def _line_up_gathered(self) -> None:
        for gathered in self._gathered.values():
            self._line_up(gathered)
        self._gathered.clear()

    def _flush(self, soon: Ring) -> None:
        with self._guard:
            self._line_up(self._gathered.pop(soon, ()))

    def take(self, patience: float | None = None, *, halved_from: int | None = None) -> list[Slot[T, R]]:
        """Return what waits, after a wait for it of at most `patience` seconds; None waits on, until `look_up`.

        Where `halved_from` or more wait that were asked for one by one, half of them are left for the next time.
        """
        batch: list[Slot[T, R]] = []
        limit = self._limit
        try:
            slot = self._waiting.get(timeout=patience)
            with self._guard:
                waiting = self._waiting.qsize() + 1
                if halved_from is not None and waiting >= halved_from and slot is not None and slot.asked.left == 1:
                    limit = min(limit, waiting // 2)
                while True:
                    if slot is not None and not slot.withdrawn:
                        slot.taken = True
                        batch.append(slot)
                    if len(batch) >= limit:
                        break
                    slot = self._waiting.get_nowait()
        except Empty:
            pass
        if batch:
            self._alone = len(batch) == 1
        return batch

    def take_now(self) -> list[Slot[T, R]]:
        """Return what waits, with what has gathered in this turn of a loop; nothing is waited for."""
        if not self._gathered and self._waiting.empty():
            return []
        with self._guard:
            self._line_up_gathered()
        return self.take(0)

    def look_up(self) -> None:
        """Have `take` return, if with nothing."""
        self._waiting.put(None)

    @property
    def ended(self) -> bool:
        """Return whether the line is closed and everything in it was taken."""
        return self._closed and self._waiting.empty()

    def close(self) -> None:
        """Let nothing more in; what stands in the line is still served."""
        with self._guard:
            self._line_up_gathered()
            self._closed = True  # last: the writer ends when it sees this and nothing in the queue
            self.look_up()


def give(slots: Sequence[Slot[T, R]], answers: Sequence[R | Exception], /) -> None:
    """Answer all of a batch, with one call to each loop that waits."""
    told: list[tuple[Ring, Callback]] = []
    for slot, answer in zip(slots, answers, strict=True):
        slot.answer, asked = answer, slot.asked
        asked.left -= 1
        if asked.left == 0:
            told.append((asked.ring, asked.tell))
    ring_all(told)


class BatchFailed(Exception):
    """A transaction failed as a whole and left nothing; the cause says why."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def perform(items: Sequence[T], together: Callable[[Sequence[T]], list[R | Exception]], /) -> list[R | Exception]:
    """Return the answers to items done in one transaction; one that fails as a whole is done again, one by one.

    Each item is then sent again under its own key, so it does not matter if the transaction had landed after all.
    """
    try:
        return together(items)
    except BatchFailed as failed:
        if len(items) == 1:
            return [failed.cause]
        return [answer for item in items for answer in perform([item], together)]
