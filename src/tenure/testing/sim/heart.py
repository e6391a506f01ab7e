"""The heartbeat on the simulated loop: a stopped process stops it, too."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tenure.heartbeat import Heartbeat
from tenure.ledger import Ledger
from tenure.pulse import Pulse
from tenure.store import Store


class LoopBeats(Heartbeat):
    """A heartbeat on the loop it looks at: it can never see that one blocked, and need not look for that."""

    tick_s = 60.0


class LoopHeart:
    """The heartbeat as a task of the simulated loop: a stopped process stops it, too."""

    def __init__(self, store: Store, pulse: Pulse, clock: Any, *, ttl_ms: int, name: str) -> None:
        self._beats = LoopBeats(store, pulse, clock, ttl_ms=ttl_ms)
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._beats.serve(), name=f"heart of {self._name}")

    def hurry(self) -> None:
        """Renew at once."""
        self._beats.hurry()

    async def aclose(self) -> None:
        """End the task."""
        self._beats.stop()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class SimLedger(Ledger):
    """A ledger whose heart beats on the simulated loop."""

    heart = LoopHeart
