"""What goes wrong between a store and its server: caches, replies and callers get lost, memory runs out."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import anyio
import pytest

from conftest import StartRedis
from stores.redis_kit import Proxy, begun, claim, grant_of, key_contents, opened, step
from tenure.core import build
from tenure.core.run import Answer, Ask, Commit, Delete, End, Grant, How, Renew, Run, Status, Verdict, Why
from tenure.core.verify import verify_run
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores._redis_address import address
from tenure.stores._redis_connect import connect, told
from tenure.stores._redis_line import pack
from tenure.stores.redis import RedisStore
from tenure.testing.servers import REDIS7, REDIS8, REDIS_KINDS


async def test_b085_a_lost_script_cache_is_no_error_and_nothing_runs_twice(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:

        async def flushed(change: object) -> Answer:
            await store._opened().asked(pack("SCRIPT", "FLUSH", "SYNC"))
            return await store.commit(change)  # type: ignore[arg-type]

        assert (await flushed(build.create(run="r1", kind="k", value=1))).verdict is Verdict.LANDED
        answer = await flushed(claim("r1"))
        assert answer.run is not None
        grant, run = grant_of(answer.run), answer.run
        assert (await flushed(Renew(grant=grant))).verdict is Verdict.LANDED
        assert (await flushed(step(grant, run))).verdict is Verdict.LANDED
        assert (await flushed(build.post(run="r1", item="i", name="n", ask=Ask.SIGNAL))).verdict is Verdict.LANDED
        assert (await flushed(End(run="r1", how=How.CANCEL))).verdict is Verdict.LANDED
        found = await store.load("r1")
        assert found is not None
        assert (found.step, found.last_seq, found.inbox_seq, found.version) == (1, 2, 1, 5)
        assert (await flushed(Delete(run="r1"))).verdict is Verdict.LANDED
        await store._opened().asked(pack("SCRIPT", "FLUSH", "SYNC"))
        assert (await store.facts()).floor == found.token


async def test_b086_without_its_script_no_part_of_a_staged_commit_is_written(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        await store._opened().asked(pack("SCRIPT", "FLUSH", "SYNC"))
        stale = step(replace(grant, nonce="stranger"), run, "y" * 100_000, blobs=[b"z" * 100_000])
        before = key_contents(redis_url, namespace)
        assert (await store.commit(stale)).why is Why.LOST
        assert key_contents(redis_url, namespace) == before


async def test_b070_a_lost_reply_is_unknown_and_the_same_request_again_is_already(
    redis_url: str, namespace: str
) -> None:
    async with Proxy(redis_url) as proxy, opened(f"{proxy.url}?timeout=2", namespace=namespace) as store:

        async def lost_then_again(change: object) -> Answer:
            proxy.lose_replies = True
            with pytest.raises(OutcomeUnknown):
                await store.commit(change)  # type: ignore[arg-type]
            proxy.lose_replies = False
            return await store.commit(change)  # type: ignore[arg-type]

        assert (await lost_then_again(build.create(run="r1", kind="k", value=1))).verdict is Verdict.ALREADY
        taken = await lost_then_again(claim("r1"))
        assert (taken.verdict, taken.run is not None and len(taken.run.grants)) == (Verdict.ALREADY, 1)
        assert taken.run is not None
        assert taken.left_ms > 0
        grant, run = grant_of(taken.run), taken.run
        saved = await lost_then_again(step(grant, run))
        assert saved.run is not None
        assert (saved.verdict, saved.run.step, saved.run.version) == (Verdict.ALREADY, 1, run.version + 1)
        item = build.post(run="r1", item="i", name="n", ask=Ask.SIGNAL)
        assert (await lost_then_again(item)).verdict is Verdict.ALREADY
        ended = await lost_then_again(step(grant, saved.run, status=Status.COMPLETED))
        assert (ended.verdict, ended.run is not None and ended.run.last_seq) == (Verdict.ALREADY, 3)
        assert (await lost_then_again(Delete(run="r1"))).verdict is Verdict.ALREADY


async def test_b070_many_changes_with_a_lost_reply_are_each_unknown_alone(redis7_url: str, namespace: str) -> None:
    async with Proxy(redis7_url) as proxy, opened(proxy.url, namespace=namespace) as store:
        creates = [build.create(run=f"r{n}", kind="k", value=n) for n in range(5)]
        proxy.lose_replies = True
        answers = await store.commit_many(creates)
        assert all(isinstance(answer, OutcomeUnknown) for answer in answers)
        assert [answer.run_id for answer in answers if isinstance(answer, OutcomeUnknown)] == [
            f"r{n}" for n in range(5)
        ]
        proxy.lose_replies = False
        again = await store.commit_many(creates)
        assert {answer.verdict for answer in again if isinstance(answer, Answer)} == {Verdict.ALREADY}


async def test_what_was_surely_not_sent_is_unavailable_and_a_new_connection_is_made(
    redis7_url: str, namespace: str
) -> None:
    async with Proxy(redis7_url) as proxy, opened(proxy.url, namespace=namespace) as store:
        await begun(store)
        proxy.cut()
        proxy.refuse = True
        await asyncio.sleep(0.05)
        for ask in (store.commit(claim("r1")), store.load("r1"), store.facts(), store.commit_many([claim("r1")])):
            with pytest.raises(StoreUnavailable):
                await ask
        proxy.refuse = False
        assert (await store.commit(claim("r1"))).why is Why.HELD


async def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(REDIS7)
    async with opened(f"{server.url}?timeout=0.3", namespace=namespace) as store:
        grant, run = await begun(store)
        server.freeze()
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await store.commit(step(grant, run))
        with pytest.raises(StoreUnavailable):
            await asyncio.gather(*(store.load("r1") for _ in range(20)))
        assert time.monotonic() - began < 3
        server.thaw()
        # What the frozen server still had in its socket it may run now: the same request again finds out.
        assert (await store.commit(step(grant, run))).ok
        found = await store.load("r1")
        assert found is not None
        assert (found.step, found.last_seq) == (1, 2)


async def test_b076_a_thousand_cancelled_calls_leave_no_foreign_reply(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        names = [f"r{n}" for n in range(50)]
        await store.commit_many([build.create(run=name, kind="k", value=name) for name in names])
        wrong = []

        async def cancelled(n: int) -> None:
            call = asyncio.create_task(store.load(names[n % 50]))
            for _ in range(n % 4):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])

        async def plain(n: int) -> None:
            name = names[n % 50]
            found, rows = await store.load(name), await store.tail(name)
            if found is None or found.id != name or rows[0].digest != found.head:
                wrong.append(name)

        for batch in range(10):
            await asyncio.gather(*(plain(n) if n % 2 else cancelled(n) for n in range(batch, batch + 200)))
        assert wrong == []


async def test_b077_after_a_hundred_cancelled_changes_the_next_one_lands_and_none_is_torn(
    redis_url: str, namespace: str
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        grant, run = await begun(store)
        for n in range(100):
            change = step(grant, run, n)
            call = asyncio.create_task(store.commit(change))
            for _ in range(n % 5):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            assert (await store.commit(change)).ok  # the same request again, whatever became of the first
            found = await store.load("r1")
            assert found is not None
            run = found
        rows = await store.tail("r1", limit=1000)
        assert (run.step, len(rows)) == (100, 101)
        assert verify_run(run, rows).ok
        with_clients = await store._opened().asked(pack("CLIENT", "LIST"))
        assert with_clients[0].count(b"\n") <= 20


async def test_a_caller_cancelled_before_its_turn_to_send_sends_nothing(redis7_url: str, namespace: str) -> None:
    async with opened(redis7_url, namespace=namespace) as store:
        # The first goes at once, the second with whoever else asks in this turn of the loop.
        calls = [asyncio.create_task(store.commit(build.create(run=name, kind="k", value=1))) for name in ("r1", "r2")]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert await store.load("r2") is None
        assert all(call.cancelled() for call in calls)
        found = await store.load("r1")
        assert found is None or verify_run(found, await store.tail("r1")).ok


@pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)
async def test_i17_without_memory_a_write_is_refused_whole_and_what_frees_or_holds_goes_on(
    start_redis: StartRedis, namespace: str, kind: object
) -> None:
    server = start_redis(kind, maxmemory_policy="noeviction")  # type: ignore[arg-type]
    async with opened(server.url, namespace=namespace) as store:
        grant, run = await begun(store)
        over, _ = await begun(store, "r2")
        await store.commit(End(run="r2", how=How.CANCEL))
        (used,) = await store._opened().asked(pack("INFO", "memory"))
        await store._opened().asked(pack("CONFIG", "SET", "maxmemory", "1mb"))
        assert b"used_memory" in used
        before = key_contents(server.url, namespace)
        for change in (step(grant, run), step(grant, run, "y" * 100_000), build.create(run="r3", kind="k", value=1)):
            with pytest.raises(StoreUnavailable, match="maxmemory"):
                await store.commit(change)
        many = await store.commit_many([claim("r1"), End(run="r1", how=How.CANCEL)])
        assert all(isinstance(answer, StoreUnavailable) for answer in many)
        assert key_contents(server.url, namespace) == before
        assert (await store.commit(Renew(grant=grant))).verdict is Verdict.LANDED
        assert (await store.commit(Delete(run="r2"))).verdict is Verdict.LANDED
        await store._opened().asked(pack("CONFIG", "SET", "maxmemory", "0"))
        assert (await store.commit(step(grant, run))).verdict is Verdict.LANDED
        assert over.run == "r2"


async def test_i08_a_server_killed_while_it_writes_shows_all_of_a_commit_or_none(
    start_redis: StartRedis, namespace: str
) -> None:
    server = start_redis(REDIS8, appendonly="yes", appendfsync="always")
    async with opened(f"{server.url}?timeout=3", namespace=namespace) as store:
        grant, run = await begun(store)
        for _ in range(3):
            told = run
            sent: list[Commit] = []

            async def write(run: Run, grant: Grant = grant, sent: list[Commit] = sent) -> None:
                while True:
                    change = step(grant, run, "v" * 3_000, tags={"n": str(run.last_seq)})
                    sent.append(change)
                    await store.commit(change)
                    run = replace(run, last_seq=change.row.seq, head=change.row.digest)

            writing = asyncio.create_task(write(run))
            await asyncio.sleep(0.1)
            server.kill()
            await asyncio.wait([writing])
            assert isinstance(writing.exception(), OutcomeUnknown | StoreUnavailable)
            server.start()
            found = await store.load("r1")
            assert found is not None
            rows = await store.tail("r1", limit=100_000)
            assert verify_run(found, rows).ok
            assert found.last_seq >= told.last_seq + len(sent) - 1, "with the log always written nothing told is lost"
            assert found.tags == ({"n": str(found.last_seq - 1)} if sent else told.tags)
            answer = await store.commit(step(grant, found))
            assert answer.verdict is Verdict.HISTORY
            facts = await store.facts()
            assert not facts.lossy, "a restart on a log that is always written lost nothing"
            run, grant = await reattached(store, grant, found)


async def reattached(store: RedisStore, grant: Grant, found: Run) -> tuple[Run, Grant]:
    from tenure.core.run import Reattach

    again = Reattach(grant=grant, nonce=f"again-{found.version}", seq=found.last_seq, head=found.head)
    answer = await store.commit(again)
    assert (answer.verdict, answer.why) == (Verdict.LANDED, None)
    assert answer.run is not None
    return answer.run, grant_of(answer.run)


async def test_i21_who_is_cancelled_while_a_new_connection_is_looked_at_leaves_none(start_redis: StartRedis) -> None:
    server = start_redis(REDIS8)
    connection = await connect(address(server.url, {}))
    assert connection.is_connected
    server.freeze()
    try:
        with anyio.move_on_after(0.2) as given_up:
            await told(connection, pack("PING"))
        assert given_up.cancelled_caught
        assert not connection.is_connected
    finally:
        server.thaw()


async def test_a_store_closes_although_its_server_takes_nothing_of_what_was_sent(start_redis: StartRedis) -> None:
    server = start_redis(REDIS7)
    async with opened(f"{server.url}?timeout=1") as store:
        grant, run = await begun(store)
        wire = store._opened().shards[0].road.line.wire  # type: ignore[attr-defined]
        socket = wire.transport.get_extra_info("socket")
        server.freeze()
        with pytest.raises(OutcomeUnknown):
            await store.commit(step(grant, run, "y", blobs=[bytes([n]) * 1_000_000 for n in range(16)]))
    assert socket.fileno() == -1
    server.thaw()
