"""The memory store keeps the contract, on a clock that the test moves."""

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from tenure.clock import ManualClock
from tenure.core.run import Run
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores.memory import MemoryStore
from tenure.testing.contract import StoreContract


class TestMemory(StoreContract):
    sequences = 200
    lacks: ClassVar = {
        "break_record": "it keeps values, not bytes",
        "restart": "it survives nothing, and says so",
        "address": "it lives in one process",
    }

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    async def store(self, namespace: str) -> AsyncIterator[Store]:
        self.clock = ManualClock()
        async with open_store("memory://", namespace=namespace, clock=self.clock) as store:
            yield store

    async def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    async def turn_history(self, store: Store) -> None:
        assert isinstance(store, MemoryStore)
        await store.new_history()

    async def lose_index_entry(self, store: Store, run: Run) -> None:
        assert isinstance(store, MemoryStore)
        del store._space.due[run.id]


class TestMemoryOnTheMachineClock(StoreContract):
    sequences = 60
    lacks: ClassVar = {
        **TestMemory.lacks,
        "turn_history": "shown with the other clock",
        "advance_ms": "it is opened with the machine's clock here",
        "lose_index_entry": "shown with the other clock",
    }

    @pytest.fixture
    async def store(self, namespace: str) -> AsyncIterator[Store]:
        async with open_store(f"memory://{namespace}", namespace=namespace) as store:
            yield store
