"""Runs that nobody would recover: dead, and on no list. The rest of the kind is told in tests/worker."""

import os
import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest

from scenarios.telling import claimed, created, until_over
from scenarios.test_kind_c import _status, _submit, counting
from tenure import ActiveRun, App, Ledger, Status, Sweeper, Worker
from tenure.core.run import LEADER_ID
from tenure.store import Store
from tenure.testing.contract_case import claim
from worker.fleet import Fleet, alive, children, fleet, wait_until
from worker.kit import until


def _killed(ours: Fleet, number: int) -> None:
    """SIGKILL a whole worker, supervisor first, so that nobody is left who saw anything."""
    process = ours.processes[number]
    those = children(process.pid)
    process.kill()
    process.wait()
    for pid in those:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in those))


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_b044_b046_b053_b056_whoever_was_there_first_takes_over_within_the_lease(
    tmp_path: Path, namespace: str, *, restarted: bool
) -> None:
    # Killed after it has claimed and before any step has landed; who takes over was there before, or is a
    # restart; and the run itself may go on for as long as it likes.
    with fleet(tmp_path, f"sqlite:///{tmp_path}/runs.db", namespace) as ours:
        ours.worker("--processes", "1", ttl=2)
        anyio.run(_submit, ours.url, namespace, "hold", "open", ["r1"])
        wait_until(lambda: ours.notes("call r1"), seconds=60)
        if not restarted:
            ours.worker("--processes", "1", ttl=2)
            wait_until(lambda: children(ours.processes[1].pid), seconds=60)
        _killed(ours, 0)
        if restarted:
            ours.worker("--processes", "1", ttl=2)
        wait_until(lambda: len(ours.notes("call r1")) == 2, seconds=60)
        ours.open_gate("open")
        wait_until(lambda: anyio.run(_status, ours.url, namespace, "r1") is Status.COMPLETED, seconds=60)


async def test_b047_b048_a_leader_that_hangs_or_dies_is_followed_when_its_lease_ends(store: Store) -> None:
    done: Counter[str] = Counter()
    app = counting(done)
    async with Ledger(store, ttl=10) as ledger:
        first = await store.commit(claim(LEADER_ID, ttl_ms=1000, owner="hung")) if await store.load(LEADER_ID) else None
        if first is None:
            from tenure.core.run import Create

            await store.commit(Create(run=LEADER_ID, kind=LEADER_ID, input_digest="", row=None))
            first = await store.commit(claim(LEADER_ID, ttl_ms=1000, owner="hung"))
        assert first.ok, first.why
        await ledger.submit("k", None, id="r1")
        async with Worker(app, ledger, drain=0):
            await until(lambda: done["r1"] == 1)
            run = await store.load(LEADER_ID)
            assert run is not None
            with anyio.fail_after(20):
                while run is None or run.owner == "hung":
                    await anyio.sleep(0.02)
                    run = await store.load(LEADER_ID)
            # It had a time of life from the moment it was taken, and the next leader has another token.
            assert first.run is not None
            assert run.token > first.run.token


async def test_b058_a_run_of_another_code_version_is_named_not_skipped(store: Store) -> None:
    app = App(version="2")

    @app.kind("other")
    async def other(run: ActiveRun[None], _: None) -> None:
        await run.step("never", anyio.lowlevel.checkpoint)

    async with Ledger(store, ttl=10, code_version="2") as ledger:
        await ledger.submit("k", None, id="r1")
        lease = ledger.claims.change("r1", kinds=("other",))
        answer = await store.commit(lease)
        assert answer.why is not None
        assert answer.why.value == "declined"
        assert (await ledger.load("r1")).status is Status.QUEUED

        async def decline(lease: object) -> None:
            from tenure import RunDeclined

            raise RunDeclined("this process has another shape; leave it to one that has it", run_id="r1")

        report = await Sweeper(ledger, decline).recover_all()
        assert {(entry.run, entry.code) for entry in report.entries} == {("r1", "RUN_DECLINED")}
        run = await ledger.load("r1")
        assert (run.status, run.crashes) == (Status.QUEUED, 0)


async def test_b053_a_run_killed_between_its_claim_and_its_first_step_starts_from_its_input(store: Store) -> None:
    await created(store, value={"to": 3})
    _, run = await claimed(store, ttl_ms=60)
    await until_over(run, store)
    async with Ledger(store, ttl=10) as ledger, ledger.hold("r1") as lease:
        assert (lease.run.attempt, lease.state.input) == (2, {"to": 3})
        await lease.settle()
