"""The SQLite store keeps the contract: on the machine's clock with two processes, and on a clock that is moved."""

import secrets
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from tenure.clock import ManualClock
from tenure.core.run import Run
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.contract import StoreContract


class TestSqlite(StoreContract):
    sequences = 90
    least_landed = 3
    lacks: ClassVar = {"advance_ms": "it runs on the machine's clock here"}

    @pytest.fixture
    async def store(self, tmp_path: Path, namespace: str) -> AsyncIterator[Store]:
        self.path = tmp_path / "tenure.db"
        async with open_store(f"sqlite:///{self.path}", namespace=namespace) as store:
            yield store

    def address(self, store: Store) -> str:
        return store.url

    async def turn_history(self, store: Store) -> None:
        self._change("UPDATE file SET salt = ?, since_ms = ?", (secrets.token_hex(8), (await store.facts()).now_ms))

    async def lose_index_entry(self, store: Store, run: Run) -> None:
        self._change("UPDATE run SET entry_ms = NULL WHERE id = ?", (run.id,))

    async def break_record(self, store: Store, run_id: str) -> None:
        self._change("UPDATE run SET record = ? WHERE id = ?", ("no record", run_id))

    async def restart(self, store: Store) -> Store:
        await store.__aexit__(None, None, None)
        return await store.__aenter__()

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute(statement, values)
        finally:
            connection.close()


class TestSqliteOnAClockThatIsMoved(TestSqlite):
    lacks: ClassVar = {"address": "another process has another clock"}

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    async def store(self, tmp_path: Path, namespace: str) -> AsyncIterator[Store]:
        self.path = tmp_path / "tenure.db"
        self.clock = ManualClock()
        async with open_store(f"sqlite:///{self.path}", namespace=namespace, clock=self.clock) as store:
            yield store

    async def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    address = None  # type: ignore[assignment]
