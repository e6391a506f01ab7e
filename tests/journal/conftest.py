"""A store, a ledger, and a run of an agent that took nine turns, with its context replaced once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenure import Ledger, Store, open_store


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://") as opened:
        yield opened


@pytest.fixture
async def ledger(store: Store) -> AsyncIterator[Ledger]:
    async with Ledger(store, ttl=30) as opened:
        yield opened
