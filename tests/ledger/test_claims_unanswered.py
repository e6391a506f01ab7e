"""Claims whose answers are lost, beside claims that were answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from tenure import Ledger, OutcomeUnknown, RunNotFound, Status, StoreUnavailable, open_store
from tenure.core import build
from tenure.core.run import Answer, Change, Claim, How, Run, Verdict, Why
from tenure.lease import Lease
from tenure.stores.memory import MemoryStore
from tenure.testing.faults import Fault, FaultStore, Order

BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    async with FaultStore(open_store("memory://")) as store:
        yield store


def claim_of(run_id: str) -> Callable[[Change], bool]:
    return lambda change: isinstance(change, Claim) and change.run == run_id


async def claimed(ledger: Ledger, *run_ids: str) -> list[object]:
    claims = ledger.claims
    return list(await claims.claim_many([claims.change(run_id) for run_id in run_ids]))


@BOTH
async def test_what_was_not_written_is_an_answer_and_a_look_goes_on(store: FaultStore) -> None:
    async with Ledger(store, ttl=60) as ledger:
        for run_id in ("a", "b"):
            await ledger.submit("k", 1, id=run_id)
        store.orders.append(Order(fault=Fault.NOT_SERVED, times=99, match=claim_of("a")))
        begun = time.monotonic()
        first, second = await claimed(ledger, "a", "b")
        assert isinstance(first, StoreUnavailable)
        assert isinstance(second, Lease)
        assert time.monotonic() - begun < 30, "half a ttl"
        assert len([change for change in store.sent if claim_of("a")(change)]) == 1


@BOTH
async def test_i21_a_claim_that_landed_unheard_is_given_back_when_the_others_no_longer_wait_for_it(
    store: FaultStore,
) -> None:
    async with Ledger(store, ttl=60) as ledger:
        for run_id in ("a", "b"):
            await ledger.submit("k", 1, id=run_id)
        deaf = Order(fault=Fault.REPLY_LOST, times=9_999, match=claim_of("a"))
        store.orders.append(deaf)
        first, second = await claimed(ledger, "a", "b")
        assert isinstance(first, OutcomeUnknown)
        assert isinstance(second, Lease)
        assert (await ledger.load("a")).status is Status.RUNNING, "it landed, and nobody was told"
        store.orders.remove(deaf)
        with anyio.fail_after(30):
            while (await ledger.load("a")).status is Status.RUNNING:  # noqa: ASYNC110 - another task gives it back
                await anyio.sleep(0.02)
        assert (await ledger.load("a")).crashes == 0


async def test_i21_who_is_cancelled_in_the_moment_in_which_the_grant_comes_gives_it_back() -> None:
    """By a cancel of asyncio's own: those of anyio come a moment later, when the caller has the lease."""

    class Cancels(MemoryStore):
        async def commit(self, change: Change, /) -> Answer:
            answer = await super().commit(change)
            if isinstance(change, Claim):
                asyncio.get_running_loop().call_soon(wants.cancel)  # ahead of who waits for the answer
            return answer

    async with Cancels() as store, Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        wants = asyncio.ensure_future(ledger.claims.claim(ledger.claims.change("r1")))
        with pytest.raises(asyncio.CancelledError):
            await wants
        with anyio.fail_after(60):
            while (await ledger.load("r1")).status is not Status.QUEUED:  # noqa: ASYNC110 - another task gives it back
                await anyio.sleep(0.001)
        assert (await ledger.load("r1")).ordinal == 1


@BOTH
async def test_i03_a_claim_that_arrives_again_after_its_grant_and_the_next_are_no_second_grant(
    store: FaultStore,
) -> None:
    """Whoever claims names the token that it saw, which no run has twice."""
    async with Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        for _ in range(2):
            async with ledger.hold("r1"):
                pass
        first, _ = [change for change in store.sent if isinstance(change, Claim)]
        run = await ledger.load("r1")
        answer = await store.commit(first)
        assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.MOVED)
        assert (await ledger.load("r1")).version == run.version


@BOTH
async def test_a_run_that_was_held_and_released_between_look_and_claim_is_looked_at_again() -> None:
    class Between(MemoryStore):
        moves = 2

        async def load(self, run_id: str, /) -> Run | None:
            found = await super().load(run_id)
            if found is not None and self.moves:
                self.moves -= 1
                claim = Claim(run=run_id, nonce=f"{self.moves:032d}", owner="other", ttl_ms=60_000)
                held = (await self.commit(claim)).run
                assert held is not None
                end = build.end(run=run_id, how=How.YIELD, token=held.token, nonce=held.nonce, reason="")
                assert (await self.commit(end)).ok
            return found

    async with Between() as store, Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        async with ledger.hold("r1") as lease:
            assert (store.moves, lease.run.ordinal) == (0, 3)
        with pytest.raises(RunNotFound):
            async with ledger.hold("nowhere"):
                pass


@BOTH
async def test_a_hold_asks_a_store_that_is_away_for_a_while() -> None:
    class Away(MemoryStore):
        away = 2

        async def load(self, run_id: str, /) -> Run | None:
            if self.away:
                self.away -= 1
                message = "away"
                raise StoreUnavailable(message)
            return await super().load(run_id)

    async with Away() as away, Ledger(away, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        async with ledger.hold("r1"):
            assert away.away == 0
