"""Writes that are not fenced, or fenced by the wrong thing."""

import multiprocessing
import os

import anyio
import pytest

from scenarios.telling import SHORT_MS, claimed, created, kept, until_over, why
from tenure import LeaseHeld, LeaseLost, Ledger, RunClosed, RunConflict, Status, open_store
from tenure.core import build, journal
from tenure.core.run import Ask, How, Renew, Request, Verdict, Why
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.contract_case import claim, end, suspend, write


async def test_b001_a_reused_owner_name_does_not_let_an_evicted_attempt_renew(store: Store) -> None:
    await created(store)
    former, run = await claimed(store, owner="w", ttl_ms=SHORT_MS)
    await until_over(run, store)
    grant, run = await claimed(store, owner="w")
    before = await kept(store)
    assert await why(store, Renew(grant=former)) is Why.LOST
    assert await kept(store) == before
    after = await store.load("r1")
    assert after is not None
    assert (after.lease_until_ms, after.token) == (run.lease_until_ms, grant.token)


async def test_b002_a_late_release_leaves_the_new_lease_and_hides_nothing(store: Store) -> None:
    await created(store)
    former, run = await claimed(store, ttl_ms=SHORT_MS)
    await until_over(run, store)
    _, taken = await claimed(store, ttl_ms=SHORT_MS)
    before = await kept(store)
    for late in (
        write(former, run, status=Status.QUEUED),
        end(former, How.YIELD),
        end(former, How.FORFEIT),
        end(former, How.EVICT),
    ):
        assert await why(store, late) in (Why.LOST, Why.MOVED)
        assert await kept(store) == before
    await until_over(taken, store)
    assert [hint.run for hint in await store.due(["k"])] == ["r1"]


async def test_b003_the_result_is_the_live_attempt_s(ledger: Ledger, other_ledger: Ledger) -> None:
    handle = await ledger.submit("k", None, id="r1")
    held, taken, refused = anyio.Event(), anyio.Event(), anyio.Event()

    async def old() -> None:
        with pytest.raises(LeaseLost):
            async with ledger.hold("r1") as lease:
                held.set()
                with anyio.CancelScope(shield=True):
                    await taken.wait()
                    with pytest.raises(LeaseLost):
                        await lease.settle("completed", "old")
                    refused.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(old)
        await held.wait()
        await other_ledger.evict("r1")
        async with other_ledger.hold("r1") as lease:
            taken.set()
            await refused.wait()
            await lease.settle("completed", "new")
    assert await handle.result(timeout=5) == "new"
    events = [event["type"] async for _, event in handle.events()]
    assert events.count("run/end") == 1


async def test_b005_each_start_has_a_token_of_its_own(store: Store) -> None:
    for run in ("r1", "r2"):
        await created(store, run)
    first, first_run = await claimed(store, "r1", owner="w")
    second, second_run = await claimed(store, "r2", owner="w")
    await store.commit(end(first, How.EVICT))
    taken, _ = await claimed(store, "r1", owner="other")
    assert await why(store, write(first, first_run)) is Why.LOST
    assert (await store.commit(write(second, second_run))).verdict is Verdict.LANDED
    await store.commit(end(taken, How.EVICT))
    again, _ = await claimed(store, "r1", owner="w")
    marks = {(grant.token, grant.nonce) for grant in (first, second, taken, again)}
    assert len(marks) == len({nonce for _, nonce in marks}) == 4


async def test_b006_what_was_finished_meanwhile_is_not_claimed(store: Store, other: Store) -> None:
    await created(store)
    (hint,) = await store.due(["k"])
    grant, run = await claimed(other)
    done = await other.commit(write(grant, run, status=Status.COMPLETED))
    assert done.verdict is Verdict.LANDED
    assert await why(store, claim(hint.run, token=hint.token)) is Why.CLOSED
    found = await store.load("r1")
    assert found is not None
    assert (found.token, found.ordinal) == (grant.token, 1)


async def test_b007_two_processes_of_one_name_are_two_owners(store: Store, other: Store) -> None:
    await created(store)
    async with (
        Ledger(store, owner="host-1", ttl=1) as first,
        Ledger(other, owner="host-1", ttl=1) as second,
        first.hold("r1"),
    ):
        with pytest.raises(LeaseHeld) as held:
            async with second.hold("r1"):
                pytest.fail("two hold one run")
        assert held.value.owner == first.owner != second.owner
    owners = {Ledger(store).owner, Ledger(store).owner}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        owners.add(pool.apply(default_owner))
    read, written = os.pipe()
    if (child := os.fork()) == 0:
        os.write(written, Ledger(store).owner.encode())
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 - it has one line to write
    os.close(written)
    owners.add(os.read(read, 1000).decode())
    os.close(read)
    assert len(owners) == 4


def default_owner() -> str:
    return Ledger(open_store("memory://")).owner


async def test_b008_a_lease_begins_when_it_is_granted(ledger: Ledger, other_ledger: Ledger) -> None:
    await ledger.submit("k", None, id="r1")
    held, handed_back = anyio.Event(), anyio.Event()

    async def holder() -> None:
        async with other_ledger.hold("r1"):
            held.set()
            await anyio.sleep(1.5)
        handed_back.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holder)
        await held.wait()
        async with ledger.hold("r1", wait=5, ttl=1) as lease:
            assert 0 < lease.remaining_ms <= 1000
            await lease.checkpoint("works at once")
        assert handed_back.is_set()


async def test_b010_no_record_of_any_sort_is_written_without_the_lease(store: Store) -> None:
    await created(store)
    former, run = await claimed(store)
    asked = {"q": Request(digest="d")}
    run = (await store.commit(write(former, run, requests=asked))).run or run
    found = await store.load("r1")
    assert found is not None
    await store.commit(end(former, How.EVICT))
    await claimed(store)
    before = await kept(store)
    for event, requests in (
        (journal.event(journal.RECORD, name="tool:c1", value=1), None),
        (journal.event("anything"), None),
        (journal.event(journal.REQUEST_OPENED, request="q2"), {"q2": Request(digest="e")}),
    ):
        seq, head = found.last_seq + 1, found.head
        stale = build.commit(former, seq, head, [event], requests=requests, blobs=[b"left behind"])
        assert await why(store, stale) is Why.LOST
        assert await store.blob("r1", next(iter(stale.blobs))) is None
    assert await why(store, suspend(former, found, "q")) is Why.LOST
    assert await kept(store) == before


async def test_b011_a_write_derived_from_an_older_commit_never_becomes_the_tip(store: Store, other: Store) -> None:
    await created(store)
    grant, read = await claimed(store)
    await store.commit(write(grant, read, "owner's"))
    tip = await store.load("r1")
    assert tip is not None
    assert await why(other, write(grant, read, "derived from what was read earlier")) is Why.SEQUENCE
    renumbered = build.commit(grant, tip.last_seq + 1, read.head, [journal.event("late")])
    assert await why(other, renumbered) is Why.SEQUENCE
    found = await store.load("r1")
    assert found == tip
    assert verify_run(tip, await store.tail("r1")).ok


async def test_b013_a_waiter_s_timeout_touches_nothing_of_the_holder(
    ledger: Ledger, other_ledger: Ledger, other: Store
) -> None:
    await ledger.submit("k", None, id="r1")
    async with ledger.hold("r1") as lease:
        for wait in (0.3, 0):
            with pytest.raises(LeaseHeld) as held:
                async with other_ledger.hold("r1", wait=wait):
                    pytest.fail("two hold one run")
            assert 0 < held.value.remaining_ms <= 1000
        await lease.checkpoint("still mine")
        run = await other_ledger.load("r1")
        assert (run.token, run.ordinal, run.status) == (lease.token, 1, Status.RUNNING)


async def test_b003_the_same_id_with_other_content_is_a_conflict_and_a_closed_run_stays_closed(ledger: Ledger) -> None:
    await ledger.submit("k", 1, id="r1")
    with pytest.raises(RunConflict):
        await ledger.submit("k", 2, id="r1")
    async with ledger.hold("r1") as lease:
        await lease.settle("completed", "done")
    with pytest.raises(RunClosed):
        async with ledger.hold("r1"):
            pytest.fail("a closed run was held")
    with pytest.raises(RunClosed):
        await ledger.ask(build.post(run="r1", item="i", name="go", ask=Ask.SIGNAL))
