"""Sweeps: claimed before recovered, one entry a run, nothing raised out of the loop."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from tenure import ActiveRun, App, Lease, Ledger, NotAllowed, Status, StoreUnavailable, Sweeper
from tenure.core.run import Claim
from tenure.repair import repair_pass
from worker.kit import dead, opened

pytestmark = pytest.mark.anyio


def app_of(started: list[str]) -> App:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        started.append(run.id)
        await run.step("work", anyio.lowlevel.checkpoint)

    return app


async def submit(ledger: Ledger, *names: str, **options: Any) -> None:
    for name in names:
        await ledger.submit("k", None, id=name, **options)


async def test_b030_what_ended_or_was_taken_since_it_was_listed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    async with opened() as ledger:
        await submit(ledger, "ended", "taken", "dead")
        for name in ("ended", "taken", "dead"):
            await dead(ledger, name)
        due = ledger.store.due

        async def listed_before(*args: Any, **options: Any) -> Any:
            hints = await due(*args, **options)
            monkeypatch.undo()
            lease = await ledger.claims.claim(ledger.claims.change("ended"))
            async with ledger.claims.under(lease) as held:
                await held.settle(value="the owner's")
            answer = await ledger.store.commit(Claim(run="taken", nonce="n" * 32, owner="other", ttl_ms=30_000))
            assert answer.ok
            return hints

        monkeypatch.setattr(ledger.store, "due", listed_before)
        report = await Sweeper(ledger, app_of(started)).recover_all()
        assert {e.run: e.code for e in report.entries} == {"ended": "RUN_CLOSED", "taken": "LEASE_HELD", "dead": "OK"}
        assert started == ["dead"]
        assert await ledger.handle("ended").result() == "the owner's"
        assert (await ledger.load("taken")).owner == "other"


async def test_b035_a_live_run_is_not_listed_and_its_token_does_not_move() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await submit(ledger, "live")
        async with ledger.hold("live") as lease:
            report = await Sweeper(ledger, app_of(started)).recover_all()
            assert (report.entries, report.complete, report.next_due_ms is not None) == ((), True, True)
            assert (await ledger.load("live")).token == lease.token
    assert started == []


async def test_b036_a_second_sweep_lists_nothing_while_the_first_recovers() -> None:
    async with opened() as ledger:
        await submit(ledger, "r")
        await dead(ledger, "r")
        inner = []

        async def recover(lease: Lease) -> None:
            inner.append(await Sweeper(ledger, app_of([])).recover_all())
            await lease.settle()

        report = await Sweeper(ledger, recover).recover_all()
        assert [(e.run, e.code) for e in report.entries] == [("r", "OK")]
        assert inner[0].entries == ()
        assert (await ledger.load("r")).attempt == 2


async def test_b050_an_expired_run_that_the_index_lost_is_found_and_its_entry_put_right() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await submit(ledger, "r")
        await dead(ledger, "r")
        ledger.store._space.due.clear()  # type: ignore[attr-defined]
        sweeper = Sweeper(ledger, app_of(started))
        listed = await sweeper.sweep()
        assert [(e.run, e.code) for e in listed.entries] == [("r", "DUE")]
        assert started == []
        assert (await sweeper.recover_all()).recovered == 1
    assert started == ["r"]


async def test_b051_what_cannot_be_taken_hides_nothing_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.sweep.PAGE", 20)
    started: list[str] = []
    async with opened() as ledger:
        newer = [f"newer-{n:03d}" for n in range(210)]
        await submit(ledger, *newer)
        shelves = ledger.store._space.shelves  # type: ignore[attr-defined]
        for name in newer:
            shelves[name].run = replace(shelves[name].run, schema=99)
        await anyio.sleep(0.002)
        await submit(ledger, *(f"r{n}" for n in range(5)))
        report = await Sweeper(ledger, app_of(started)).recover_all()
        assert report.recovered == 5
        # B058: what is left to others is in the report, with its reason.
        assert {e.code for e in report.entries if e.run.startswith("newer")} == {"RUN_DECLINED"}
        assert len(report.entries) == 215


async def test_b061_one_run_over_its_limit_does_not_end_the_sweep() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await submit(ledger, "a", "b", "c")
        for name in ("a", "b", "c"):
            await dead(ledger, name)
        shelf = ledger.store._space.shelves["b"]  # type: ignore[attr-defined]
        shelf.run = replace(shelf.run, crashes=2)
        report = await Sweeper(ledger, app_of(started)).recover_all()
        assert {e.run: e.code for e in report.entries} == {"a": "OK", "b": "RUN_QUARANTINED", "c": "OK"}
        assert (await ledger.load("b")).status is Status.QUARANTINED
        assert sorted(started) == ["a", "c"]


async def test_b062_data_that_cannot_be_read_is_one_entry_and_its_bytes_stay() -> None:
    started: list[str] = []
    async with opened() as ledger:
        await submit(ledger, "a", "b", "c")
        rows = ledger.store._space.shelves["b"].rows  # type: ignore[attr-defined]
        rows[0] = replace(rows[0], body=b"{not json")
        report = await Sweeper(ledger, app_of(started)).recover_all()
        assert {e.run: e.code for e in report.entries} == {"a": "OK", "b": "RUN_QUARANTINED", "c": "OK"}
        assert (await ledger.store.tail("b"))[0].body == b"{not json"
        assert "corrupt" in (await ledger.load("b")).grants[-1].reason


async def test_b040_what_waits_for_a_time_or_a_person_is_not_listed_and_its_token_stands_still() -> None:
    async with opened() as ledger:
        await submit(ledger, "later", at=6 * 3600)
        await submit(ledger, "asks")
        async with ledger.hold("asks") as lease:
            await lease.suspend(signals=["yes"])
        before = [run.token async for run in ledger.find()]
        for _ in range(5):
            assert (await Sweeper(ledger, app_of([])).recover_all()).entries == ()
        assert [run.token async for run in ledger.find()] == before


async def test_i11_a_lease_that_a_clock_set_back_would_stretch_is_cut_once() -> None:
    async with opened() as ledger:
        await submit(ledger, "r")
        granted = await ledger.store.commit(Claim(run="r", nonce="n" * 32, owner="other", ttl_ms=5000))
        assert granted.run is not None
        shelf = ledger.store._space.shelves["r"]  # type: ignore[attr-defined]
        shelf.run = replace(shelf.run, lease_until_ms=shelf.run.lease_until_ms + 3_600_000)
        await Sweeper(ledger, app_of([])).sweep()
        cut = await ledger.load("r")
        assert 4000 < cut.lease_until_ms - (await ledger.store.facts()).now_ms <= 5000
        await Sweeper(ledger, app_of([])).sweep()
        assert (await ledger.load("r")).lease_until_ms == cut.lease_until_ms


async def test_a_run_over_its_time_of_grace_and_children_of_a_cancelled_parent_are_cancelled_by_the_pass() -> None:
    async with opened() as ledger:
        await submit(ledger, "late", "parent")
        await ledger.submit("k", None, id="parent.child", parent="parent")
        await ledger.submit("k", None, id="parent.child.child", parent="parent.child")
        await ledger.submit("k", None, id="parent-retry")
        await ledger.cancel("late", grace=0, by="somebody")
        # The canceller died between the parent and its children.
        shelf = ledger.store._space.shelves["parent"]  # type: ignore[attr-defined]
        shelf.run = replace(shelf.run, status=Status.CANCELLED, due_ms=None)
        await Sweeper(ledger, app_of([])).sweep()
        found = {run.id: run.status.value async for run in ledger.find()}
        assert getattr((await ledger.load("late")).outcome, "by", "") == "somebody"
    assert found == {
        "late": "cancelled",
        "parent": "cancelled",
        "parent.child": "cancelled",
        "parent.child.child": "cancelled",
        "parent-retry": "queued",
    }


async def test_a_pass_asks_for_no_parent_that_it_has_just_seen_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as ledger:
        await submit(ledger, "open", "late")
        for parent in ("open", "late"):
            await ledger.submit("k", None, id=f"{parent}.child", parent=parent)
        shelf = ledger.store._space.shelves["late"]  # type: ignore[attr-defined]
        shelf.run = replace(shelf.run, cancel_by_ms=1)
        asked: list[str] = []
        load = ledger.store.load

        async def counted(run_id: str, /) -> Any:
            asked.append(run_id)
            return await load(run_id)

        monkeypatch.setattr(ledger.store, "load", counted)
        done = await repair_pass(ledger.store)
        assert (asked, done.late, done.strays) == (["late"], 2, 0)
        found = {run.id: run.status.value async for run in ledger.find()}
    assert found == {"open": "queued", "open.child": "queued", "late": "cancelled", "late.child": "cancelled"}


async def test_b043_a_store_that_fails_makes_the_report_incomplete_and_the_next_sweep_takes_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    async with opened() as ledger:
        await submit(ledger, *(f"r{n}" for n in range(25)))
        sweeper = Sweeper(ledger, app_of(started))
        claim_many, calls = ledger.claims.claim_many, []

        async def away(changes: Any) -> Any:
            calls.append(1)
            if len(calls) in (3, 4):
                return [StoreUnavailable("away; ask again", run_id=change.run) for change in changes]
            return await claim_many(changes)

        monkeypatch.setattr(ledger.claims, "claim_many", away)
        first = await sweeper.recover_all()
        assert first.complete is False
        assert sum(e.code == "STORE_UNAVAILABLE" for e in first.entries) == 8
        assert len(first.entries) == 25
        second = await sweeper.recover_all()
        assert (second.complete, second.recovered) == (True, 8)

        async def gone(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("away; ask again")

        monkeypatch.setattr(ledger.store, "due", gone)
        third = await sweeper.recover_all()
        assert (third.complete, third.entries) == (False, ())
    assert sorted(started) == sorted(f"r{n}" for n in range(25))


async def test_own_loops_are_handed_a_lease_and_what_they_raise_is_an_entry() -> None:
    async with opened() as ledger:
        await submit(ledger, "good", "bad")

        async def recover(lease: Lease) -> None:
            if lease.run.id == "bad":
                raise ValueError("no")
            await lease.checkpoint({"n": 1})
            await lease.settle(value=1)

        report = await Sweeper(ledger, recover).recover_all(limit=2)
        assert {e.run: e.code for e in report.entries} == {"good": "OK", "bad": "HANDLER_FAILED"}
        assert (await ledger.load("bad")).failures == 1
        with pytest.raises(NotAllowed, match="at least one"):
            Sweeper(ledger, recover, concurrency=0)


async def test_a_run_that_is_handed_back_during_a_sweep_is_for_the_next_one() -> None:
    seen: list[str] = []
    async with opened() as ledger:
        await submit(ledger, "r")

        async def look(lease: Lease) -> None:
            seen.append(lease.run.id)

        with anyio.fail_after(5):
            report = await Sweeper(ledger, look).recover_all()
        assert [(e.run, e.code) for e in report.entries] == [("r", "OK")]
        assert seen == ["r"]
        assert (await ledger.load("r")).status is Status.QUEUED


async def test_i12_sweepers_that_begin_together_recover_each_run_once_and_touch_no_live_one() -> None:
    started: list[str] = []
    async with opened("memory://together") as first, anyio.create_task_group() as tasks:
        await submit(first, *(f"r{n}" for n in range(60)))
        for n in range(60):
            await dead(first, f"r{n}")
        await submit(first, "fresh")
        async with first.hold("fresh") as lease:
            reports: list[Any] = []

            async def boot() -> None:
                async with opened("memory://together") as ledger:
                    reports.append(await Sweeper(ledger, app_of(started)).recover_all())

            async with anyio.create_task_group() as booting:
                for _ in range(8):
                    booting.start_soon(boot)
            assert (await first.load("fresh")).token == lease.token
        runs = [run async for run in first.find() if run.id != "fresh"]
        tasks.cancel_scope.cancel()
    assert len(started) == 60
    assert {run.attempt for run in runs} == {2}
    assert {len(run.grants) for run in runs} == {2}
    assert sum(report.recovered for report in reports) == 60
