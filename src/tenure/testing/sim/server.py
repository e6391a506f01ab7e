"""The simulated server: the law over what it keeps, a history that can turn, and a note of every decision."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace

from tenure.core.run import Answer, Change, Facts, Run
from tenure.stores.memory import MemoryStore, Shelf, place
from tenure.testing.sim.loop import SimClock, SimLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One decision as it fell: the record before and after, by the true time and the store's."""

    at_s: float
    process: str
    change: Change
    answer: Answer
    before: Run | None
    after: Run | None
    facts: Facts
    history: int


@dataclass(slots=True, kw_only=True)
class Image:
    """What a replica had at some time: all that a promotion brings back."""

    at_s: float
    decided: int
    shelves: dict[str, Shelf]
    floor: int
    max_ttl_ms: int


@dataclass(slots=True)
class History:
    """The store's history: which one it is, since when, and whether the turn may have lost something."""

    number: int = 1
    since_ms: int = 0
    lossy: bool = False
    lost_s: list[tuple[float, float]] = field(default_factory=list)


class SimServer(MemoryStore):
    """A memory store with a clock that can be set, a history that can turn, and images to fall back to."""

    def __init__(self, loop: SimLoop, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self._open = True
        self.history = History()
        self.decided: list[Decided] = []
        self.images: list[Image] = []
        self.step_ms = 0
        self.process = ""
        self._loop = loop

    def _facts(self, space: object) -> Facts:  # noqa: ARG002 - the space's own sense of time never goes back
        now_us = self._clock.boot_ns() // 1000 + self._offset_us + self.step_ms * 1000
        return Facts(
            now_us=now_us,
            epoch=f"h{self.history.number}",
            since_ms=self.history.since_ms,
            lossy=self.history.lossy,
            max_ttl_ms=self._space.max_ttl_ms,
            floor=self._space.floor,
        )

    def decide(self, change: Change, /) -> Answer:
        """Decide one change, and note it."""
        shelf = self._space.shelves.get(change.run)
        before, facts = (shelf.run if shelf is not None else None), self._facts(self._space)
        answer = super().decide(change)
        after = self._space.shelves.get(change.run)
        self.decided.append(
            Decided(
                at_s=self._loop.now_s,
                process=self.process,
                change=change,
                answer=answer,
                before=before,
                after=after.run if after is not None else None,
                facts=facts,
                history=self.history.number,
            )
        )
        return answer

    def keep_image(self) -> None:
        """Keep what a replica that stands level now would have."""
        shelves = {
            run_id: Shelf(run=shelf.run, rows=list(shelf.rows), items=dict(shelf.items), blobs=dict(shelf.blobs))
            for run_id, shelf in self._space.shelves.items()
        }
        self.images.append(
            Image(
                at_s=self._loop.now_s,
                decided=len(self.decided),
                shelves=shelves,
                floor=self._space.floor,
                max_ttl_ms=self._space.max_ttl_ms,
            )
        )
        del self.images[:-40]

    def turn(self, *, lost_s: float = 0.0) -> None:
        """Begin a new history: as after a restart that lost nothing, or as promoted `lost_s` seconds behind."""
        lossy = lost_s > 0
        if lossy:
            now_s = self._loop.now_s
            image = next((i for i in reversed(self.images) if i.at_s <= now_s - lost_s), None)
            if image is None:
                return
            self._space.shelves = {run_id: replace_shelf(shelf) for run_id, shelf in image.shelves.items()}
            self._space.floor, self._space.max_ttl_ms = image.floor, image.max_ttl_ms
            self._space.due.clear()
            for shelf in self._space.shelves.values():
                place(self._space.due, shelf.run)
            self.history.lost_s.append((image.at_s, now_s))
            self.images.clear()
        self.history.number += 1
        self.history.lossy = lossy
        self.history.since_ms = self._facts(self._space).now_ms


def replace_shelf(shelf: Shelf) -> Shelf:
    """Return a copy that can be written without changing the image."""
    return replace(shelf, rows=copy(shelf.rows), items=copy(shelf.items), blobs=copy(shelf.blobs))
