"""Ambiguous outcomes: the write may or may not have happened, or half of it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from scenarios.lossy import Line, line_to
from tenure import Ledger, Status, open_store
from tenure.core import canonical, journal
from tenure.core.run import Row
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.faults import Fault, FaultStore, Order

WRITER = Path(__file__).with_name("writer.py")


async def test_b070_a_request_whose_reply_was_lost_takes_effect_once(redis_url: str, namespace: str) -> None:
    async with (
        line_to(redis_url) as line,
        open_store(line.url, namespace=namespace) as store,
        # With beats so far apart the reply that is lost is the reply to what is asked here.
        Ledger(store, ttl=600) as ledger,
    ):
        lose_the_next_reply(line)
        handle = await ledger.submit("k", None, id="r1")
        claim = ledger.claims.change("r1", token=(await handle.load()).token)
        lose_the_next_reply(line)
        async with ledger.claims.under(await ledger.claims.claim(claim)) as lease:
            token = lease.token
            await anyio.sleep(0.2)
            lose_the_next_reply(line)
            await lease.checkpoint({"a": 1})
            found = await ledger.load("r1")
            assert (found.token, found.ordinal, found.attempt) == (token, 1, 1)
            assert (found.step, found.last_seq, found.version) == (1, 2, 3)
            lose_the_next_reply(line)
            await lease.settle("completed", "done")
        assert line.to_lose == 0
        assert await handle.result(timeout=10) == "done"
        found = await ledger.load("r1")
        assert (found.last_seq, found.version) == (3, 4)
        # Every request that landed was asked again, and left its mark where it stands.
        assert found.touch == 4
        rows = await store.tail("r1")
        assert verify_run(found, rows).ok
        ends = [event for row in rows for event in journal.events_of(row) if event["type"] == "run/end"]
        assert len(ends) == 1


def lose_the_next_reply(line: Line) -> None:
    assert line.to_lose == 0, "the reply before was not lost, so nothing was shown"
    line.to_lose = 1


async def test_b071_a_step_that_was_done_is_recorded_when_the_store_is_back(store: Store) -> None:
    faulty = FaultStore(store)
    calls = 0
    async with Ledger(faulty, ttl=3) as ledger:
        await ledger.submit("k", None, id="r1")
        async with ledger.hold("r1") as lease:
            calls += 1
            faulty.orders.append(Order(fault=Fault.REQUEST_LOST, times=4, match=lambda c: type(c).__name__ == "Commit"))
            await lease.record("tool:c1", "result")
            await lease.checkpoint("next")
            await lease.settle("completed")
        async for _, event in ledger.handle("r1").events():
            if event["type"] == "record":
                assert (event["name"], event["value"]) == ("tool:c1", "result")
                calls += 1
    assert calls == 2, "called once, recorded once"


@pytest.mark.slow
async def test_b073_whatever_the_cut_record_and_journal_agree(store_url: str, namespace: str, store: Store) -> None:
    if store_url.startswith("memory"):
        pytest.skip("a process that is killed takes its memory along: nothing is left to disagree")
    told: dict[str, tuple[int, int, str]] = {}
    for seed in range(6):
        with subprocess.Popen(  # noqa: ASYNC220 - it is to be cut at a moment of ours
            [sys.executable, str(WRITER), store_url, namespace, str(seed)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(0.05 + seed * 0.037)  # noqa: ASYNC251 - wherever it stands then, it is cut
            writer.kill()
            for line in (first, *writer.stdout):
                if line.endswith("\n"):
                    run_id, *seen = json.loads(line)
                    told[run_id] = (seen[0], seen[1], seen[2])
    assert len(told) >= 6
    seen = 0
    cursor = None
    while True:
        page = await store.find(cursor=cursor)
        for run in page.runs:
            rows = await store.tail(run.id)
            assert verify_run(run, rows).ok, run.id
            await _agrees(store, run.id, rows)
            acknowledged = told.get(run.id, (0, 0, ""))
            assert (run.last_seq, run.version) >= acknowledged[:2], "what was acknowledged is there"
            seen += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert seen >= len(told)


async def _agrees(store: Store, run_id: str, rows: list[Row]) -> None:
    """The record's status is what its last row says, and every blob that a row names is there."""
    run = await store.load(run_id)
    assert run is not None
    effects = [canonical.decode(row.body)["effects"] for row in rows]
    last = effects[-1].get("status")
    items = await store.inbox(run_id)
    assert run.inbox_seq == len(items)
    woken = bool(items)
    expected = {
        None: {Status.QUEUED, Status.RUNNING},
        "suspended": {Status.QUEUED, Status.RUNNING} if woken else {Status.SUSPENDED},
        "completed": {Status.COMPLETED},
    }[last]
    assert run.status in expected
    assert sum(effect.get("step", 0) for effect in effects) == run.step
    for effect in effects:
        for digest in effect.get("blobs", ()):
            assert await store.blob(run_id, digest) is not None
