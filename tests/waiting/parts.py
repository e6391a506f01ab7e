"""A handler that waits, called one call at a time, and what it did in all its calls."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from app.calls import Fleet, fleet
from tenure import App
from tenure.clock import ManualClock

CLOCKS: WeakKeyDictionary[Fleet, ManualClock] = WeakKeyDictionary()
"""The store's time stands still until a test moves it."""


class Waiting:
    """An app with one kind, `k`, and what it did in all its calls."""

    def __init__(self, **options: Any) -> None:
        self.app = App()
        self.did: list[Any] = []
        self._options = options

    def handler(self, fn: Any) -> Any:
        return self.app.kind("k", **self._options)(fn)

    async def __aenter__(self) -> Any:
        clock = ManualClock()
        self._opened: Any = fleet(self.app, clock=clock, ttl=60)
        opened = await self._opened.__aenter__()
        CLOCKS[opened] = clock
        return opened

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.__aexit__(*exc)

    def does(self, what: str) -> Any:
        async def step() -> str:
            self.did.append(what)
            return what

        return step


async def due(at: Fleet, run_id: str = "r1") -> None:
    """Let the time pass that the run waits for."""
    run, now_ms = await at.ledger.load(run_id), (await at.ledger.store.facts()).now_ms
    assert run.due_ms is not None
    CLOCKS[at].advance(ms=max(0, run.due_ms - now_ms))
