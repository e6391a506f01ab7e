"""Clocks: what time it is for a store, a ledger and a worker, and how to wait; tests turn the hands themselves."""

from __future__ import annotations

import time
from typing import Protocol

import anyio

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """The time source of one component; boot time counts suspend and never jumps."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970."""
        ...

    def boot_ns(self) -> int:
        """Return nanoseconds since some fixed instant of this boot."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait; a cancellation point."""
        ...


class SystemClock:
    """The machine's clocks; CLOCK_BOOTTIME where there is one, because CLOCK_MONOTONIC stops while a machine sleeps."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def boot_ns(self) -> int:
        """Return nanoseconds since boot, suspend included."""
        return time.monotonic_ns() if _BOOT is None else time.clock_gettime_ns(_BOOT)

    async def sleep(self, seconds: float, /) -> None:
        """Wait; a cancellation point."""
        await anyio.sleep(seconds)


class ManualClock:
    """A clock that stands still until a test moves it with `advance`."""

    def __init__(self, *, start_ms: int = 1_700_000_000_000) -> None:
        self._ns = 0
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Return the start plus what was advanced."""
        return self._start_ms + self._ns // 1_000_000

    def boot_ns(self) -> int:
        """Return what was advanced, in nanoseconds."""
        return self._ns

    async def sleep(self, seconds: float, /) -> None:
        """Yield until the hands have been moved that far; a cancellation point."""
        until = self._ns + int(seconds * 1e9)
        while self._ns < until:  # noqa: ASYNC110 - the hands may be moved from another thread
            await anyio.sleep(0.001)

    def advance(self, *, days: float = 0, hours: float = 0, seconds: float = 0, ms: float = 0) -> None:
        """Move the hands forward."""
        self._ns += int((((days * 24 + hours) * 3600 + seconds) * 1000 + ms) * 1e6)
