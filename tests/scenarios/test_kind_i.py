"""Redis and Valkey behaviour: what this store does not do to its keys, and asks of no server."""

from __future__ import annotations

import re
from typing import Any

import redis

from conftest import StartRedis
from stores.redis_kit import grant_of, opened
from stores.test_redis_open import use_everything
from tenure.core import build, journal
from tenure.core.run import Ask, Claim, Delete, End, How, Request, Status, Verdict
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.servers import REDIS7, VALKEY9


async def _in_every_status(store: Store) -> None:
    """Leave a run with large parts in each status."""
    for number, status in enumerate(Status):
        run_id = f"r-{status}"
        await store.commit(build.create(run=run_id, kind="k", value="v" * 100_000))
        if status is Status.QUEUED:
            continue
        answer = await store.commit(Claim(run=run_id, nonce=f"n{number}", owner="w", ttl_ms=60_000))
        run = answer.run
        assert run is not None
        await store.commit(build.post(run=run_id, item="i", name="go", ask=Ask.SIGNAL))
        after = None if status in (Status.RUNNING, Status.QUARANTINED, Status.CANCELLED) else status
        events = [journal.event(journal.CHECKPOINT, value="x" * 100_000)]
        wants = ("another",) if after is Status.SUSPENDED else None
        effects: dict[str, Any] = {"status": after, "wants": wants, "inbox_seq": 1, "blobs": [b"y" * 100_000, b"z"]}
        change = build.commit(grant_of(run), 2, run.head, events, **effects)
        assert (await store.commit(change)).verdict is Verdict.LANDED
        if status is Status.QUARANTINED:
            await store.commit(End(run=run_id, how=How.QUARANTINE, token=run.token, nonce=run.nonce, reason="r"))
        if status is Status.CANCELLED:
            await store.commit(End(run=run_id, how=How.CANCEL))
    assert sorted(run.status for run in (await store.find()).runs) == sorted(Status)


async def test_b093_no_part_of_a_run_expires_and_all_of_them_go_together(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        await _in_every_status(store)
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            names = list(client.scan_iter(match=f"tenure:{{{namespace}:0}}:*", count=1000))
            expiring = {name for name in names if client.ttl(name) != -1}
            assert len(names) > 40
            assert {name for name in expiring if ":stage:" not in name} == set()
            for run in (await store.find()).runs:
                answer = await store.commit(Delete(run=run.id))
                ended = run.status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
                assert (answer.verdict is Verdict.LANDED) == ended
                left = {
                    name
                    for name in client.scan_iter(match=f"tenure:{{{namespace}:0}}:*", count=1000)
                    if re.search(rf":{re.escape(run.id)}(:|$)", name) and ":stage:" not in name
                }
                assert (left == set()) == ended
                assert (await store.load(run.id) is None) == ended


async def test_b095_a_plain_server_without_modules_is_all_that_is_asked_for(
    start_redis: StartRedis, namespace: str
) -> None:
    for kind in (REDIS7, VALKEY9):
        server = start_redis(kind)
        with redis.Redis.from_url(server.url) as client:
            built_in = {b"lua"}  # which Valkey brings along for scripts
            assert {module[b"name"] for module in client.module_list()} <= built_in
            client.config_resetstat()
            async with opened(server.url, namespace=namespace) as store, store.beside() as other:
                await use_everything(store, other)
            sent = client.info("commandstats")
            refused = client.info("errorstats")
        commands = {name.removeprefix("cmdstat_") for name in sent}
        assert {"evalsha", "hgetall", "publish"} <= commands
        assert [name for name in commands if name.startswith(("ft.", "json.", "module"))] == []
        assert [name for name in refused if "unknown" in name.lower()] == []


async def test_b096_what_a_step_records_and_asks_for_stays_when_the_step_is_saved_after_it_and_before(
    store: Store,
) -> None:
    recorded = [journal.event(journal.RECORD, name="tool:t1", value={"paid": 1})]
    saved = [journal.event(journal.CHECKPOINT, value={"messages": ["m"]})]
    for order in (("record", "save"), ("save", "record")):
        run_id = "-".join(order)
        await store.commit(build.create(run=run_id, kind="k", value=1))
        run = (await store.commit(Claim(run=run_id, nonce=run_id, owner="w", ttl_ms=60_000))).run
        assert run is not None
        grant = grant_of(run)
        for what in order:
            if what == "record":
                effects: dict[str, Any] = {"requests": {"q1": Request(digest="d" * 64)}}
                change = build.commit(grant, run.last_seq + 1, run.head, recorded, **effects)
            else:
                change = build.commit(grant, run.last_seq + 1, run.head, saved, step=1)
            assert (await store.commit(change)).verdict is Verdict.LANDED
            run = await store.load(run_id)
            assert run is not None
        assert set(run.requests) == {"q1"}
        rows = await store.tail(run_id)
        assert verify_run(run, rows).ok
        state = journal.fold(rows)
        assert (("", "tool:t1") in state.records, state.last) == (True, {"messages": ["m"]})
