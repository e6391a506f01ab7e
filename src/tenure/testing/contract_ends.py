"""The contract of what ends a grant from outside, of deletion and of repair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tenure.core import build, canonical
from tenure.core.run import (
    Ask,
    Delete,
    Due,
    End,
    Grant,
    How,
    Outcome,
    Reattach,
    Renew,
    Repair,
    Run,
    Status,
    Verdict,
    Why,
)
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, claim, end, grant_of, nonce, signal, suspend, write

ENDED = {How.EVICT: Status.QUEUED, How.YIELD: Status.QUEUED, How.QUARANTINE: Status.QUARANTINED}


class EndContract(StoreCase):
    """End, delete and repair: I2, I7, I11, I12, I13, I22."""

    @pytest.mark.parametrize("how", ENDED)
    async def test_i01_an_end_takes_the_grant_away(self, store: Store, how: How) -> None:
        grant, run = await self.begin(store)
        after = await self.lands(store, end(grant, how, reason="why", by="who"))
        line = replace(run.grants[0], until_ms=after.updated_ms, ended=how.value, reason="why", by="who")
        due_ms = None if how is How.QUARANTINE else after.updated_ms
        assert after == replace(
            run, status=ENDED[how], version=run.version + 1, token=after.token, nonce="", owner="", due_ms=due_ms,
            lease_until_ms=after.updated_ms, updated_ms=after.updated_ms, grants=(line,),
        )  # fmt: skip
        assert after.token > run.token
        assert await store.next_due_ms(["k"]) == due_ms
        await self.refuses(store, write(grant, run, blobs=[b"late"]), Why.LOST)
        await self.stands(store, end(grant, how, reason="other", by="other"))

    async def test_i22_a_forfeited_run_stays_running_and_its_next_claim_counts(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, end(grant, How.FORFEIT, reason="signal 9"))
        assert (run.status, run.nonce, run.owner, run.due_ms) == (Status.RUNNING, "", "", run.updated_ms)
        assert run.lease_until_ms <= run.updated_ms
        assert [hint.run for hint in await store.due(["k"])] == ["r1"]
        grant, run = await self.claim(store)
        assert (run.attempt, run.crashes, run.grants[0].ended) == (2, 1, "forfeit")
        await self.stands(store, end(former(run, 0), How.FORFEIT))
        run = await self.lands(store, end(grant, How.FORFEIT))
        assert run.due_ms == run.updated_ms + 1_000
        await self.refuses(store, claim(), Why.NOT_DUE)

    @pytest.mark.parametrize("how", [How.FORFEIT, How.YIELD, How.QUARANTINE])
    async def test_i01_who_has_not_the_grant_does_not_give_it_up(self, store: Store, how: How) -> None:
        grant, _ = await self.begin(store)
        await self.refuses(store, end(grant, how, nonce=nonce()), Why.LOST)
        await self.refuses(store, end(grant, how, nonce=""), Why.LOST)
        await self.refuses(store, end(grant, how, token=grant.token + 1), Why.LOST)
        await self.lands(store, end(grant, How.EVICT))
        await self.claim(store)
        await self.refuses(store, end(grant, how), Why.LOST)

    @pytest.mark.parametrize("how", [How.FORFEIT, How.YIELD, How.QUARANTINE])
    async def test_a_grant_whose_lease_has_run_out_may_still_be_given_up(self, store: Store, how: How) -> None:
        grant, run = await self.begin(store, ttl_ms=self.short_ms)
        await self.pass_ms(self.short_ms)
        after = await self.lands(store, end(grant, how))
        assert after.grants[0].until_ms == run.lease_until_ms
        assert after.lease_until_ms == run.lease_until_ms

    @pytest.mark.parametrize("how", [How.EVICT, How.FORFEIT, How.YIELD, How.QUARANTINE])
    async def test_only_a_running_run_is_ended_so(self, store: Store, how: How) -> None:
        await self.refuses(store, ending("nowhere", how), Why.ABSENT)
        await self.create(store)
        if how is How.EVICT:
            await self.stands(store, ending("r1", how))
        else:
            await self.refuses(store, ending("r1", how), Why.STATUS)
        grant, run = await self.claim(store)
        run = await self.lands(store, suspend(grant, run, "go"))
        await self.refuses(store, end(grant, how), Why.SUSPENDED)
        await self.lands(store, ending("r1", How.CANCEL))
        run_now = await store.load("r1")
        assert run_now is not None
        await self.refuses(store, end(grant, how, token=run_now.token), Why.CLOSED)

    async def test_i13_an_eviction_or_release_of_what_has_moved_on_has_no_second_effect(self, store: Store) -> None:
        grant, _ = await self.begin(store)
        await self.lands(store, ending("r1", How.EVICT, token=grant.token))
        await self.claim(store)
        await self.refuses(store, ending("r1", How.EVICT, token=grant.token), Why.MOVED)
        await self.refuses(store, ending("r1", How.RELEASE, token=grant.token), Why.MOVED)

    async def test_i22_an_operator_releases_what_was_quarantined(self, store: Store) -> None:
        grant, run = await self.begin(store, ttl_ms=self.short_ms)
        await self.pass_ms(self.short_ms)
        grant, run = await self.claim(store)
        await self.refuses(store, ending("r1", How.RELEASE, token=run.token), Why.STATUS)
        run = await self.lands(store, end(grant, How.QUARANTINE, reason="corrupt"))
        assert run.crashes == 1
        await self.refuses(store, ending("r1", How.RELEASE, token=grant.token), Why.MOVED)
        await self.refuses(store, claim(), Why.QUARANTINED)
        await self.refuses(store, signal(), Why.QUARANTINED)
        after = await self.lands(store, ending("r1", How.RELEASE, token=run.token, reason="fixed", by="op"))
        assert (after.status, after.crashes, after.due_ms) == (Status.QUEUED, 0, after.updated_ms)
        assert after.token > run.token
        assert (after.grants[-1].ended, after.grants[-1].reason) == ("quarantine", "corrupt; release: fixed")
        await self.stands(store, ending("r1", How.RELEASE, token=run.token))
        await self.claim(store)

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.SUSPENDED, Status.QUARANTINED])
    async def test_i13_cancel_is_terminal_at_once_and_raises_the_token(self, store: Store, status: Status) -> None:
        await self.create(store)
        run = await self.reach(store, status)
        after = await self.lands(store, ending("r1", How.CANCEL, reason="no use", by="me"))
        assert after.status is Status.CANCELLED
        assert after.outcome == Outcome(code="cancelled", message="no use", by="me")
        assert (after.nonce, after.owner, after.due_ms, after.wants) == ("", "", None, ())
        assert after.token > run.token
        assert await store.next_due_ms(["k"]) is None
        assert (await self.stands(store, ending("r1", How.CANCEL, reason="again"))).run is not None
        found = await store.load("r1")
        assert found is not None
        assert found.outcome == after.outcome

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
    async def test_i13_terminal_is_final(self, store: Store, status: Status) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, write(grant, run, status=status, outcome=Outcome(result="d")))
        now = replace(grant, token=run.token)
        for change, why in (
            (ending("r1", How.CANCEL), Why.CLOSED),
            (ending("r1", How.EVICT, token=run.token), Why.CLOSED),
            (ending("r1", How.RELEASE, token=run.token), Why.CLOSED),
            (end(now, How.FORFEIT), Why.CLOSED),
            (end(now, How.YIELD), Why.CLOSED),
            (end(now, How.QUARANTINE), Why.CLOSED),
            (claim(), Why.CLOSED),
            (signal(), Why.CLOSED),
            (Renew(grant=now), Why.CLOSED),
            (write(now, run), Why.CLOSED),
            (Reattach(grant=now, nonce=nonce(), seq=run.last_seq, head=run.head), Why.CLOSED),
        ):
            await self.refuses(store, change, why)

    async def test_i02_a_deleted_run_is_gone_and_its_tokens_are_not_used_again(self, store: Store) -> None:
        grant, run = await self.begin(store, tags={"t": "1"})
        await self.lands(store, signal())
        run = await self.lands(store, write(grant, run, blobs=[b"data"]))
        await self.refuses(store, Delete(run="r1"), Why.STATUS)
        ((_, data),) = write(grant, run, blobs=[b"data"]).blobs.items()
        digest = canonical.digest(data)
        assert await store.blob("r1", digest) == b"data"
        run = await self.lands(store, ending("r1", How.CANCEL))
        answer = await store.commit(Delete(run="r1"))
        assert (answer.verdict, answer.run, answer.left_ms) == (Verdict.LANDED, None, 0)
        await self.gone(store, digest)
        assert (await store.facts()).floor >= run.token
        assert (await store.commit(Delete(run="r1"))).verdict is Verdict.ALREADY
        for change in (claim(), signal(), ending("r1", How.CANCEL), write(grant, run), Renew(grant=grant)):
            await self.refuses(store, change, Why.ABSENT)
        created = await self.create(store, value="anew")
        assert created.run is not None
        assert created.run.token >= run.token
        successor, _ = await self.claim(store)
        assert successor.token > run.token
        await self.refuses(store, write(grant, run), Why.LOST)

    async def gone(self, store: Store, digest: str) -> None:
        """Check that no read shows anything of the run."""
        assert await store.load("r1") is None
        assert (await store.raw("r1"), await store.tail("r1"), await store.inbox("r1")) == ({}, [], [])
        assert await store.blob("r1", digest) is None
        assert (await store.due(["k"]), await store.next_due_ms(["k"]), await store.kinds()) == ([], None, [])
        assert (await store.find()).runs == ()

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.SUSPENDED, Status.QUARANTINED])
    async def test_i13_only_what_has_ended_is_deleted(self, store: Store, status: Status) -> None:
        await self.create(store)
        await self.reach(store, status)
        await self.refuses(store, Delete(run="r1"), Why.STATUS)

    async def test_i11_a_stretched_lease_is_cut_once(self, store: Store) -> None:
        grant, run = await self.begin(store, ttl_ms=5_000)
        await self.lands(store, Renew(grant=replace(grant, ttl_ms=900_000)))
        run = await self.lands(store, Repair(run="r1"))
        assert run.lease_until_ms == run.updated_ms + 5_000
        assert await store.next_due_ms(["k"]) == run.lease_until_ms
        await self.pass_ms(3)
        assert (await store.commit(Repair(run="r1"))).verdict is Verdict.ALREADY
        found = await store.load("r1")
        assert found is not None
        assert found.lease_until_ms == run.lease_until_ms, "written once, or the holder could never expire"
        await self.lands(store, write(grant, run))

    async def test_i12_repair_puts_back_what_the_index_lost(self, store: Store) -> None:
        lose = self.ability("lose_index_entry")
        _, run = await self.begin(store, ttl_ms=self.short_ms)
        await lose(store, run)
        await self.pass_ms(self.short_ms)
        assert (await store.next_due_ms(["k"]), await store.due(["k"])) == (None, [])
        await self.lands(store, Repair(run="r1"))
        assert [hint.run for hint in await store.due(["k"])] == ["r1"]
        await self.stands(store, Repair(run="r1"))
        assert (await store.commit(Repair(run="nowhere"))).verdict in (Verdict.LANDED, Verdict.ALREADY)
        await self.claim(store)

    async def test_the_grant_log_keeps_the_last_thirty_two(self, store: Store) -> None:
        grant, run = await self.begin(store)
        for _ in range(34):
            await self.lands(store, end(grant, How.YIELD, reason="é\x00", by="me"))
            grant, run = await self.claim(store)
        assert [line.ordinal for line in run.grants] == list(range(4, 36))
        assert (run.grants[-2].ended, run.grants[-2].reason, run.grants[-2].by) == ("yield", "é\x00", "me")

    async def reach(self, store: Store, status: Status) -> Run:
        """Bring the created run r1 into a status; return it."""
        if status is Status.QUEUED:
            found = await store.load("r1")
            assert found is not None
            return found
        grant, run = await self.claim(store)
        if status is Status.SUSPENDED:
            return await self.lands(store, suspend(grant, run, "go", due=Due(ms=600_000)))
        return await self.lands(store, end(grant, How.QUARANTINE)) if status is Status.QUARANTINED else run

    async def test_i13_a_cancel_with_grace_names_its_instant_and_wakes_the_run(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, suspend(grant, run, "go", due=Due(ms=600_000)))
        posts: list[Any] = [
            build.post(run="r1", item=f"c{ms}", name="cancel", ask=Ask.CANCEL, grace_ms=ms) for ms in (60_000, 90_000)
        ]
        run = await self.lands(store, posts[0])
        by_ms = run.updated_ms + 60_000
        assert (run.status, run.due_ms, run.wants, run.cancel_by_ms) == (Status.QUEUED, run.updated_ms, (), by_ms)
        run = await self.lands(store, posts[1])
        assert run.cancel_by_ms == by_ms, "a later request gives no more time"


def former(run: Run, place: int) -> Grant:
    """Return the grant of a line of the log."""
    return replace(grant_of(run), token=run.grants[place].token)


def ending(run: str, how: How, **more: Any) -> End:
    """Return an end by somebody without the grant."""
    return End(run=run, how=how, **more)
