"""One call of a handler at a time, on any store: what a worker does, without its loops."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tenure import ActiveRun, App, Ledger, Run, Store, open_store
from tenure.clock import ManualClock
from tenure.perform import perform


class Fleet:
    """An app and a ledger; `call` is one attempt or one more call of a run."""

    def __init__(self, app: App, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        self.seen: list[ActiveRun[Any]] = []

    async def call(self, run_id: str, *, meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None) -> Run:
        """Claim the run, call its handler once, and return the record afterwards."""
        lease = await self.ledger.claims.claim(self.ledger.claims.change(run_id))
        async with self.ledger.claims.under(lease) as held:
            if meanwhile is not None:
                held.tasks.start_soon(meanwhile)
            await perform(self.app, self.ledger, held, began=self.seen.append)
        return await self.ledger.load(run_id)

    async def die(self, run_id: str, steps: Callable[[ActiveRun[Any]], Awaitable[None]]) -> None:
        """Do some steps under a lease and vanish: nothing is handed back, and the lease is over for the store."""
        lease = await self.ledger.claims.claim(self.ledger.claims.change(run_id))
        await lease.read_back()
        await steps(ActiveRun(self.ledger, lease, input=lease.state.input))
        self.ledger.claims.drop(lease)
        from tenure.core.run import End, How

        grant = lease.grant
        answer = await self.ledger.store.commit(
            End(run=run_id, how=How.FORFEIT, token=grant.token, nonce=grant.nonce, reason="signal 9")
        )
        assert answer.ok


@asynccontextmanager
async def fleet(
    app: App, url: str = "memory://", *, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[Fleet]:
    """Open a store, with a clock of its own if one is given, and a ledger for an app."""
    store: Store = open_store(url, clock=clock)
    async with store, Ledger(store, **options) as ledger:
        yield Fleet(app, ledger)
