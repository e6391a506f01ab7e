"""The scripts restate the law: whatever is asked in whatever order, the reference and the server answer alike."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from stores.redis_draw import RUNS, Draw, Told, again
from stores.redis_kit import opened
from tenure.clock import ManualClock
from tenure.core import rules
from tenure.core.run import Change, Found, Verdict
from tenure.store import Where
from tenure.stores._redis_line import pack
from tenure.stores.redis import RedisStore

SEEDS = 12
CHANGES = ("Create", "Claim", "Renew", "Commit", "Reattach", "Post", "End", "Delete", "Repair")
MET = {
    *("already", "absent", "conflict", "closed", "quarantined", "suspended", "status", "lost", "expired", "held"),
    *("not_due", "history", "moved", "declined", "crowded", "ttl", "sequence", "inbox", "request_closed", "stale"),
    *("history_lost", "grace"),
}
STEPS = 250


async def _agree(told: Told, store: RedisStore, change: Change) -> tuple[str, str]:
    before = await told.load(change.run)
    told.said = await store.facts()
    expected = await told.commit(change)
    answer = await store.commit(change)
    run = answer.run
    if run is None and answer.verdict is Verdict.LANDED and expected.run is not None:
        # The holder computes the run after, by the same law.
        run = rules.applied(change, Found(run=before), told.said)
    assert replace(answer, run=run) == expected, change
    return type(change).__name__, answer.why.value if answer.why else answer.verdict.value


async def _same_contents(told: Told, store: RedisStore) -> None:
    told.said = await store.facts()
    for run_id in RUNS:
        assert await store.load(run_id) == await told.load(run_id)
        rows = await told.tail(run_id, limit=1_000)
        assert await store.tail(run_id, limit=1_000) == rows
        assert await store.inbox(run_id) == await told.inbox(run_id)
        for digest, data in told._space.shelves[run_id].blobs.items() if run_id in told._space.shelves else ():
            assert await store.blob(run_id, digest) == data
    kinds = ["mail", "report"]
    assert await store.kinds() == await told.kinds()
    assert await store.next_due_ms(kinds) == await told.next_due_ms(kinds)
    assert await store.due(kinds) == await told.due(kinds)
    for kind in kinds:
        entries, cursor = await store.entries(kind)
        assert sorted(run for run, _ in entries) == [run for run, _ in (await told.entries(kind))[0]]
        assert cursor == ""
    for where in (Where(), Where(kind="mail"), Where(tags={"who": "x"}), Where(wants="req")):
        assert await store.find(where) == await told.find(where)


async def _play(store: RedisStore, clock: ManualClock, seed: int, landed: Counter[tuple[str, str]]) -> None:
    told = Told(clock=clock)
    draw, rng = Draw(seed, clock), random.Random(seed)
    async with told:
        for ttl_store in (told, store):
            await ttl_store.raise_ttl(10_000)
        made: list[Change] = []
        for step in range(STEPS):
            run_id = rng.choice(RUNS[:2] if rng.random() < 0.8 else RUNS)
            run = await told.load(run_id)
            items = [item.id for item in await told.inbox(run_id)]
            change = next(again(rng, made), None) or draw.change(run_id, run, items)
            made.append(change)
            landed[await _agree(told, store, change)] += 1
            clock.advance(ms=rng.choice((0, 0, 1, 50, 400, 2_500 if rng.random() < 0.3 else 10)))
            if rng.random() < 0.01:
                await store._read(pack("HSET", store._keys.meta, "salt", f"salt{step}"))
        await _same_contents(told, store)


async def test_b073_random_changes_are_answered_and_applied_as_the_law_says(redis_url: str, namespace: str) -> None:
    landed: Counter[tuple[str, str]] = Counter()
    for seed in range(SEEDS):
        clock = ManualClock(start_ms=1_700_000_000_000 + seed * 1_000_000)
        async with opened(f"{redis_url}?testing=on", namespace=f"{namespace}-{seed}", clock=clock) as store:
            shard = store._opened().shards[0]
            shard.stubs = replace(shard.stubs, safe="replicated" if seed % 4 == 0 else "")
            await _play(store, clock, seed, landed)
    by_change = {
        name: sum(n for (change, what), n in landed.items() if change == name and what == "landed") for name in CHANGES
    }
    assert min(by_change.values()) >= 5, by_change
    met = {what for _, what in landed}
    assert MET - met == set(), sorted(landed.items())
