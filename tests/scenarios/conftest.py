"""The stores that every scenario is told on, and the ledgers of two workers who share one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure import Ledger, open_store
from tenure.store import Store


@pytest.fixture(params=["memory", "sqlite", "valkey9", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> str:
    """A URL under which several store objects of this test find the same runs."""
    if request.param == "memory":
        return f"memory://{namespace}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tenure.db"
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncIterator[Store]:
    async with open_store(store_url, namespace=namespace) as store:
        yield store


@pytest.fixture
async def other(store_url: str, namespace: str) -> AsyncIterator[Store]:
    """The store as another worker has it."""
    async with open_store(store_url, namespace=namespace) as store:
        yield store


@pytest.fixture
async def ledger(store: Store) -> AsyncIterator[Ledger]:
    async with Ledger(store, ttl=1) as ledger:
        yield ledger


@pytest.fixture
async def other_ledger(other: Store) -> AsyncIterator[Ledger]:
    async with Ledger(other, ttl=1) as ledger:
        yield ledger
