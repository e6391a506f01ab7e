"""The thread of the SQLite store, with works that are no statements: in which order it does, flushes and tells."""

import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tenure.stores import _sqlite_desk
from tenure.stores._sqlite_desk import HALF, Desk, Tell


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, a flush takes no longer than the loop with two halves."""
    monkeypatch.setattr(_sqlite_desk, "STEP_SECONDS", 60.0)


class Watched:
    """A desk that notes what it does; `ask` notes who has an answer."""

    def __init__(self, flush_s: float = 0.0) -> None:
        self.seen: list[str] = []
        self.flush_s = flush_s
        self.fault = False
        self.desk = Desk("desk", connect=lambda: sqlite3.connect(":memory:"), perform=self.perform)

    def perform(self, _: sqlite3.Connection, items: Sequence[Any], tell: Tell) -> list[Any]:
        self.seen.append(f"does {len(items)}")
        if self.fault:
            raise ZeroDivisionError
        tell()
        time.sleep(self.flush_s)
        self.seen.append(f"flushed {len(items)}")
        return list(items)

    async def ask(self, item: int) -> None:
        (answer,) = await self.desk.ask([item])
        assert answer == item or isinstance(answer, ZeroDivisionError)
        self.seen.append("told")

    async def at_once(self, count: int) -> list[str]:
        """What is seen when so many ask in one turn of the loop."""
        await self.desk.ask([1, 2])  # after a batch of more than one the turn is waited for
        self.seen.clear()
        async with anyio.create_task_group() as tasks:
            for item in range(count):
                tasks.start_soon(self.ask, item)
        return self.seen


@asynccontextmanager
async def watched(flush_s: float = 0.0) -> AsyncIterator[Watched]:
    found = Watched(flush_s)
    await found.desk.start()
    try:
        yield found
    finally:
        await found.desk.stop()


async def test_of_many_at_once_half_are_told_when_the_other_half_is_about_to_be_flushed() -> None:
    async with watched() as desk:
        seen = await desk.at_once(2 * HALF)
        assert seen[:3] == [f"does {HALF}", f"flushed {HALF}", f"does {HALF}"]
        assert seen.count("told") == 2 * HALF


async def test_of_fewer_none_goes_ahead() -> None:
    async with watched() as desk:
        few = 2 * HALF - 1
        assert await desk.at_once(few) == [f"does {few}", f"flushed {few}", *["told"] * few]


async def test_where_a_flush_takes_longer_than_the_loop_with_all_of_them_there_is_one_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = 4 * HALF
    monkeypatch.setattr(_sqlite_desk, "STEP_SECONDS", 0.01 / many)
    async with watched(flush_s=0.02) as desk:
        assert (await desk.at_once(many))[:2] == [f"does {many}", f"flushed {many}"]


async def test_who_was_answered_is_told_although_what_comes_next_fails() -> None:
    async with watched() as desk:
        await desk.desk.ask([1, 2])
        desk.fault = True
        with anyio.fail_after(20):
            await desk.at_once(2 * HALF)
        assert desk.seen.count("told") == 2 * HALF


async def test_who_was_answered_is_told_when_the_desk_stops() -> None:
    async with watched(flush_s=0.01) as desk, anyio.create_task_group() as tasks:
        for item in range(2 * HALF):
            tasks.start_soon(desk.ask, item)
        await anyio.wait_all_tasks_blocked()
        await desk.desk.stop()
    assert desk.seen.count("told") == 2 * HALF
