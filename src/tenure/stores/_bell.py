"""Wake-ups inside a process: a wake between a look and a wait is not lost, and a waiter sleeps until it is rung."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from tenure.stores._group import Ring, ring_all, ring_here

REMEMBERED = 4096
"""How many topics are remembered; one that is forgotten wakes once for nothing."""
CANCEL_AGAIN_S = 0.1


async def end(listening: asyncio.Task[None], /) -> None:
    """Cancel who listens until it has ended.

    Once is not enough: drivers send by `asyncio.wait_for`, which before Python 3.12 forgets a cancel that comes as what
    it waits for ends, and the listener would go on to listen for ever.
    """
    while not listening.done():
        listening.cancel()
        await asyncio.wait([listening], timeout=CANCEL_AGAIN_S)


@dataclass(slots=True)
class Heard:
    """What one store object has heard of a bell: the stroke it began at, and the last one by topic."""

    since: int
    topics: OrderedDict[str, int] = field(default_factory=OrderedDict)


class Bell:
    """Rings topics for the listeners of one process, which may live on loops of several threads."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # entered again by a collection, see `Line`
        self._strokes = 0
        self._rung: OrderedDict[str, int] = OrderedDict()
        # The latest stroke that was for everybody, or for a topic that is forgotten.
        self._for_all = 0
        self._waiting: dict[object, tuple[frozenset[str], Ring, anyio.Event]] = {}

    def ring(self, topic: str | None = None) -> None:
        """Wake who waits for the topic; None wakes everybody."""
        with self._guard:
            self._strokes += 1
            if topic is None:
                self._for_all = self._strokes
            else:
                self._rung[topic] = self._strokes
                self._rung.move_to_end(topic)
                if len(self._rung) > REMEMBERED:
                    self._for_all = max(self._for_all, self._rung.popitem(last=False)[1])
            waiting = list(self._waiting.values())  # a collection takes some out
            called = [(ring, event.set) for topics, ring, event in waiting if topic is None or topic in topics]
        ring_all(called)

    def heard(self) -> Heard:
        """Return what somebody has heard who has heard everything up to now."""
        with self._guard:
            return Heard(self._strokes)

    async def woken(self, heard: Heard, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait until a topic rings, or has rung since it was last waited for; False after `timeout` seconds."""
        event, key = anyio.Event(), object()
        with self._guard:
            if self._news(heard, topics):
                event.set()
            else:
                self._waiting[key] = (frozenset(topics), ring_here(), event)
        try:
            with anyio.move_on_after(timeout):
                await event.wait()
        finally:
            with self._guard:
                self._waiting.pop(key, None)
        with self._guard:
            # Rung while it waited counts, although another waiter of the same store object has heard it by now.
            news = event.is_set() or self._news(heard, topics)
            for topic in topics:
                heard.topics[topic] = self._strokes
                heard.topics.move_to_end(topic)
            while len(heard.topics) > REMEMBERED:
                heard.topics.popitem(last=False)
        return news

    def _news(self, heard: Heard, topics: Sequence[str]) -> bool:
        return any(max(self._rung.get(t, 0), self._for_all) > heard.topics.get(t, heard.since) for t in topics)
