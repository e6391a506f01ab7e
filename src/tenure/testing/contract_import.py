"""The contract of an import: a run arrives whole, held by nobody, once; and it stops no other run for long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tenure.carry import Whole, bring
from tenure.core import build
from tenure.core.run import (
    NOW,
    Ask,
    Change,
    Delete,
    Facts,
    Grant,
    How,
    Import,
    Outcome,
    Request,
    Run,
    Status,
    Verdict,
    Why,
)
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, claim, end, grant_of, nonce, signal, suspend, write
from tenure.testing.contract_history import reattach
from tenure.testing.generate import Model

SALT = "5a17" * 4
MADE_US = 1_700_000_000_000_000


class Elsewhere:
    """A store that is not this one: the pure rules, by which a run lives until it is carried away."""

    def __init__(self) -> None:
        self.model = Model()
        self.now_us = MADE_US
        self.grant: Grant | None = None

    def land(self, *changes: Change) -> Run:
        """Let changes land, a millisecond apart."""
        for change in changes:
            self.now_us += 1000
            assert self.model.decide(change, Facts(now_us=self.now_us, epoch="elsewhere.1")).ok
        assert self.model.run is not None
        return self.model.run

    def begin(self, *, kind: str = "k") -> tuple[Grant, Run]:
        """Create and claim the run."""
        run = self.land(build.create(run="r1", kind=kind, value={"in": "put"}, tags={"a": "é"}), claim())
        self.grant = grant_of(run)
        return self.grant, run

    def steps(self, values: Sequence[str], *, blobs: Sequence[bytes] = ()) -> tuple[Grant, Run]:
        """Begin, and commit a step for each value."""
        grant, run = self.begin()
        for value in values:
            run = self.land(write(grant, run, value, step=1, blobs=blobs))
        return grant, run

    def whole(self) -> Whole:
        """Return all of the run."""
        found = self.model.whole()
        assert found is not None
        return found

    def change(self, salt: str = SALT) -> Import:
        """Return the change that brings it here."""
        return bring(self.whole(), salt=salt)


class ImportContract(StoreCase):
    """The tenth change."""

    async def test_i08_an_import_brings_in_all_of_a_run(self, store: Store) -> None:
        there = Elsewhere()
        blobs = [b"small", b"large" * 20_000]
        grant, run = there.steps(["x" * 2_000] * 40 + ["y" * 90_000, "z"], blobs=blobs)
        run = there.land(signal(item="i1", value="first"), signal(item="i2", value="second"))
        there.land(write(grant, run, consume=["i1"], inbox_seq=2, requests={"q1": Request(digest="d")}))
        whole = there.whole()
        change = there.change()
        run = await self.lands(store, change)
        kept = await self.kept(store)
        assert list(kept.rows) == list(whole.rows), "with the times at which they were written"
        assert kept.items == list(whole.items)
        assert [item.consumed for item in kept.items] == [True, False]
        assert [await store.blob("r1", digest) for digest in whole.blobs] == list(whole.blobs.values())
        assert verify_run(run, kept.rows).ok
        same = (
            "kind",
            "input_digest",
            "tags",
            "step",
            "last_seq",
            "head",
            "base_seq",
            "requests",
            "inbox_seq",
            "attempt",
        )
        for name in (*same, "created_ms", "crashes", "failures"):
            assert getattr(run, name) == getattr(whole.record, name), name

    async def test_i04_an_import_drops_the_grant_and_counts_no_crash(self, store: Store) -> None:
        there = Elsewhere()
        grant, before = there.steps(["a"])
        run = await self.lands(store, there.change())
        assert (run.status, run.owner, run.nonce) == (Status.QUEUED, "", "")
        assert (run.attempt, run.crashes) == (1, 0)
        assert [line.ended for line in run.grants] == ["imported", "imported"]
        for former in (grant, replace(grant, epoch=run.epoch), replace(grant, token=run.token, epoch=run.epoch)):
            await self.refuses(store, write(former, before), Why.LOST)
        assert run.due_ms == await store.next_due_ms(["k"])
        taken, run = await self.claim(store)
        assert (run.attempt, run.crashes) == (1, 0)
        assert taken.token > grant.token
        await self.lands(store, write(taken, run))

    async def test_i07_the_same_import_again_is_already_there_even_if_the_run_went_on(self, store: Store) -> None:
        there = Elsewhere()
        there.steps(["a"])
        change = there.change()
        await self.lands(store, change)
        await self.stands(store, change)
        await self.stands(store, there.change("ba5e" * 4))
        grant, run = await self.claim(store)
        await self.lands(store, write(grant, run, status=Status.COMPLETED))
        await self.stands(store, change)

    async def test_i07_another_content_under_the_id_is_refused(self, store: Store) -> None:
        there = Elsewhere()
        grant, run = there.steps(["a"])
        await self.create(store, value={"in": "put"})
        await self.refuses(store, there.change(), Why.CONFLICT)
        await self.lands(store, end(replace(grant, nonce=""), How.CANCEL))
        assert (await store.commit(Delete(run="r1"))).verdict is Verdict.LANDED
        await self.lands(store, there.change())
        there.land(write(grant, run, "b", step=1))
        await self.refuses(store, there.change(), Why.CONFLICT)
        there.land(end(grant, How.CANCEL))
        await self.refuses(store, there.change(), Why.CONFLICT)

    async def test_i02_tokens_rise_through_an_import(self, store: Store) -> None:
        there = Elsewhere()
        grant, _ = there.steps(["a"])
        far = (await store.facts()).now_us + 10**12
        there.model.run = replace(there.whole().record, token=far)
        run = await self.lands(store, there.change())
        assert run.token > far
        assert (await store.facts()).floor == run.token
        await self.lands(store, end(grant, How.CANCEL))
        assert (await store.commit(Delete(run="r1"))).verdict is Verdict.LANDED
        again = await self.lands(store, build.create(run="r1", kind="k", value=1))
        assert again.token > far
        await self.lands(store, end(grant_of(again), How.CANCEL))
        assert (await store.commit(Delete(run="r1"))).verdict is Verdict.LANDED
        brought = await self.lands(store, there.change())
        assert brought.token > again.token

    async def test_i10_an_import_is_another_history_for_who_holds_other_runs(self, store: Store) -> None:
        await store.raise_ttl(60_000)
        grant, run = await self.begin(store, "r2", kind="k2")
        there = Elsewhere()
        there.steps(["a"])
        before = await store.facts()
        await self.lands(store, there.change())
        facts = await store.facts()
        assert facts.epoch != before.epoch
        await self.refuses(store, write(grant, run), Why.HISTORY)
        run = await self.lands(store, reattach(grant, run))
        # Runs that come together share a salt, so a holder is asked once; and nobody waits, for nothing is lost.
        whole = _settled("r3")
        await self.lands(store, bring(whole, salt=SALT))
        await self.lands(store, write(grant_of(run), run))
        if not (before.lossy and before.now_ms < before.since_ms + before.max_ttl_ms):
            await self.create(store, "r4", kind="k4")
            await self.lands(store, claim("r4"))

    async def test_i13_a_settled_run_arrives_settled(self, store: Store) -> None:
        whole = _settled("r1")
        run = await self.lands(store, bring(whole, salt=SALT))
        assert (run.status, run.updated_ms) == (Status.COMPLETED, whole.record.updated_ms)
        assert run.outcome == whole.record.outcome
        assert run.outcome is not None
        assert await store.blob("r1", run.outcome.result) == b'"done"'
        assert await store.next_due_ms(["k"]) is None
        await self.refuses(store, claim(), Why.CLOSED)
        assert [run.id for run in (await store.find()).runs] == ["r1"]
        assert (await store.commit(Delete(run="r1"))).verdict is Verdict.LANDED

    async def test_i15_a_suspended_run_waits_for_the_same_as_before(self, store: Store) -> None:
        there = Elsewhere()
        grant, run = there.begin()
        asked = {"q1": Request(digest="d1")}
        there.land(suspend(grant, run, "q1", requests=asked))
        run = await self.lands(store, there.change())
        assert (run.status, run.wants, run.requests) == (Status.SUSPENDED, ("q1",), asked)
        decision = build.post(run="r1", item="q1", name="q1", ask=Ask.DECIDE, value=True, request="d1")
        assert (await self.lands(store, decision)).status is Status.QUEUED
        grant, run = await self.claim(store)
        await self.lands(store, write(grant, run, consume=["q1"], inbox_seq=1, requests={}))

    @pytest.mark.parametrize("due", [None, NOW])
    async def test_i12_a_queued_run_is_due_as_it_was(self, store: Store, due: object) -> None:
        there = Elsewhere()
        there.land(build.create(run="r1", kind="k", value=1, due=NOW if due else None))
        run = await self.lands(store, there.change())
        assert run.due_ms == there.whole().record.due_ms == await store.next_due_ms(["k"])

    async def test_i08_a_long_run_arrives_whole(self, store: Store) -> None:
        there = Elsewhere()
        there.steps([f"{number} " + "x" * 3_000 for number in range(1_200)])
        run = await self.lands(store, there.change())
        rows = await store.tail("r1", limit=10_000)
        assert verify_run(run, rows).ok
        assert len(rows) == 1_201


def _settled(run_id: str) -> Whole:
    model = Model()
    changes: list[Change] = [build.create(run=run_id, kind="k", value=1), claim(run_id, nonce=nonce())]
    for change in changes:
        model.decide(change, Facts(now_us=MADE_US))
    assert model.run is not None
    data = b'"done"'
    (digest,) = build.commit(grant_of(model.run), 2, model.run.head, [], blobs=[data]).blobs
    done = write(grant_of(model.run), model.run, status=Status.COMPLETED, blobs=[data],
                 outcome=Outcome(result=digest))  # fmt: skip
    model.decide(done, Facts(now_us=MADE_US + 5_000))
    whole = model.whole()
    assert whole is not None
    return whole
