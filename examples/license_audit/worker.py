"""One worker process: it executes runs of the audit until SIGTERM."""

from __future__ import annotations

import signal
import sys

import anyio

from examples.license_audit.app import app
from tenure.stores import open_store
from tenure.worker import Worker

SLOTS = 8


async def work(url: str, ttl_s: float) -> None:
    """Execute what is due; SIGTERM hands back what is in hand."""
    async with open_store(url) as store, Worker(app, store, ttl=ttl_s, concurrency=SLOTS, drain=1) as worker:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                await worker.drain()
                return


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], float(sys.argv[2]))
