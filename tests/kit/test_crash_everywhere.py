"""Deaths at each boundary of a user's own run: what is done twice is listed, and what is safe is shown to be."""

import pytest

from kit import orders
from tenure import ActiveRun, App, LeaseHeld, Ledger, NotAllowed, open_store
from tenure.testing import Boundary, BoundaryStore, ManualClock, Side, crash_everywhere


@pytest.mark.slow
def test_a_run_that_does_everything_in_steps_with_keys_does_nothing_twice() -> None:
    report = crash_everywhere(orders.careful, 5)
    assert report.ok, str(report)
    assert report.deaths == report.boundaries == 2 * len(report.changes) >= 8
    assert dict(report.clean.effects) == {"charged": 1}
    # What was in flight at the death is made again, and only that: its key makes it harmless.
    assert {entry.name for entry in report.repeated} == {"step:charge", "step:note"}
    assert len(report.repeated) == 2


@pytest.mark.slow
def test_an_effect_outside_of_steps_is_listed_as_done_twice() -> None:
    report = crash_everywhere(orders.careless, 5, sides=("before",))
    assert report.done_twice == {"mailed"}
    assert not report.ok
    assert not report.wrong
    assert "mailed: 2 times, dying before change" in str(report)


@pytest.mark.slow
def test_a_run_that_waits_two_days_is_played_without_waiting() -> None:
    report = crash_everywhere(orders.patient, 5, sides=("after",))
    assert report.ok, str(report)
    assert report.deaths == report.boundaries


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_sleeps_asks_and_waits_dies_everywhere_and_consumes_each_answer_once() -> None:
    report = crash_everywhere(orders.sleeper, 5, sides=("after",), approve=True, signals={"parcel": "a box"})
    assert report.deaths == report.boundaries >= 8
    assert not report.wrong, str(report)
    assert dict(report.clean.effects) == {"packed": 1, "sent": 1}
    assert report.done_twice == set(), str(report)


@pytest.mark.slow
def test_an_agent_dies_everywhere_and_asks_nothing_again_that_had_landed() -> None:
    report = crash_everywhere(orders.scales, "weigh")
    assert report.ok, str(report)
    assert dict(report.clean.effects) == {"weighed": 2}
    assert {"model:1", "tool:c1"} <= set(report.clean.calls)
    assert {entry.name for entry in report.repeated} <= set(report.clean.calls)


def test_a_kind_that_no_other_process_can_import_is_refused() -> None:
    app = App()

    @app.kind("local")
    async def local(run: ActiveRun[None], _: None) -> None: ...

    with pytest.raises(NotAllowed, match="top level"):
        crash_everywhere(local, None)


@pytest.mark.anyio
async def test_a_store_that_dies_at_a_boundary_leaves_the_lease_behind() -> None:
    async with open_store("memory://", clock=ManualClock()) as inner:
        store = BoundaryStore(inner, Boundary(at=3, side=Side.AFTER))
        with store.dies():
            async with Ledger(store) as ledger:
                await ledger.submit("k", 1, id="r")
                async with ledger.hold("r") as lease:
                    await lease.checkpoint("kept")
                    await lease.checkpoint("never sent")
        assert [line.split()[0] for line in store.seen] == ["create", "claim", "commit"]
        async with Ledger(inner) as ledger:
            assert (await ledger.load("r")).step == 1
            with pytest.raises(LeaseHeld):
                async with ledger.hold("r"):
                    pass
