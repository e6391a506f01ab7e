"""The same changes asked of both stores get the same answers, and leave the same contents."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from stores.changes import KINDS, Sequence
from tenure.clock import ManualClock
from tenure.core.run import Answer, Change, Commit, How, Reattach, Renew, Run, Status
from tenure.store import Store, Where
from tenure.stores import open_store

SEEDS = range(12)
LENGTH = 300


def _blind(run: Run | None) -> Run | None:
    """Without the epoch, which the two stores must not share."""
    return replace(run, epoch="") if run is not None else None


def _aligned(answer: Answer) -> Answer:
    return replace(answer, run=_blind(answer.run))


def _for_memory(change: Change) -> Change:
    """The same change; the grants of the memory store carry no epoch."""
    if isinstance(change, Renew | Commit | Reattach) and change.grant.epoch != "x.y":
        return replace(change, grant=replace(change.grant, epoch=""))
    return change


async def _contents(store: Store, ids: list[str]) -> list[object]:
    found: list[object] = []
    for run_id in ids:
        found += [await store.tail(run_id, limit=1000), await store.inbox(run_id), _blind(await store.load(run_id))]
    found += [await store.due(KINDS), await store.kinds(), await store.next_due_ms(KINDS), (await store.facts()).floor]
    for where in (Where(), Where(status=(Status.QUEUED, Status.RUNNING)), Where(kind="mail", tags={"b": "1"})):
        page = await store.find(where, limit=2)
        found.append(([_blind(run) for run in page.runs], page.cursor, page.corrupt))
    return found


async def test_i01_i07_generated_changes_get_the_same_answers(tmp_path: Path) -> None:
    landed: Counter[str] = Counter()
    for seed in SEEDS:
        landed.update(await _run(seed, f"sqlite:///{tmp_path}/{seed}.db?durability=local"))
    wanted = {"Create", "Claim", "Renew", "Commit", "Reattach", "Post", "Delete", "Repair"}
    wanted |= {f"End.{how.value}" for how in How}
    assert {name: landed[name] for name in wanted if landed[name] < 3} == {}, "the sequences do not reach it"


async def _run(seed: int, url: str) -> Counter[str]:
    clock = ManualClock()
    sequence = Sequence(seed)
    async with open_store("memory://", clock=clock) as memory, open_store(url, clock=clock) as store:
        for each in (memory, store):
            await each.raise_ttl(60_000)
        for number in range(LENGTH):
            clock.advance(ms=sequence.random.choice([0, 0, 1, 100, 700, 5_000]))
            change = sequence.next()
            answer = await store.commit(change)
            expected = await memory.commit(_for_memory(change))
            assert _aligned(answer) == _aligned(expected), (seed, number, change)
            sequence.see(change, answer)
            if number % 25 == 0:
                assert await _contents(store, sequence.ids) == await _contents(memory, sequence.ids), (seed, number)
        assert await _contents(store, sequence.ids) == await _contents(memory, sequence.ids)
    return sequence.landed
