"""What is noted while a story is played: what was sent and told, which code of the user ran, and what was left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.core.run import Answer, Change, Row, Run
from tenure.errors import TenureError
from tenure.testing.register import Asked
from tenure.testing.sim.loop import Process
from tenure.testing.sim.network import Network, SimStore
from tenure.testing.sim.server import Decided
from tenure.testing.sim.story import Blow, Story


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A call of the user's code: that it began, in which process, for which call of which run, by which grant."""

    at_s: float
    process: str
    run: str
    name: str
    token: int


@dataclass(slots=True, kw_only=True)
class Played:
    """All that one history left behind."""

    story: Story
    fell: list[Blow] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, tuple[Run | None, list[Row]]] = field(default_factory=dict)
    lost_s: list[tuple[float, float]] = field(default_factory=list)
    ended_s: float = 0.0
    broken: str = ""


class NotedStore(SimStore):
    """A process's store, that notes what its sender was told."""

    notes: list[Asked]

    def beside(self) -> NotedStore:
        """Return another one with the same notes."""
        return noted(self._network, self._process, self.notes)

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change, and note it."""
        (note,) = self._sent([change])
        answer = await super().commit(change)
        note.told_s, note.answer = self._network.loop.now_s, answer
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, and note them."""
        notes = self._sent(changes)
        answers = await super().commit_many(changes)
        for note, answer in zip(notes, answers, strict=True):
            if isinstance(answer, Answer):
                note.told_s, note.answer = self._network.loop.now_s, answer
        return answers

    def _sent(self, changes: Sequence[Change]) -> list[Asked]:
        # Noted when it is sent: who is killed meanwhile notes nothing any more.
        now_s = self._network.loop.now_s
        notes = [Asked(sent_s=now_s, process=self._process.name, change=change) for change in changes]
        self.notes += notes
        return notes


def noted(network: Network, process: Process, notes: list[Asked]) -> NotedStore:
    """Return a store of a process that notes what it is told."""
    store = NotedStore(network, process, timeout_s=max(0.5, network.road.late_s / 2))
    store.notes = notes
    return store
