"""The contract of a store's history: whom a changed history stops, who continues, and who has to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tenure.core import rules
from tenure.core.run import Grant, How, Reattach, Renew, Run, Status, Verdict, Why
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, claim, end, grant_of, nonce, suspend, write


def reattach(grant: Grant, run: Run, **more: Any) -> Reattach:
    """Return the request to continue the grant, having been told of the run as known."""
    return Reattach(**{"grant": grant, "nonce": nonce(), "seq": run.last_seq, "head": run.head, **more})


class HistoryContract(StoreCase):
    """Reattach, and the history rule of every change: I9, I10."""

    async def test_i10_who_was_told_the_last_commit_continues_under_a_new_grant(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, write(grant, run))
        change = reattach(grant, run)
        answer = await store.commit(change)
        after = await store.load("r1")
        assert (answer.verdict, answer.run, answer.left_ms) == (Verdict.LANDED, after, grant.ttl_ms)
        assert after is not None
        assert (after.nonce, after.owner, after.attempt, after.crashes) == (change.nonce, run.owner, 1, 0)
        assert (after.status, after.last_seq, after.head) == (Status.RUNNING, run.last_seq, run.head)
        assert after.token > grant.token
        assert [line.ended for line in after.grants] == ["reattached", ""]
        assert 0 < (await self.stands(store, change)).left_ms <= grant.ttl_ms
        await self.refuses(store, write(grant, run, "old"), Why.LOST)
        await self.lands(store, write(grant_of(after), after, "new"))

    @pytest.mark.parametrize("landed", [True, False])
    async def test_i10_a_commit_in_flight_may_have_landed_or_not(self, store: Store, landed: bool) -> None:
        grant, run = await self.begin(store)
        flying = write(grant, run)
        if landed:
            await self.lands(store, flying)
        after = await self.lands(store, reattach(grant, run, flying=flying.row.digest))
        if not landed:
            after = await self.lands(store, write(grant_of(after), run))
        assert [row.seq for row in await store.tail("r1")] == [1, 2]
        assert verify_run(after, await store.tail("r1")).ok

    async def test_i10_a_store_that_shows_less_than_it_told_has_lost(self, store: Store) -> None:
        grant, run = await self.begin(store)
        told = replace(run, last_seq=2, head="f" * 64)
        await self.refuses(store, reattach(grant, told), Why.HISTORY_LOST)
        await self.refuses(store, reattach(grant, replace(run, head="f" * 64)), Why.HISTORY_LOST)
        await self.refuses(store, reattach(grant, told, flying=run.head), Why.HISTORY_LOST)
        await self.refuses(store, reattach(replace(grant, token=grant.token + 9), run), Why.HISTORY_LOST)
        await self.refuses(store, reattach(replace(grant, run="nowhere"), run), Why.HISTORY_LOST)
        more = await self.lands(store, write(grant, run))
        await self.refuses(store, reattach(grant, run), Why.HISTORY_LOST)
        await self.refuses(store, reattach(grant, run, flying="e" * 64), Why.HISTORY_LOST)
        await self.lands(store, reattach(grant, more))

    async def test_i10_who_has_not_a_live_grant_does_not_reattach(self, store: Store) -> None:
        grant, run = await self.begin(store, ttl_ms=self.short_ms)
        await self.refuses(store, reattach(replace(grant, nonce=nonce()), run), Why.LOST)
        await self.refuses(store, reattach(replace(grant, epoch="other"), run), Why.LOST)
        await self.pass_ms(self.short_ms)
        await self.refuses(store, reattach(grant, run), Why.EXPIRED)
        grant, run = await self.claim(store)
        suspended = await self.lands(store, suspend(grant, run, "go"))
        await self.refuses(store, reattach(grant, suspended), Why.SUSPENDED)
        await self.lands(store, end(grant, How.CANCEL))
        await self.refuses(store, reattach(grant, suspended), Why.LOST)

    async def test_i10_a_changed_history_stops_commits_and_renewals(self, store: Store) -> None:
        turn = self.ability("turn_history")
        grant, run = await self.begin(store)
        flying = write(grant, run)
        before = await store.facts()
        await turn(store)
        after = await store.facts()
        assert after.epoch != before.epoch
        assert after.since_ms >= before.since_ms
        for change in (Renew(grant=grant), flying):
            await self.refuses(store, change, Why.HISTORY)
        await self.refuses(store, Renew(grant=replace(grant, epoch=after.epoch)), Why.LOST)
        run = await self.lands(store, reattach(grant, run, flying=flying.row.digest))
        assert (run.epoch, run.crashes) == (after.epoch, 0)
        await self.lands(store, write(grant_of(run), run))
        await self.refuses(store, Renew(grant=grant), Why.LOST)

    async def test_i10_a_claim_of_a_former_history_is_neither_repeated_nor_lost(self, store: Store) -> None:
        turn = self.ability("turn_history")
        await self.create(store)
        change = claim()
        await self.lands(store, change)
        await turn(store)
        await self.refuses(store, change, Why.HISTORY)

    async def test_i10_strangers_wait_when_a_grant_may_be_missing(self, store: Store) -> None:
        turn = self.ability("turn_history")
        await store.raise_ttl(60_000)
        await self.create(store)
        await turn(store)
        facts = await store.facts()
        waits = facts.lossy and facts.now_ms < facts.since_ms + facts.max_ttl_ms
        if waits:
            await self.refuses(store, claim(), Why.GRACE)
        else:
            await self.lands(store, claim())
        await self.create(store, "r2", kind="k2")  # born in this history: nothing of it can be missing
        await self.lands(store, claim("r2"))

    async def test_i10_a_held_run_of_a_former_history_is_free_only_if_its_boot_is_gone(self, store: Store) -> None:
        turn = self.ability("turn_history")
        _, run = await self.begin(store)
        await turn(store)
        facts = await store.facts()
        if rules.free(run, facts) and not facts.lossy:
            after = await self.lands(store, claim())
            assert (after.attempt, after.crashes) == (2, 0), "nobody is blamed for a history change"
        else:
            await self.refuses(store, claim(), Why.HELD)

    async def test_i09_what_was_acknowledged_is_there_after_a_restart(self, store: Store) -> None:
        restart = self.ability("restart")
        grant, run = await self.begin(store, value={"in": "put"})
        for number in range(5):
            run = await self.lands(store, write(grant, run, number, blobs=[b"blob %d" % number]))
        await self.create(store, "r2", kind="k2")
        before = [await self.kept(store, name) for name in ("r1", "r2")]
        digests = list(write(grant, run, blobs=[b"blob 4"]).blobs)
        reopened = await restart(store)
        assert [await self.kept(reopened, name) for name in ("r1", "r2")] == before
        assert await reopened.blob("r1", digests[0]) == b"blob 4"
        assert verify_run(run, await reopened.tail("r1")).ok
