"""A worker in this process: what it claims, in which order, beside what, and how it stops."""

import os
from typing import Any

import anyio
import pytest

from tenure import ActiveRun, App, NotAllowed, RunQuarantined, Status, StoreUnavailable, UnknownKind, Worker, open_store
from tenure.cli.worker import live
from tenure.core.run import LEADER_ID, Claim
from tenure.looks import Looks, choose
from tenure.store import Hint
from worker.kit import counting, dead, opened, until, working

pytestmark = pytest.mark.anyio


async def test_it_runs_what_is_due_now_what_becomes_due_and_no_more_than_it_has_slots_for() -> None:
    started: list[str] = []
    gate = anyio.Event()
    async with opened() as ledger, working(counting(started, gate), ledger, concurrency=2) as worker:
        for n in range(4):
            await ledger.submit("k", None, id=f"r{n}")
        await ledger.submit("k", None, id="later", at=0.2)
        await until(lambda: len(started) == 2)
        await anyio.sleep(0.1)
        assert len(worker.slots.executions) == 2
        gate.set()
        await until(lambda: len(started) == 5)
        assert await ledger.handle("later").result(timeout=5) == "later"
    assert sorted(started) == ["later", "r0", "r1", "r2", "r3"]


async def test_among_the_hints_of_one_look_priority_goes_first_then_due_time() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await ledger.submit("k", None, id="first")
        await anyio.sleep(0.002)
        await ledger.submit("k", None, id="second")
        await anyio.sleep(0.002)
        await ledger.submit("k", None, id="urgent", priority=5)
        async with working(counting(started), ledger, concurrency=1):
            await until(lambda: len(started) == 3)
    assert started == ["urgent", "first", "second"]


def test_scattered_choices_keep_to_priority_and_to_the_longest_due() -> None:
    hints = [Hint(run=f"r{n}", kind="k", due_ms=n, token=1, priority=n % 2) for n in range(100)]
    assert [h.run for h in choose(hints, 3)] == ["r1", "r3", "r5"]
    seen = {h.run for _ in range(200) for h in choose(hints, 2, scatter=True)}
    assert seen == {f"r{n}" for n in range(1, 33, 2)}
    assert len(choose(hints[:3], 10, scatter=True)) == 3


async def test_it_never_claims_a_kind_that_it_does_not_have() -> None:
    started: list[str] = []
    async with opened() as ledger, working(counting(started), ledger):
        await ledger.submit("other", None, id="other")
        await ledger.submit("k", None, id="mine")
        await until(lambda: started == ["mine"])
        await anyio.sleep(0.3)
        assert (await ledger.load("other")).status is Status.QUEUED


async def test_a_worker_is_told_what_it_cannot_do() -> None:
    async with opened() as ledger:
        with pytest.raises(UnknownKind, match="has k"):
            Worker(counting([]), ledger, kinds=["k", "x"])
        with pytest.raises(NotAllowed, match="no kind"):
            Worker(App(), ledger)
        with pytest.raises(NotAllowed, match="one slot"):
            Worker(counting([]), ledger, concurrency=0)


async def test_i28_the_leader_yields_when_it_drains_and_another_leads_at_once() -> None:
    app = counting([])
    async with opened("memory://leads") as one, opened("memory://leads") as two:
        async with working(app, one) as first:
            await until(lambda: first.leader.leading)
            async with working(app, two) as second:
                await until(lambda: second.looks > 0)
                assert not second.leader.leading
                await first.drain()
                await until(lambda: second.leader.leading, seconds=1)
        record = await one.store.load(LEADER_ID)
        assert record is not None
        assert (record.status, record.crashes, record.last_seq) == (Status.QUEUED, 0, 0)
        assert [line.ended for line in record.grants] == ["yield", "yield"]


async def test_i28_a_leader_that_loses_its_lease_leads_no_more_under_it() -> None:
    async with opened(ttl=1) as ledger, working(counting([]), ledger) as worker:
        await until(lambda: worker.leader.leading)
        lease = worker.leader.lease
        assert lease is not None
        # From here on nobody renews it, as if the store had not been reached.
        ledger.pulse.leave(lease.trust)
        await until(lambda: worker.leader.lease not in (None, lease), seconds=3)
        assert not lease.live
        assert worker.leader.lease is not None
        assert worker.leader.lease.token > lease.token


async def test_i12_the_pass_on_boot_finds_what_the_index_lost() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await ledger.submit("k", None, id="lost")
        ledger.store._space.due.clear()  # type: ignore[attr-defined]
        async with working(counting(started), ledger) as worker:
            await until(lambda: started == ["lost"])
            assert worker.leader.passes == 1


async def test_i28_what_becomes_due_during_a_long_pass_is_due_now(monkeypatch: pytest.MonkeyPatch) -> None:
    async def long(*_: Any, **__: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("tenure.leader.repair_pass", long)
    started: list[str] = []
    async with opened() as ledger, working(counting(started), ledger) as worker:
        await until(lambda: worker.leader.leading and worker.looks > 0)
        await ledger.submit("k", None, id="r", at=0.5)
        await until(lambda: started == ["r"], seconds=4)


async def test_i23_a_drain_hands_back_what_does_not_end_and_counts_nothing() -> None:
    started: list[str] = []
    async with opened("memory://drain") as one, opened("memory://drain") as two:
        async with Worker(counting(started, anyio.Event()), one, drain=0.1) as worker:
            await one.submit("k", None, id="r")
            await until(lambda: started == ["r"])
            before = anyio.current_time()
            await worker.drain()
            assert anyio.current_time() - before < 20, "the step in hand never ends"
            assert (worker.draining, worker.ready) == (True, False)
            run = await one.load("r")
            assert (run.status, run.attempt, run.crashes, run.failures) == (Status.QUEUED, 1, 0, 0)
        async with working(counting(started), two):
            await until(lambda: started == ["r", "r"])
            assert await two.handle("r").result(timeout=5) == "r"


async def test_a_drain_with_less_grace_shortens_the_one_that_goes_on() -> None:
    started: list[str] = []
    async with opened() as ledger, Worker(counting(started, anyio.Event()), ledger, drain=60) as worker:
        await ledger.submit("k", None, id="r")
        await until(lambda: started == ["r"])
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.drain)
                await anyio.sleep(0.05)
                await worker.drain(grace=0)


async def test_b062_corrupt_data_sets_one_run_aside_and_the_others_go_on() -> None:
    started: list[str] = []
    async with opened() as ledger:
        for n in range(3):
            await ledger.submit("k", None, id=f"r{n}")
        rows = ledger.store._space.shelves["r1"].rows  # type: ignore[attr-defined]
        from dataclasses import replace

        rows[0] = replace(rows[0], body=rows[0].body[:-5])
        async with working(counting(started), ledger):
            with pytest.raises(RunQuarantined):
                await ledger.handle("r1").result(timeout=5)
            await until(lambda: len(started) == 2)
        assert (await ledger.load("r1")).grants[-1].ended == "quarantine"
        assert sorted(started) == ["r0", "r2"]


async def test_each_worker_keeps_a_row_of_its_own() -> None:
    async with opened() as ledger, working(counting([]), ledger, concurrency=3) as worker:
        await until(lambda: worker.looks > 0)
        (row,) = await ledger.store.beats()
        assert (row.pid, row.kinds, row.slots, row.busy) == (os.getpid(), ("k",), 3, 0)
        _, until_ms = ledger.store._space.beats[row.name]  # type: ignore[attr-defined]
        assert until_ms == row.at_ms + 60_000, "who dies is shown as silent for as long as docs/workers.md says"
        await worker.drain()
        assert await ledger.store.beats() == [], "one that stops in good order is neither live nor silent"


async def test_it_is_ready_once_it_has_looked_and_not_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as ledger, working(counting([]), ledger) as worker:
        assert not worker.ready
        await until(lambda: worker.ready)

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("away; ask again")

        monkeypatch.setattr(ledger.store, "due", away)
        worker.wake()
        await until(lambda: not worker.ready)
        monkeypatch.undo()
        await until(lambda: worker.ready)
    assert [line for line in caplog.messages if "looked at" in line] == [
        "the store cannot be looked at: STORE_UNAVAILABLE: away; ask again",
        "the store can be looked at again",
    ]


async def test_it_is_live_while_its_heartbeat_waits_for_a_store_that_is_away() -> None:
    async with opened(ttl=60) as ledger, working(counting([]), ledger) as worker:
        # A beat may wait for ttl/6: a worker must not be restarted because its store is.
        ledger.pulse.turned_ns = ledger.clock.boot_ns() - 11_000_000_000
        assert live(worker)
        ledger.pulse.turned_ns = ledger.clock.boot_ns() - 61_000_000_000
        assert not live(worker)


async def test_the_lifespan_is_entered_once_and_left_at_the_end() -> None:
    from contextlib import asynccontextmanager

    seen: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: App) -> Any:
        seen.append("in")
        yield {"pool": 1}
        seen.append("out")

    app = App(lifespan=lifespan)

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        seen.append(run.deps)

    async with opened() as ledger, working(app, ledger):
        await (await ledger.submit(handler, None)).result(timeout=5)
        await (await ledger.submit(handler, None)).result(timeout=5)
    assert seen == ["in", {"pool": 1}, {"pool": 1}, "out"]


async def test_runs_that_need_an_empty_process_do_not_keep_the_slots_from_runs_behind_them() -> None:
    app, started, gate = App(), [], anyio.Event()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        started.append(run.id)
        await run.step("wait", gate.wait)

    async with opened() as ledger:
        await ledger.submit("k", None, id="busy", priority=1)
        for n in range(5):
            await ledger.submit("k", None, id=f"suspect{n}")
            await dead(ledger, f"suspect{n}")
        async with working(app, ledger, concurrency=3) as worker:
            await until(lambda: started == ["busy"])
            await until(lambda: worker.slots.free == 2)
            for n in range(2):
                await ledger.submit("k", None, id=f"r{n}")
            worker.wake()
            await until(lambda: sorted(started) == ["busy", "r0", "r1"], seconds=20)
            gate.set()
            await until(lambda: len(started) == 8)


async def test_i21_a_claim_that_was_on_its_way_when_a_worker_drained_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = anyio.Event()
    async with open_store("memory://") as store:
        commit = store.commit

        async def slow(change: Any) -> Any:
            if isinstance(change, Claim) and change.run == "r":
                answer = await commit(change)
                sent.set()
                await anyio.sleep(0.2)  # the way back
                return answer
            return await commit(change)

        monkeypatch.setattr(store, "commit", slow)
        async with Worker(counting([]), store) as worker:
            await worker.ledger.submit("k", None, id="r")
            await sent.wait()
        run = await store.load("r")
        assert run is not None
        assert (run.status, run.nonce, run.crashes) == (Status.QUEUED, "", 0)


async def test_a_run_whose_entry_was_early_is_claimed_as_soon_as_it_is_handed_back() -> None:
    app = counting([])
    async with opened("memory://early", ttl=4) as holder, opened("memory://early") as other:
        looks = Looks(other, app.kinds)
        await holder.submit("k", None, id="r")
        async with holder.hold("r"):
            # Renewals do not move the entry: from the end of the first ttl on the run looks due, and is held.
            await until(lambda: _refused(looks), seconds=30)
        found = await looks.look(1, empty=True)
        assert [lease.run.id for lease in found.leases] == ["r"]


async def _refused(looks: Looks) -> bool:
    found = await looks.look(1, empty=True)
    assert not found.leases
    return found.again
