"""Many workers that boot together on many dead runs ask for what is there, and not each for everything."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tenure import ActiveRun, App, Ledger, Status, TenureError, Worker, open_store
from tenure.core import build
from tenure.core.run import Answer, Change, Claim, How
from tenure.testing.faults import FaultStore
from worker.kit import until

WORKERS = 12
RUNS = 120
READS = {"load", "tail", "inbox", "blob", "due", "next_due_ms", "kinds", "entries", "find", "facts", "wake", "beat"}


class Counted(FaultStore):
    """Counts each request of this store object, a batch as one: what a client sends in one piece."""

    asked: Counter[str]

    def __init__(self, store: Any, *, shared: FaultStore | None = None) -> None:
        super().__init__(store, shared=shared)
        self.asked = Counter()

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            self.asked[name] += 1
        return super().__getattr__(name)

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        self.asked["commit"] += 1
        return await self.inner.commit_many(changes)


@pytest.mark.slow
async def test_b041_requests_grow_with_runs_and_workers_and_not_with_their_product() -> None:
    done: Counter[str] = Counter()
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        done[run.id] += 1
        await run.step("work", anyio.lowlevel.checkpoint)

    async with AsyncExitStack() as opened:
        url = "memory://crowd"
        store = await opened.enter_async_context(open_store(url))
        await store.raise_ttl(1000)
        for n in range(RUNS):
            await store.commit(build.create(run=f"r{n}", kind="k", value=None))
            claimed = await store.commit(Claim(run=f"r{n}", nonce=f"nonce-{n}", owner="gone", ttl_ms=1000))
            assert claimed.run is not None
            token = claimed.run.token
            await store.commit(build.end(run=f"r{n}", how=How.FORFEIT, token=token, nonce=f"nonce-{n}"))
        counted = [Counted(open_store(url)) for _ in range(WORKERS)]
        for each in counted:
            await opened.enter_async_context(each)
            ledger = await opened.enter_async_context(Ledger(each))
            await opened.enter_async_context(Worker(app, ledger, drain=0))
        await until(lambda: len(done) == RUNS, seconds=60)

        async def all_ended() -> bool:
            page = await store.find(limit=RUNS)
            return all(run.status is Status.COMPLETED for run in page.runs)

        await until(all_ended, seconds=60)
        asked = sum((each.asked for each in counted), Counter[str]())
        # One that lands a step goes on among others, so a handler may be called twice; its step is not.
        page = await store.find(limit=RUNS)
        assert {(run.attempt, run.step) for run in page.runs} == {(2, 1)}
        assert asked.total() < 12 * RUNS + 40 * WORKERS
