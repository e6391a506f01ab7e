"""Workers in this process, and the ways in which a holder vanishes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tenure import ActiveRun, App, Ledger, Run, Status, Store, Worker, open_store
from tenure.core import build
from tenure.core.run import Claim, How


@asynccontextmanager
async def opened(url: str = "memory://", **options: Any) -> AsyncIterator[Ledger]:
    """Open a store and a ledger."""
    store: Store = open_store(url)
    async with store, Ledger(store, **options) as ledger:
        yield ledger


@asynccontextmanager
async def working(app: App, ledger: Ledger, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker on a ledger; steps in hand are cut at the end."""
    async with Worker(app, ledger, drain=0, **options) as worker:
        yield worker


async def dead(ledger: Ledger, run_id: str, *, deaths: int = 1) -> Run:
    """Claim a run and end the grant as after a death, `deaths` times; the run is left to be taken over."""
    store = ledger.store
    run = await ledger.load(run_id)
    for _ in range(deaths):
        claim = Claim(run=run_id, nonce=f"n-{run_id}-{run.token}", owner="gone", ttl_ms=1000, max_crashes=0)
        granted = await store.commit(claim)
        assert granted.ok, granted.why
        assert granted.run is not None
        ended = await store.commit(
            build.end(run=run_id, how=How.FORFEIT, token=granted.run.token, nonce=claim.nonce, reason="signal 9")
        )
        assert isinstance(ended.run, Run)
        run = ended.run
        assert run.status is Status.RUNNING
    return run


async def until(test: Any, *, seconds: float = 10) -> None:
    """Wait until a fact is so."""
    with anyio.fail_after(seconds):
        while True:
            found = test()
            if hasattr(found, "__await__"):
                found = await found
            if found:
                return
            await anyio.sleep(0.005)


def counting(started: list[str], gate: anyio.Event | None = None, **options: Any) -> App:
    """An app whose only kind notes its runs and waits for the gate inside a step."""
    app = App()

    @app.kind("k", **options)
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        async def work() -> str:
            started.append(run.id)
            if gate is not None:
                await gate.wait()
            return run.id

        return await run.step("work", work)

    return app
