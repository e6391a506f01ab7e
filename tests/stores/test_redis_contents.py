"""What stands in the keys: nothing is half written, nothing loses digits, and no key is used that was not declared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from conftest import StartRedis
from stores.redis_draw import Draw
from stores.redis_kit import claim, grant_of, opened
from tenure.clock import ManualClock
from tenure.core import build, journal
from tenure.core.run import (
    SCHEMA,
    Answer,
    Ask,
    Change,
    Claim,
    Delete,
    End,
    How,
    Renew,
    Repair,
    Verdict,
    Why,
)
from tenure.errors import StoreTooNew
from tenure.store import Where
from tenure.stores._redis_connect import connect
from tenure.stores._redis_line import pack
from tenure.stores._redis_reads import PAGE
from tenure.stores.redis import RedisStore
from tenure.testing.servers import REDIS7

MOST = 2**53


async def test_b088_numbers_and_content_come_back_as_they_were(redis_url: str, namespace: str) -> None:
    value: dict[str, Any] = {
        "a": 15947634569000323,
        "b": MOST + 1,
        "c": 0.1,
        "d": "\x00 \x7f / \u2028 \U0001f600",
        "e": 10**30,
    }
    async with opened(redis_url, namespace=namespace) as store:
        await store._opened().asked(pack("HSET", store._keys.meta, "floor", MOST - 5))
        await store.commit(build.create(run="r1", kind="k", value=value, tags={"t": value["d"]}))
        answer = await store.commit(replace(claim("r1"), owner='o"\\\n\x01/é'))
        assert answer.run is not None
        assert (answer.run.token, answer.run.owner) == (MOST - 4, 'o"\\\n\x01/é')
        assert answer.run.grants[0].token == MOST - 4
        grant = grant_of(answer.run)
        assert (await store.commit(Renew(grant=grant))).verdict is Verdict.LANDED
        assert (await store.commit(Renew(grant=replace(grant, token=MOST - 5)))).why is Why.LOST
        change = build.commit(grant, 2, answer.run.head, [journal.event(journal.CHECKPOINT, value=value)])
        assert (await store.commit(change)).verdict is Verdict.LANDED
        first, second = await store.tail("r1")
        assert journal.events_of(first)[0]["input"] == value
        assert journal.events_of(second)[0]["value"] == value
        assert second.body == change.row.body
        ended = await store.commit(End(run="r1", how=How.EVICT, token=MOST - 4, reason='"\n', by="é"))
        assert ended.run is not None
        assert (ended.run.token, ended.run.grants[0].reason, ended.run.tags) == (MOST - 3, '"\n', {"t": value["d"]})
        raw = await store.raw("r1")
        assert "e+" not in json.dumps(raw)


async def test_a_newer_record_is_refused_by_name_and_hides_no_other(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        await store.commit(build.create(run="r2", kind="k", value=1))
        await store._opened().asked(pack("HSET", store._keys.run("r1"), "schema", 7))
        with pytest.raises(StoreTooNew, match="schema 7"):
            await store.load("r1")
        page = await store.find()
        assert ([run.id for run in page.runs], page.corrupt) == (["r2"], ("r1",))
        answer = await store.commit(claim("r1"))
        assert (answer.why, answer.run is not None and answer.run.schema) == (Why.DECLINED, 7)
        assert "r1" in [hint.run for hint in await store.due(["k"])], "it stays due for newer workers"
        before = await store.raw("r1")
        changes: list[Change] = [
            End(run="r1", how=How.CANCEL),
            build.post(run="r1", item="i", name="go", ask=Ask.SIGNAL),
            build.create(run="r1", kind="k", value=1),
            Repair(run="r1"),
            Delete(run="r1"),
        ]
        for change in changes:
            with pytest.raises(StoreTooNew, match=f"schema 7 and this version reads up to {SCHEMA}"):
                await store.commit(change)
        assert await store.raw("r1") == before
        await store._opened().asked(pack("HDEL", store._keys.run("r1"), "parent"))  # which a newer one may do without
        assert (await store.commit(claim("r1"))).why is Why.DECLINED


async def test_i26_a_corrupt_record_is_set_aside_by_its_claim_and_other_runs_go_on(
    redis_url: str, namespace: str
) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        for name in ("a", "b", "c"):
            await store.commit(build.create(run=name, kind="k", value=1))
        await store._opened().asked(
            pack("HSET", store._keys.run("a"), "token", "many"),
            pack("DEL", store._keys.run("b")),
            pack("SET", store._keys.run("b"), "no record"),
        )
        assert [hint.run for hint in await store.due(["k"])] == ["a", "b", "c"]
        for name in ("a", "b"):
            answer = await store.commit(claim(name))
            assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.CORRUPT)
        assert [hint.run for hint in await store.due(["k"], limit=1)] == ["c"]
        assert (await store.commit(claim("c"))).verdict is Verdict.LANDED
        assert (await store.raw("a"))["token"] == "many", "its bytes stay"
        page = await store.find()
        assert ([run.id for run in page.runs], sorted(page.corrupt)) == (["c"], ["a", "b"])
        await store._opened().asked(pack("HSET", store._keys.run("a"), "token", "1"))
        assert (await store.commit(Repair(run="a"))).verdict is Verdict.LANDED
        assert [hint.run for hint in await store.due(["k"])] == ["a"]


async def test_a_listing_goes_on_through_more_runs_of_one_instant_than_a_page_holds(
    redis7_url: str, namespace: str
) -> None:
    clock = ManualClock()
    async with opened(f"{redis7_url}?testing=on", namespace=namespace, clock=clock) as store:
        names = {f"r{n:04d}" for n in range(PAGE * 2 + 50)}
        creates = [build.create(run=name, kind="k", value=1, tags={"odd": str(int(name[1:]) % 2)}) for name in names]
        for start in range(0, len(creates), 150):
            await store.commit_many(creates[start : start + 150])
        for name in sorted(names)[:3]:
            await store.commit(End(run=name, how=How.CANCEL))
        await store._opened().asked(pack("HDEL", store._keys.run("r0100"), "token"))
        for where, expected in (
            (Where(), names - {"r0100"}),
            (Where(tags={"odd": "1"}), {name for name in names if int(name[1:]) % 2}),
        ):
            seen: list[str] = []
            corrupt: list[str] = []
            cursor = None
            while True:
                page = await store.find(where, limit=70, cursor=cursor)
                seen += [run.id for run in page.runs]
                corrupt += page.corrupt
                cursor = page.cursor
                if cursor is None:
                    break
            assert seen == sorted(expected, reverse=True)
            assert corrupt == ["r0100"]


@contextlib.asynccontextmanager
async def monitored(store: RedisStore) -> AsyncIterator[list[bytes]]:
    """Every command that the server runs, those of scripts too."""
    connection = await connect(store._wish.where)
    await connection.send_packed_command([pack("MONITOR")])
    await connection.read_response(disable_decoding=True)
    lines: list[bytes] = []

    async def read() -> None:
        while True:
            lines.append(await connection.read_response(disable_decoding=True, timeout=60))

    reading = asyncio.create_task(read())
    yield lines
    await store._opened().asked(pack("ECHO", "the end"))
    while not any(b"the end" in line for line in lines):  # noqa: ASYNC110 - the server tells in its own time
        await asyncio.sleep(0.01)
    reading.cancel()
    await asyncio.wait([reading])
    await connection.disconnect(nowait=True)


def keys_beyond(lines: list[bytes]) -> tuple[set[str], int]:
    """The keys that scripts used without having declared them, and how many script calls were looked at."""
    declared: set[str] = set()
    beyond: set[str] = set()
    calls = 0
    for line in lines:
        where, _, command = line.decode().partition("] ")
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', command)
        if parts and parts[0] == "EVALSHA":
            declared, calls = set(parts[3 : 3 + int(parts[2])]), calls + 1
        elif where.endswith(" lua") and parts[0] not in ("TIME", "INFO"):
            used = parts[1:3] if parts[0] == "RENAME" else parts[1:2]
            beyond |= {f"{parts[0]} {key}" for key in used if key not in declared}
    return beyond, calls


async def test_scripts_use_no_key_that_was_not_declared(start_redis: StartRedis, namespace: str) -> None:
    server = start_redis(REDIS7)
    clock = ManualClock()
    draw = Draw(7, clock)
    landed: set[type[Any]] = set()
    async with opened(f"{server.url}?testing=on", namespace=namespace, clock=clock) as store, monitored(store) as lines:
        for _ in range(600):
            run_id = draw.rng.choice(("a", "b"))
            run, items = await store.load(run_id), [item.id for item in await store.inbox(run_id)]
            change = draw.change(run_id, run, items)
            answer = await store.commit(change)
            if answer.verdict is Verdict.LANDED:
                landed.add(type(change))
            clock.advance(ms=draw.rng.choice((0, 1, 900)))
    assert len(landed) == 9
    beyond, calls = keys_beyond(lines)
    assert beyond == set()
    assert calls > 600


async def test_many_claims_and_renewals_share_a_script_and_are_decided_alone(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        names = [f"r{n:03d}" for n in range(250)]
        await store.commit_many([build.create(run=name, kind=f"k{int(name[1:]) % 3}", value=1) for name in names])
        hints = await store.due(["k0", "k1", "k2"], limit=1000)
        assert {hint.run for hint in hints} == set(names)
        await store.commit(claim("r007"))
        async with store.beside() as stranger:  # which has seen no kind, and guesses wrong
            claims = [Claim(run=h.run, nonce=f"n{h.run}", owner="w", ttl_ms=60_000, token=h.token) for h in hints]
            answers = [answer for answer in await stranger.commit_many(claims) if isinstance(answer, Answer)]
            verdicts = {change.run: answer.why for change, answer in zip(claims, answers, strict=True)}
            assert verdicts.pop("r007") is Why.HELD
            assert set(verdicts.values()) == {None}
            grants = [grant_of(a.run) for a in answers if a.run is not None and a.verdict is Verdict.LANDED]
            assert len({grant.token for grant in grants}) >= 1
            grants[5] = replace(grants[5], nonce="stranger")
            renewals = await stranger.commit_many([Renew(grant=grant) for grant in grants])
            whys = [answer.why if isinstance(answer, Answer) else answer for answer in renewals]
            assert (whys.count(None), whys[5]) == (248, Why.LOST)
            assert all(a.left_ms == 60_000 for a in renewals if isinstance(a, Answer) and a.why is None)


async def test_renewals_of_one_call_keep_their_own_terms(redis_url: str, namespace: str) -> None:
    """What runs side by side have in common is said once."""
    async with opened(redis_url, namespace=namespace) as store:
        names = [f"r{n:03d}" for n in range(120)]
        await store.commit_many([build.create(run=name, kind="k", value=1) for name in names])
        claims = [claim(name, ttl_ms=60_000) for name in names]
        runs = [a.run for a in await store.commit_many(claims) if isinstance(a, Answer) and a.run is not None]
        ttls = [70_000 + n // 7 * 1_000 if n < 60 else 90_000 + n % 2 for n in range(120)]
        grants = [replace(grant_of(run), ttl_ms=ttl) for run, ttl in zip(runs, ttls, strict=True)]
        grants[9] = replace(grants[9], token=grants[9].token - 1)
        grants[61] = replace(grants[61], epoch="another.history")
        answers = await store.commit_many([Renew(grant=grant) for grant in grants])
        for at, (answer, run, ttl_ms) in enumerate(zip(answers, runs, ttls, strict=True)):
            assert isinstance(answer, Answer)
            found = await store.load(run.id)
            assert found is not None
            if at in (9, 61):
                assert (answer.why, answer.run, found) == (Why.LOST, run, run)
            else:
                assert (answer.verdict, answer.left_ms) == (Verdict.LANDED, ttl_ms)
                assert found.lease_until_ms == answer.now_us // 1000 + ttl_ms
