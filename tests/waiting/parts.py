"""A handler that waits, called one call at a time, and what it did in all its calls."""

from __future__ import annotations

from typing import Any

import anyio

from app.calls import Fleet, fleet
from tenure import App


class Waiting:
    """An app with one kind, `k`, and what it did in all its calls."""

    def __init__(self, *, url: str = "memory://", **options: Any) -> None:
        self.app = App()
        self.did: list[Any] = []
        self._url = url
        self._options = options

    def handler(self, fn: Any) -> Any:
        return self.app.kind("k", **self._options)(fn)

    def __aenter__(self) -> Any:
        self._opened: Any = fleet(self.app, self._url, ttl=5)
        return self._opened.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.__aexit__(*exc)

    def does(self, what: str) -> Any:
        async def step() -> str:
            self.did.append(what)
            return what

        return step


async def due(at: Fleet, run_id: str = "r1") -> None:
    """Wait until the run may be claimed by its own time."""
    while True:
        run, now_ms = await at.ledger.load(run_id), (await at.ledger.store.facts()).now_ms
        if run.due_ms is not None and run.due_ms <= now_ms:
            return
        await anyio.sleep(0.01)
