"""The line to the SQLite thread, without the thread: when it is lined up, when it is told, and when it ends."""

import threading
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from tenure.stores._bell import Bell
from tenure.stores._group import Line, Ring, Slot, give, ring_here


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Served:
    """A line whose writer is the next turn of this loop: before what then gathers is lined up."""

    def __init__(self, limit: int) -> None:
        self.line: Line[int, int] = Line(limit=limit)
        self.sizes: list[int] = []

    async def ask(self, *items: int) -> list[Any]:
        ring_here()(partial(self._serve, ring_here()))
        return await self.line.ask(items)

    def _serve(self, ring: Ring) -> None:
        batch = self.line.take(0)
        self.sizes.append(len(batch))
        give(batch, [10 * slot.item for slot in batch])
        if not self.line._waiting.empty() or not batch:
            ring(partial(self._serve, ring))


async def test_who_asks_for_more_than_one_batch_is_told_when_all_is_done() -> None:
    served = Served(limit=2)
    assert await served.ask(1, 2, 3, 4, 5) == [10, 20, 30, 40, 50]
    assert served.sizes == [2, 2, 1]


async def test_who_is_alone_is_lined_up_at_once_and_after_others_when_the_turn_is_over() -> None:
    served = Served(limit=9)
    for items in ([1], [2], [3, 4], [5], [6]):
        assert await served.ask(*items) == [10 * item for item in items]
    assert served.sizes == [1, 1, 2, 0, 1, 1]


@pytest.mark.parametrize("alone, sizes", [(True, [3, 3]), (False, [6])])
async def test_of_many_that_were_asked_for_one_by_one_half_are_left_for_the_next_time(
    alone: bool, sizes: list[int]
) -> None:
    line: Line[int, int] = Line()
    taken: list[int] = []
    async with anyio.create_task_group() as tasks:
        for item in range(6 if alone else 1):
            tasks.start_soon(line.ask, [item] if alone else range(6))
        await anyio.wait_all_tasks_blocked()
        while batch := line.take(0, halved_from=6):
            taken.append(len(batch))
            give(batch, [slot.item for slot in batch])
    assert taken == sizes


async def test_what_has_gathered_can_be_taken_before_its_turn_is_over_and_is_answered_once() -> None:
    line: Line[int, int] = Line()
    taken: list[list[int]] = []

    def serve() -> None:
        batch = line.take_now()
        taken.append([slot.item for slot in batch])
        give(batch, [10 * slot.item for slot in batch])

    ring_here()(serve)
    assert await line.ask([1, 2]) == [10, 20]  # from now on the turn is waited for
    ring_here()(serve)  # ahead of what lines up what gathers
    assert await line.ask([3]) == [30]
    assert (taken, line.take_now()) == ([[1, 2], [3]], [])


async def test_a_line_that_closes_has_not_ended_while_something_gathers() -> None:
    ended: list[bool] = []

    class Watched(Line[int, int]):
        def _line_up(self, slots: Iterable[Slot[int, int]]) -> None:
            ended.extend(self.ended for _ in slots)  # where it has, a writer that looks now leaves them in it
            super()._line_up(slots)

    def close() -> None:
        ended.clear()
        line.close()
        give(line.take(0), [3])

    line = Watched()
    ring_here()(lambda: give(line.take(0), [1, 2]))
    assert await line.ask([1, 2]) == [1, 2]
    ring_here()(close)  # ahead of what lines up what gathers
    assert await line.ask([3]) == [3]
    assert (ended, line.ended) == ([False], True)


@pytest.mark.parametrize("waits", ["line", "bell"])
async def test_a_task_that_is_forgotten_is_collected_also_where_its_guard_is_held(waits: str) -> None:
    line: Line[int, int] = Line()
    bell = Bell()
    waiting: Coroutine[Any, Any, object] = (
        line.ask([1]) if waits == "line" else bell.woken(bell.heard(), ["a"], timeout=60)
    )
    waiting.send(None)  # as the first turn of a task of a loop that then is not run again
    guard: Any = line._guard if waits == "line" else bell._guard

    def collect() -> None:
        # Anything made meanwhile may begin a collection, which throws it out of its wait; scopes mind the other task.
        with guard, suppress(RuntimeError):
            waiting.close()

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    await anyio.to_thread.run_sync(collecting.join, 5)
    assert not collecting.is_alive()
    assert (line.take(0), bell._waiting) == ([], {})
