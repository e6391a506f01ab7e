"""The adapter over stores of values keeps the contract but for what it names, over a dictionary and over files."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from tenure.clock import ManualClock
from tenure.store import Durability, Store
from tenure.stores.files import FileValues
from tenure.stores.keyvalue import KeyValueStore
from tenure.testing.contract import StoreContract


class Values:
    """The least that is a store of values."""

    atomicity: Literal["process"] = "process"
    level = Durability.MEMORY
    url = "values://dictionary"

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, int]] = {}

    async def open(self) -> None:
        """There is nothing to open."""

    async def aclose(self) -> None:
        """There is nothing to close."""

    async def get(self, key: str, /) -> tuple[bytes, int] | None:
        return self.kept.get(key)

    async def put(self, key: str, value: bytes, /, *, version: int) -> bool:
        if self.kept.get(key, (b"", 0))[1] != version:
            return False
        self.kept[key] = (value, version + 1)
        return True

    async def keys(self) -> list[str]:
        return sorted(self.kept)


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
RENEWALS = "there is no index but the records, and a renewal changes the record"


class TestValues(StoreContract):
    sequences = 60
    lacks: ClassVar = {
        "restart": "it survives nothing, and says so",
        "address": "it is for one process",
        "lose_index_entry": "its index is made from the records",
    }

    @pytest.fixture
    async def store(self, namespace: str) -> AsyncIterator[Store]:
        self.clock = ManualClock()
        self.values = Values()
        async with KeyValueStore(self.values, namespace=namespace, clock=self.clock) as store:
            yield store

    async def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @pytest.mark.xfail(reason=RENEWALS, strict=True)
    async def test_i01_a_renewal_extends_the_lease_and_nothing_else(self, store: Store) -> None:
        await super().test_i01_a_renewal_extends_the_lease_and_nothing_else(store)

    async def turn_history(self, store: Store) -> None:
        assert isinstance(store, KeyValueStore)
        await store.new_history()

    async def break_record(self, store: Store, run_id: str) -> None:
        key = f"{store.namespace}/{run_id}"
        _, version = self.values.kept[key]
        self.values.kept[key] = (b'{"format":1,"record":', version + 1)


class TestFiles(StoreContract):
    sequences = 12  # more where too little lands
    lacks: ClassVar = {
        "advance_ms": "it runs on the machine's clock here",
        "restart": "shown by real deaths in tests/stores/test_files.py",
        "address": "it is for one process",
        "lose_index_entry": "its index is made from the records",
    }

    @pytest.fixture
    async def store(self, namespace: str) -> AsyncIterator[Store]:
        # In memory where there is such a folder: what is flushed is no part of the contract.
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            self.folder = Path(folder)
            async with KeyValueStore(FileValues(folder), namespace=namespace) as store:
                yield store

    @pytest.mark.xfail(reason=RENEWALS, strict=True)
    async def test_i01_a_renewal_extends_the_lease_and_nothing_else(self, store: Store) -> None:
        await super().test_i01_a_renewal_extends_the_lease_and_nothing_else(store)

    async def turn_history(self, store: Store) -> None:
        assert isinstance(store, KeyValueStore)
        await store.new_history()

    async def break_record(self, store: Store, run_id: str) -> None:
        (path,) = self.folder.glob(f"*%2F{run_id}.value")
        path.write_bytes(path.read_bytes()[:40])
