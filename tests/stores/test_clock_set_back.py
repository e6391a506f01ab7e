"""A store's clock that is set back: every store decides and repairs by the same law, and nothing stays out of reach."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from tenure import Ledger
from tenure.clock import ManualClock
from tenure.core import build
from tenure.core.run import LEADER_ID, Ask, Change, Claim, Create, Due, How, Renew, Repair, Run, Status, Verdict, Why
from tenure.errors import LeaseHeld
from tenure.executing import NoReports
from tenure.leader import KIND, Leader
from tenure.repair import repair_pass
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.contract_case import claim, end, grant_of, suspend, write
from tenure.testing.generate import Sequence, Tally

HOUR_MS = 3_600_000
TTL_MS = 5_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# The clocks of servers can be set; that of memory and of a SQLite file never goes back.
@pytest.fixture(params=["redis7", "redis8", "valkey9", "postgres"])
async def store(request: pytest.FixtureRequest, clock: ManualClock, namespace: str) -> AsyncIterator[Store]:
    served = request.getfixturevalue("postgres_url" if request.param == "postgres" else request.param)
    url = f"{getattr(served, 'url', served)}?testing=on"
    async with open_store(url, namespace=namespace, clock=clock) as store:
        yield store


async def landed(store: Store, change: Change) -> Run:
    answer = await store.commit(change)
    assert answer.verdict is Verdict.LANDED, answer
    run = await store.load(change.run)
    assert run is not None
    return run


async def begun(store: Store) -> Run:
    await _queued(store)
    return await landed(store, claim(ttl_ms=TTL_MS))


async def _queued(store: Store) -> None:
    await landed(store, build.create(run="r1", kind="k", value=1))


async def _held(store: Store) -> None:
    await begun(store)


async def _handed_back(store: Store) -> None:
    await landed(store, end(grant_of(await begun(store)), How.YIELD))


async def _stepped_back(store: Store) -> None:
    run = await begun(store)
    await landed(store, write(grant_of(run), run, status=Status.QUEUED))


async def _given_up(store: Store) -> None:
    await landed(store, end(grant_of(await begun(store)), How.FORFEIT))


async def _asleep_until_now(store: Store) -> None:
    run = await begun(store)
    await landed(store, suspend(grant_of(run), run, due=Due()))


@pytest.mark.parametrize("before", [_queued, _held, _handed_back, _stepped_back, _given_up, _asleep_until_now])
async def test_i11_what_was_due_is_within_reach_after_a_repair_though_the_clock_was_set_back(
    store: Store, clock: ManualClock, before: object
) -> None:
    await before(store)  # type: ignore[operator]
    clock.advance(ms=-HOUR_MS)
    assert (await store.commit(claim(max_crashes=0))).why in (Why.HELD, Why.NOT_DUE, Why.SUSPENDED)
    assert (await repair_pass(store)).stretched == 1
    assert (await repair_pass(store)).stretched == 0, "once, or it could never end"
    clock.advance(ms=TTL_MS)
    assert [hint.run for hint in await store.due(["k"])] == ["r1"]
    assert (await landed(store, claim(max_crashes=0))).status is Status.RUNNING


async def test_i11_what_a_holder_wrote_after_the_clock_was_set_back_does_not_hide_that_it_was_due(
    store: Store, clock: ManualClock
) -> None:
    run = await begun(store)
    clock.advance(ms=-HOUR_MS)
    await landed(store, write(grant_of(run), run))
    await repair_pass(store)
    clock.advance(ms=TTL_MS)
    assert (await landed(store, claim(max_crashes=0))).attempt == 2


@pytest.mark.parametrize("before", [_queued, _handed_back, _stepped_back, _asleep_until_now])
async def test_i11_what_is_posted_after_the_clock_was_set_back_does_not_hide_that_a_run_was_due(
    store: Store, clock: ManualClock, before: object
) -> None:
    await before(store)  # type: ignore[operator]
    shown = await store.load("r1")
    assert shown is not None
    clock.advance(ms=-HOUR_MS)
    run = await landed(store, build.post(run="r1", item="i1", name="nobody waits for it", ask=Ask.SIGNAL))
    assert (run.due_ms, run.updated_ms) == (shown.due_ms, shown.updated_ms)
    run = await landed(store, Repair(run="r1"))
    assert run.due_ms == (await store.facts()).now_ms
    assert (await landed(store, claim(max_crashes=0))).status is Status.RUNNING


@pytest.mark.parametrize("status, why", [(Status.QUEUED, Why.STATUS), (Status.COMPLETED, Why.CLOSED)])
async def test_i01_what_its_holder_ended_is_not_renewed_though_the_clock_was_set_back(
    store: Store, clock: ManualClock, status: Status, why: Why
) -> None:
    run = await begun(store)
    await landed(store, write(grant_of(run), run, status=status))
    clock.advance(ms=-HOUR_MS)
    before = await store.load("r1")
    assert before is not None
    # Nonce, token and epoch are still those of the grant, and its end is to come: only the status says that it is over.
    assert (before.nonce, before.token) == (run.nonce, run.token)
    assert before.lease_until_ms > (await store.facts()).now_ms
    answer = await store.commit(Renew(grant=grant_of(run)))
    assert (answer.verdict, answer.why) == (Verdict.REFUSED, why)
    assert await store.load("r1") == before


async def test_i11_what_sleeps_until_later_sleeps_on(store: Store, clock: ManualClock) -> None:
    run = await begun(store)
    await landed(store, suspend(grant_of(run), run, due=Due(ms=60_000)))
    clock.advance(ms=-HOUR_MS)
    assert (await repair_pass(store)).stretched == 0
    found = await store.load("r1")
    assert found is not None
    assert found.due_ms == (await store.facts()).now_ms + HOUR_MS + 60_000


async def test_i28_another_leads_soon_though_the_clock_was_set_back(store: Store, clock: ManualClock) -> None:
    await landed(store, Create(run=LEADER_ID, kind=KIND, input_digest="", row=None))
    await landed(store, Claim(run=LEADER_ID, nonce="a" * 32, owner="dead", ttl_ms=TTL_MS))
    clock.advance(ms=-HOUR_MS)
    async with Ledger(store, ttl=TTL_MS / 1000) as ledger:
        leader = Leader(ledger, ["k"], NoReports(), lambda: None)
        with pytest.raises(LeaseHeld) as held:
            await leader._run_for_it()
        assert held.value.remaining_ms <= TTL_MS
        clock.advance(ms=TTL_MS)
        lease = await leader._run_for_it()
        assert lease.run.owner == ledger.owner
        await ledger.claims.give_back(lease, reason="the test is over")


class SetBack(Sequence):
    """Compares answers and contents; the index may be late until the next repair, which is compared too."""

    def _check_index(self, change: Change, entry: int | None) -> None:
        if isinstance(change, Repair) and self.model.run is not None:
            super()._check_index(change, entry)


async def test_i11_generated_changes_are_answered_as_the_rules_answer_while_the_clock_goes_back(
    store: Store, clock: ManualClock
) -> None:
    drawn, tally = random.Random(1), Tally()

    async def pass_ms(ms: int) -> None:
        clock.advance(ms=drawn.choice([ms, ms, -1_000, -70_000, -HOUR_MS]))

    for seed in range(30):
        sequence = SetBack(store=store, seed=f"back.{seed}", pass_ms=pass_ms, short_ms=80, tally=tally, patient=True)
        await sequence.play(steps=30, claimed=seed % 2 == 0)
    assert min(tally.landed(name) for name in ("repair", "claim", "commit", "post", "end")) > 5, tally
