"""What one renewal of all leases is worth a word of, and what hurries it."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tenure import LeaseLost, Ledger, Status, StoreUnavailable, open_store
from tenure.clock import ManualClock
from tenure.core.run import Answer, Change, Grant, Verdict
from tenure.errors import RowLocked, TenureError
from tenure.heartbeat import HeartbeatThread, beat
from tenure.pulse import Pulse
from tenure.testing.faults import Fault, FaultStore, Order
from tenure.trust import Trust

LOCKED = RowLocked("another transaction holds the row of run r; try again")
TTL_MS = 10_000
LANDED = Answer(verdict=Verdict.LANDED, now_us=0, left_ms=TTL_MS)


class Said:
    """A store that says to each renewal what it was told to, after what happens meanwhile."""

    def __init__(self, *answers: Answer | TenureError, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._answers = answers
        self._meanwhile = meanwhile

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Answer each renewal, or none of them."""
        self._meanwhile()
        if len(self._answers) != len(changes):
            message = "the store is down; it was ordered so"
            raise StoreUnavailable(message)
        return list(self._answers)


class Flown:
    """A write that is under way."""

    def overdue(self, now_ns: int, /) -> None:
        """Go on."""


class Stage:
    """Some leases on a clock that the test turns, and the words that beats have for them."""

    def __init__(self, caplog: pytest.LogCaptureFixture, count: int = 1) -> None:
        caplog.set_level(logging.WARNING, "tenure.lease")
        self._caplog = caplog
        self.clock = ManualClock()
        self.pulse = Pulse(max_stall_ms=3_600_000)
        now_ns = self.pulse.seen_ns = self.pulse.answered_ns = self.clock.boot_ns()
        grants = [Grant(run=f"r{n}", token=1, nonce="n", epoch="e", ttl_ms=TTL_MS) for n in range(count)]
        self.leases = [Trust(g, self.clock, sent_ns=now_ns, left_ms=TTL_MS, on_change=None) for g in grants]
        for lease in self.leases:
            self.pulse.enter(lease)

    def write(self, lease: Trust) -> None:
        """Begin a write of a lease."""
        self.pulse.flying[id(lease)] = Flown()

    def landed(self, lease: Trust) -> None:
        """End it, as its answer does."""
        self.pulse.flying.pop(id(lease), None)
        lease.believe(self.clock.boot_ns(), TTL_MS)

    async def words(self, *answers: Answer | TenureError, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        """Renew once, a third of the lease later, and return the runs that the log names."""
        self.clock.advance(ms=TTL_MS // 3)
        self._caplog.clear()
        said: Any = Said(*answers, meanwhile=meanwhile)
        await beat(said, self.pulse, self.clock, ttl_ms=TTL_MS)
        return [record.run_id for record in self._caplog.records if "STORE_UNAVAILABLE" in record.getMessage()]  # type: ignore[attr-defined]


async def test_i20_a_renewal_that_meets_the_holders_own_write_is_not_worth_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(caplog, 2)
    writing, idle = stage.leases
    stage.write(writing)
    assert await stage.words(LOCKED, LANDED) == []
    assert stage.pulse.answered_ns == stage.clock.boot_ns(), "the other answer was one"
    assert await stage.words(LANDED, LOCKED) == ["r1"], "a row that somebody else holds"
    assert writing.remaining_ms > idle.remaining_ms


async def test_i20_nor_is_one_that_met_a_write_that_was_answered_before_it(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(caplog)
    (lease,) = stage.leases
    assert await stage.words(LOCKED, meanwhile=lambda: stage.landed(lease)) == []
    stage.write(lease)
    assert await stage.words(LOCKED, meanwhile=stage.pulse.flying.clear) == []
    stage.landed(lease)
    assert await stage.words(LOCKED, meanwhile=lambda: stage.write(lease)) == [], "nor one that began after it"
    assert await stage.words(LOCKED, meanwhile=lambda: stage.write(lease)) == ["r0"], "no answer for half a lease"


async def test_i20_a_write_that_waits_for_the_row_itself_is_told_by_the_next_renewal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(caplog)
    stage.write(*stage.leases)
    assert await stage.words(LOCKED) == []
    assert await stage.words(LOCKED) == ["r0"]


async def test_i20_a_store_that_does_not_answer_is_told_for_every_lease(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(caplog, 2)
    stage.write(stage.leases[0])
    assert await stage.words() == ["r0", "r1"]
    away = StoreUnavailable("the connection ended; try again")
    assert await stage.words(away, away) == ["r0", "r1"]


async def test_i20_a_lease_that_ended_meanwhile_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(caplog)

    def end() -> None:
        stage.leases[0].over = True

    assert await stage.words(meanwhile=end) == []


async def test_i22_a_renewal_that_met_the_holders_own_write_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(caplog)
    (lease,) = stage.leases
    stage.write(lease)
    failing = []
    for answer in (LOCKED, LOCKED, LANDED):
        await stage.words(answer)
        failing.append(stage.pulse.failing)
        stage.landed(lease)
    assert failing == [False, True, False], "the answer to the write says whether the store is there"


class Hurried(HeartbeatThread):
    """A heartbeat that counts how often it is hurried."""

    count = 0

    def hurry(self) -> None:
        Hurried.count += 1
        super().hurry()


async def test_an_end_of_a_lease_hurries_the_heartbeat_only_if_it_is_not_its_own_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "heart", Hurried)
    monkeypatch.setattr(Hurried, "count", 0)
    async with FaultStore(open_store("memory://")) as store, Ledger(store, ttl=30) as ledger:
        await ledger.submit("count", 1, id="r1")
        await ledger.submit("count", 1, id="r2")
        late = Order(fault=Fault.DELAY, seconds=0.5, match=lambda change: getattr(change, "status", None) is not None)
        async with ledger.hold("r1"):
            async with ledger.hold("r2") as lease, anyio.create_task_group() as tasks:
                store.orders.append(late)
                tasks.start_soon(partial(lease.hand_back, after=0))
                while (run := await store.load("r2")) is None or run.status is Status.RUNNING:
                    await anyio.lowlevel.checkpoint()
                assert not lease.over, "its end has landed, and is not answered"
                await store.wake("run:r1")
                await anyio.sleep(0.1)
                assert (lease.over, Hurried.count) == (False, 0)
            with pytest.raises(LeaseLost, match="cancelled"):
                async with ledger.hold("r2"):
                    await ledger.cancel("r2")
                    await anyio.sleep_forever()
            assert Hurried.count > 0
