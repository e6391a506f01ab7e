"""A store and a ledger for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenure import (
    Ledger,
    Store,
    open_store,
)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://") as opened:
        yield opened


@pytest.fixture
async def ledger(store: Store) -> AsyncIterator[Ledger]:
    async with Ledger(store, ttl=5) as opened:
        yield opened
