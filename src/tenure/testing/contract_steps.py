"""The contract of the plain step: nearly every commit says no more than its row, and a store may have a road for it."""

from __future__ import annotations

from dataclasses import replace

from tenure.core.run import Why
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, nonce, write


class StepContract(StoreCase):
    """What is judged at a glance is judged by the whole law."""

    async def test_i01_i06_the_plain_step_is_fenced_like_any_other_commit(self, store: Store) -> None:
        """It may have a road of its own, which no commit with anything more to it takes."""
        grant, run = await self.begin(store)
        run = await self.lands(store, write(grant, run, step=1))
        for forged in (
            replace(grant, token=grant.token + 1),
            replace(grant, token=grant.token - 1),
            replace(grant, nonce=nonce()),
            replace(grant, nonce=""),
            replace(grant, epoch="other"),
        ):
            await self.refuses(store, write(forged, run, step=1), Why.LOST)
        for wrong in (replace(run, last_seq=run.last_seq + 1), replace(run, head="f" * 64)):
            await self.refuses(store, write(grant, wrong, step=1), Why.SEQUENCE)
        earlier = write(grant, replace(run, last_seq=1, head="e" * 64), "other", step=1)
        await self.refuses(store, earlier, Why.SEQUENCE)
        if hasattr(self, "advance_ms"):
            await self.pass_ms(grant.ttl_ms)  # to the very millisecond in which the lease ends
        else:
            await self.run_out(store, grant)
        await self.refuses(store, write(grant, run, step=1), Why.EXPIRED)
