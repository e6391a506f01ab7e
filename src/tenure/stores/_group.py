"""Group commit: many callers, one writer, one transaction; and the way back from a thread to the loops that wait.

What is asked for waits in a line. The writer takes one, drains what else waits, does all of it together and answers
all. Who is cancelled before its turn is withdrawn and nothing was done; after that only the wait is dropped, because
what was sent may land. asyncio and trio are served alike, several loops at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

from tenure.errors import NotAllowed

LIMIT = 256
"""How many items one transaction takes at most."""

T = TypeVar("T")
R = TypeVar("R")
Ring = Callable[[Callable[[], object]], object]


def ring_here() -> Ring:
    """Return what has a callback run soon on the loop of the calling task, from any thread, without waiting for it."""
    native: Any = current_token().native_token
    ring: Ring = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
    return ring


def soon_here() -> Ring:
    """Return what has a callback run on the loop of the calling task when the tasks of this turn have had theirs."""
    native: Any = current_token().native_token
    ring: Ring = getattr(native, "call_soon", None) or native.run_sync_soon
    return ring


def ring_all(rings: Sequence[tuple[Ring, anyio.Event]]) -> None:
    """Set every event on its own loop, with one call a loop; a loop that has ended waits for nothing."""
    by_loop: dict[Ring, list[anyio.Event]] = {}
    for ring, event in rings:
        by_loop.setdefault(ring, []).append(event)
    for ring, events in by_loop.items():
        try:
            ring(lambda events=events: [event.set() for event in events])  # type: ignore[misc]
        except RuntimeError:
            continue


@dataclass(slots=True, eq=False)
class Slot(Generic[T, R]):
    """One item in the line, and its answer."""

    item: T
    ring: Ring
    done: anyio.Event
    answer: R | Exception | None = None
    taken: bool = False
    withdrawn: bool = False


class Line(Generic[T, R]):
    """What waits for one writer. `ask` belongs to tasks of any loop, `take` and `give` to the writer's thread."""

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: deque[Slot[T, R]] = deque()
        self._closed = False
        self._gathered: dict[Ring, list[Slot[T, R]]] = {}
        self.turn = threading.Condition()

    async def ask(self, items: Sequence[T], /) -> list[R | Exception]:
        """Return the answer to each item, in order; items asked for together stand together in the line."""
        ring, soon = ring_here(), soon_here()
        slots: list[Slot[T, R]] = [Slot(item=item, ring=ring, done=anyio.Event()) for item in items]
        with self.turn:
            if self._closed:
                message = "the store is closed; open it again with `async with store:`"
                raise NotAllowed(message)
            gathered = self._gathered.setdefault(soon, [])
            gathered += slots
        if len(gathered) == len(slots):
            # Not at once: what other tasks of this turn of the loop ask for goes into the same transaction.
            soon(lambda: self._line_up(soon))
        try:
            for slot in slots:
                await slot.done.wait()
        except BaseException:
            with self.turn:
                for slot in slots:
                    slot.withdrawn = not slot.taken
            raise
        return [slot.answer for slot in slots]  # type: ignore[misc]

    def _line_up(self, soon: Ring) -> None:
        with self.turn:
            self._waiting.extend(self._gathered.pop(soon, ()))
            self.turn.notify()

    def take(self, patience: Callable[[], float | None] = lambda: None) -> list[Slot[T, R]]:
        """Return what waits, after a wait for it of at most `patience` seconds (asked under `turn`); None waits on."""
        with self.turn:
            if not self._waiting and not self._closed:
                self.turn.wait(patience())
            batch: list[Slot[T, R]] = []
            while self._waiting and len(batch) < self._limit:
                slot = self._waiting.popleft()
                if not slot.withdrawn:
                    slot.taken = True
                    batch.append(slot)
            return batch

    @property
    def ended(self) -> bool:
        """Return whether the line is closed and everything in it was taken."""
        return self._closed and not self._waiting

    def close(self) -> None:
        """Let nothing more in; what stands in the line is still served."""
        with self.turn:
            self._closed = True
            for gathered in self._gathered.values():
                self._waiting.extend(gathered)
            self._gathered.clear()
            self.turn.notify()


def give(slots: Sequence[Slot[T, R]], answers: Sequence[R | Exception], /) -> None:
    """Answer all of a batch, with one call to each loop that waits."""
    for slot, answer in zip(slots, answers, strict=True):
        slot.answer = answer
    ring_all([(slot.ring, slot.done) for slot in slots])


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
