"""Who listens for wake-ups, and how that ends."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio

from tenure.stores._redis_bell import Listener


async def test_a_subscription_ends_whose_driver_forgets_a_cancel() -> None:
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    listens = anyio.Event()

    async def connect() -> Any:
        # As redis-py sends. Before Python 3.12 a cancel that comes when this has just been done is forgotten.
        await asyncio.wait_for(sent, 60)
        listens.set()
        await asyncio.sleep(60)

    listener = Listener(connect, "here")
    waiting = asyncio.ensure_future(listener.woken(["due"], timeout=60))
    await anyio.wait_all_tasks_blocked()
    sent.set_result(None)
    with anyio.fail_after(10):
        await listener.aclose()
    waiting.cancel()
