"""A road to the store that carries little: large payloads get there, and back, one at a time and once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import urlsplit, urlunsplit

import anyio
import pytest

from stores.postgres_kit import eventually
from tenure import Ledger, open_store
from tenure.store import Store
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
