"""Who listens for wake-ups, and how that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import pytest

from tenure.stores import _postgres_bell, _redis_bell
from tenure.stores._postgres_connect import Connection, address, connect
from tenure.testing.proxy import Proxy


@pytest.mark.parametrize("begin", [_redis_bell.Listener, _postgres_bell.Listener])
async def test_a_subscription_ends_whose_driver_forgets_a_cancel(begin: Callable[[Any, str], Any]) -> None:
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    listens = anyio.Event()

    async def connect() -> Any:
        # As redis-py sends. Before Python 3.12 a cancel that comes when this has just been done is forgotten.
        await asyncio.wait_for(sent, 60)
        listens.set()
        await asyncio.sleep(60)

    listener = begin(connect, "here")
    waiting = asyncio.ensure_future(listener.woken(["due"], timeout=60))
    await anyio.wait_all_tasks_blocked()
    sent.set_result(None)
    with anyio.fail_after(10):
        await listener.aclose()
    waiting.cancel()


async def test_a_subscription_is_begun_anew_where_the_road_is_lost_while_it_begins(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would else wait for an answer for ever, and whoever listens be deaf without a word."""
    monkeypatch.setattr(_postgres_bell, "ALIVE_S", 1.0)
    begun = 0
    async with Proxy(postgres_url) as proxy:
        parts = urlsplit(postgres_url)
        user = f"{parts.username}@" if parts.username else ""
        where = address(urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{proxy.port}")), {})

        async def connected() -> Connection:
            nonlocal begun
            begun += 1
            if begun > 1:
                proxy.let_through()
            connection = await connect(where)
            if begun == 1:
                proxy.hold_up()
            return connection

        listener = _postgres_bell.Listener(connected, "here")
        try:
            assert await listener.woken(["due"], timeout=60)  # what was said meanwhile is unknown
            assert begun > 1
        finally:
            await listener.aclose()
