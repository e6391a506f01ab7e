"""A road to the store that carries little: large payloads get there, and back, one at a time and once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import pytest

from stores.postgres_kit import begun, eventually
from tenure import Ledger, open_store
from tenure.store import SLOW_BYTES_S, Store
from tenure.testing.contract_case import grant_of, write
from tenure.testing.proxy import Proxy


@pytest.mark.parametrize("server", ["redis8_url", "postgres_url"])
async def test_a_payload_that_takes_longer_than_the_timeout_to_carry_is_written_and_read(
    server: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    """Sent again after each timeout it would begin anew for ever: the road carries a third of it until then."""
    parts = urlsplit(request.getfixturevalue(server))
    size, timeout_s = 1_200_000, 1
    async with Proxy(parts.geturl(), bytes_s=size // 3 // timeout_s) as proxy:
        user = f"{parts.username}@" if parts.username else ""
        far = parts._replace(netloc=f"{user}127.0.0.1:{proxy.port}", query=f"timeout={timeout_s}")
        async with AsyncExitStack() as stack:

            async def opening() -> Store:
                return await stack.enter_async_context(open_store(urlunsplit(far), namespace=namespace))

            store = await eventually(opening)  # who opens one asks once, and a machine may stand still for that second
            ledger = await stack.enter_async_context(Ledger(store, ttl=60))
            await ledger.submit("k", 1, id="r1")
            with anyio.fail_after(60):  # a machine that stands still may cost a try
                async with ledger.hold("r1") as lease:
                    await lease.record("step:1", "x" * size)
                    await lease.settle()
                (row,) = await eventually(lambda: store.tail("r1", after=1, limit=1))
        assert len(row.body) > size


LARGE = "x" * (12 * SLOW_BYTES_S)


@pytest.fixture
async def far(postgres_url: str, namespace: str) -> AsyncIterator[Any]:
    """A store to which `LARGE` is under way for two seconds longer than its timeout."""
    parts = urlsplit(postgres_url)
    user = f"{parts.username}@" if parts.username else ""
    async with Proxy(postgres_url, bytes_s=2 * SLOW_BYTES_S) as proxy:
        url = parts._replace(netloc=f"{user}127.0.0.1:{proxy.port}", query="timeout=4").geturl()
        async with open_store(url, namespace=namespace) as store:
            yield store


async def test_a_large_step_that_ends_a_transaction_is_given_its_time(far: Store) -> None:
    async with Ledger(far, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        async with ledger.hold("r1") as lease:
            async with lease.transaction(value=LARGE):
                pass
            assert lease.run.step == 1
            await lease.settle()


async def test_a_large_change_that_waits_for_its_row_aside_is_given_its_time(far: Any) -> None:
    run = await begun(far, "r1")
    assert (await far._session._in_patience(write(grant_of(run), run, LARGE))).ok
