"""Clocks: who measures a lease, and from when."""

import time

import anyio
import pytest

from scenarios.telling import SHORT_MS, claimed, created, until_over, why
from tenure import Ledger, open_store
from tenure.core.run import Why
from tenure.store import Store
from tenure.testing.contract_case import claim

MINUTE_NS = 60_000_000_000


async def test_b065_a_lease_is_judged_by_the_store_s_clock(
    store_url: str, namespace: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(store)
    grant, run = await claimed(store, ttl_ms=1_500)
    real = time.time_ns
    for skew_ns in (10 * MINUTE_NS, -10 * MINUTE_NS):
        monkeypatch.setattr(time, "time_ns", lambda skew_ns=skew_ns: real() + skew_ns)
        monkeypatch.setattr(time, "time", lambda skew_ns=skew_ns: (real() + skew_ns) / 1e9)
        async with open_store(store_url, namespace=namespace) as other:
            for _ in range(3):
                answer = await other.commit(claim(owner="b"))
                assert answer.why is Why.HELD
                assert answer.run is not None
                assert answer.run.lease_until_ms == run.lease_until_ms
            assert abs((await other.facts()).now_ms - (await store.facts()).now_ms) < 1_000
    monkeypatch.undo()
    await until_over(run, store)
    _, taken = await claimed(store, owner="b")
    assert 0 <= taken.updated_ms - run.lease_until_ms < 1_000
    assert abs(taken.updated_ms - time.time_ns() // 1_000_000) < 2_000
    assert taken.token > grant.token


async def test_b066_a_jump_of_the_wall_clock_moves_no_lease(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    await ledger.submit("k", None, id="r1")
    real, real_ns = time.time, time.time_ns
    async with ledger.hold("r1") as lease:
        for jump_s in (3600, -2 * 3600, 0):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
            monkeypatch.setattr(time, "time_ns", lambda jump_s=jump_s: real_ns() + jump_s * 1_000_000_000)
            await anyio.sleep(0.5)
            lease.check()
            await lease.checkpoint(jump_s)
            assert 0 < lease.remaining_ms <= 1_000
        await lease.settle("completed")
    run = await ledger.load("r1")
    assert (run.ordinal, run.attempt) == (1, 1)


async def test_b067_a_contender_s_own_duration_says_nothing_about_the_holder_s(store: Store, other: Store) -> None:
    await created(store)
    _, run = await claimed(store, ttl_ms=60_000)
    await anyio.sleep(SHORT_MS / 1000)
    async with Ledger(other, ttl=1) as ledger:
        answer = await other.commit(claim(ttl_ms=SHORT_MS // 4))
        assert answer.why is Why.HELD
        assert run.lease_until_ms - answer.now_us // 1000 > 59_000
        with pytest.raises(Exception, match="LEASE_HELD") as held:
            async with ledger.hold("r1", ttl=1):
                pytest.fail("a long lease was taken by a short one")
        assert 59_000 < held.value.remaining_ms <= 60_000  # type: ignore[attr-defined]


async def test_b068_a_lease_that_ended_long_ago_is_taken_by_the_first_request(store: Store, other: Store) -> None:
    await created(store)
    _, run = await claimed(store, ttl_ms=SHORT_MS)
    await until_over(run, store)
    assert await why(other, claim(owner="fresh")) is None
    found = await other.load("r1")
    assert found is not None
    assert (found.owner, found.attempt) == ("fresh", 2)
