"""The contract of reads and hints: what they show, how they page, and that nothing decides by them."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from tenure.core.run import Claim, Create, Due, How, Status, Verdict
from tenure.errors import CorruptRecord, NotAllowed
from tenure.store import ALL, Beat, Refused, Store, Where
from tenure.testing.contract_case import ABILITIES, StoreCase, claim, end, nonce, signal, suspend, write


class ReadContract(StoreCase):
    """Reads, listings, the due index, workers' rows, refused writes and wake-ups: I12, I17, I26."""

    def test_every_ability_is_offered_or_named_as_lacking(self) -> None:
        offered = {name for name in ABILITIES if getattr(self, name, None) is not None}
        assert offered | set(self.lacks) == set(ABILITIES)
        assert offered & set(self.lacks) == set()
        assert all(self.lacks.values()), "a lack has its reason"

    async def test_a_store_that_is_not_open_says_so(self, store: Store) -> None:
        with pytest.raises(NotAllowed):
            await store.beside().load("r1")

    async def test_what_stands_beside_sees_the_same(self, store: Store, other_store: Store) -> None:
        await self.begin(store)
        assert await other_store.load("r1") == await store.load("r1")
        assert (other_store.url, other_store.namespace, other_store.level) == (store.url, store.namespace, store.level)

    async def test_what_is_not_there_is_none_and_empty(self, store: Store) -> None:
        assert (await store.load("r1"), await store.raw("r1"), await store.blob("r1", "d")) == (None, {}, None)
        assert (await store.tail("r1"), await store.inbox("r1")) == ([], [])
        assert (await store.due(["k"]), await store.due([]), await store.kinds()) == ([], [], [])
        assert (await store.next_due_ms(["k"]), await store.next_due_ms([])) == (None, None)
        assert await store.entries("k") == ([], "")
        page = await store.find()
        assert (page.runs, page.cursor, page.corrupt) == ((), None, ())
        assert (await store.beats(), await store.refused()) == ([], [])

    async def test_the_tail_comes_in_pages(self, store: Store) -> None:
        grant, run = await self.begin(store)
        for number in range(9):
            run = await self.lands(store, write(grant, run, number))
        assert [row.seq for row in await store.tail("r1", limit=4)] == [1, 2, 3, 4]
        assert [row.seq for row in await store.tail("r1", after=8, limit=4)] == [9, 10]
        assert await store.tail("r1", after=10) == []
        assert [row.at_ms for row in await store.tail("r1")] == sorted(row.at_ms for row in await store.tail("r1"))

    async def test_i12_every_run_that_may_be_started_is_in_the_index_of_its_kind(self, store: Store) -> None:
        for name in ("queued", "running", "sleeping", "waiting", "ended", "aside"):
            await self.create(store, name, kind=f"k-{name}", priority=3)
        held = {}
        for name in ("running", "sleeping", "waiting", "ended", "aside"):
            held[name] = await self.claim(store, name)
        await self.lands(store, suspend(*held["sleeping"], "go", due=Due(ms=60_000)))
        await self.lands(store, suspend(*held["waiting"], "go"))
        await self.lands(store, write(*held["ended"], status=Status.COMPLETED))
        await self.lands(store, end(held["aside"][0], How.QUARANTINE))
        assert sorted(await store.kinds()) == ["k-queued", "k-running", "k-sleeping"]
        for name in ("queued", "running", "sleeping"):
            run = await store.load(name)
            assert run is not None
            bound = max(run.due_ms or 0, run.lease_until_ms)
            found = await store.next_due_ms([f"k-{name}"])
            assert found is not None
            assert found <= bound, "the index is never late"
            entries, cursor = await store.entries(f"k-{name}")
            assert ([run_id for run_id, _ in entries], cursor) == ([name], "")
        (hint,) = await store.due(["k-queued", "k-running", "k-sleeping", "k-nothing"])
        run = await store.load("queued")
        assert run is not None
        assert (hint.run, hint.kind, hint.due_ms, hint.token, hint.priority) == (
            "queued", "k-queued", run.due_ms, run.token, 3,
        )  # fmt: skip

    async def test_i12_what_is_due_comes_the_longest_due_first(self, store: Store) -> None:
        for number in range(6):
            await self.create(store, f"r{number}", kind=f"k{number % 2}", due=Due(ms=-1000 * (number * 5 % 7)))
        order = [f"r{number}" for number in sorted(range(6), key=lambda n: -(n * 5 % 7))]
        assert [hint.run for hint in await store.due(["k0", "k1"])] == order
        assert [hint.run for hint in await store.due(["k0", "k1"], limit=2)] == order[:2]
        assert {hint.run for hint in await store.due(["k1"])} == {"r1", "r3", "r5"}

    async def test_i12_the_index_comes_in_pages(self, store: Store) -> None:
        names = {f"r{number}" for number in range(25)}
        for name in names:
            await self.create(store, name)
        seen: list[str] = []
        cursor = ""
        for _ in range(100):
            entries, cursor = await store.entries("k", cursor=cursor, limit=10)
            seen += [run for run, _ in entries]
            if not cursor:
                break
        assert set(seen) == names

    async def test_find_lists_the_newest_first_page_by_page(self, store: Store) -> None:
        for number in range(7):
            await self.create(store, f"r{number}")
            await self.pass_ms(1)
        page = await store.find(limit=3)
        seen = [run.id for run in page.runs]
        assert len(seen) == 3
        await self.create(store, "later")
        while page.cursor is not None:
            page = await store.find(limit=3, cursor=page.cursor)
            seen += [run.id for run in page.runs]
        assert seen == [f"r{number}" for number in reversed(range(7))]

    async def test_find_narrows_by_each_field(self, store: Store) -> None:
        grant, run = await self.begin(store, "a", kind="k1", tags={"team": "é", "x": "1"}, parent="p")
        await self.lands(store, suspend(grant, run, "q1", "go"))
        _, held = await self.begin(store, "b", kind="k1", tags={"team": "é"})
        await self.create(store, "c", kind="k2", tags={"team": "other"})
        b, c = await store.load("b"), await store.load("c")
        assert b is not None
        assert c is not None
        for where, names in (
            (ALL, {"a", "b", "c"}),
            (Where(status=(Status.SUSPENDED,)), {"a"}),
            (Where(status=(Status.QUEUED, Status.RUNNING)), {"b", "c"}),
            (Where(status=(Status.FAILED,)), set()),
            (Where(kind="k1"), {"a", "b"}),
            (Where(kind="k1", status=(Status.RUNNING,)), {"b"}),
            (Where(owner=held.owner), {"b"}),
            (Where(wants="go"), {"a"}),
            (Where(wants="g"), set()),
            (Where(parent="p"), {"a"}),
            (Where(created_from_ms=c.created_ms), {r.id for r in (run, b, c) if r.created_ms >= c.created_ms}),
            (Where(created_until_ms=c.created_ms), {r.id for r in (run, b, c) if r.created_ms < c.created_ms}),
            (Where(tags={"team": "é"}), {"a", "b"}),
            (Where(tags={"team": "é", "x": "1"}), {"a"}),
            (Where(kind="k2", tags={"team": "é"}), set()),
        ):
            found, cursor = set(), None
            while True:
                page = await store.find(where, cursor=cursor, limit=2)
                found |= {found_run.id for found_run in page.runs}
                cursor = page.cursor
                if cursor is None:
                    break
            assert found == names, where

    async def test_a_listed_run_is_the_run_that_load_returns(self, store: Store) -> None:
        grant, run = await self.begin(store, tags={"a": "\x00é"})
        await self.lands(store, write(grant, run, step=1))
        (found,) = (await store.find()).runs
        assert found == await store.load("r1")

    async def test_runs_of_our_own_are_not_listed(self, store: Store) -> None:
        ours = Create(run="_leader", kind="_leader", input_digest="", row=None, due=Due())
        assert (await store.commit(ours)).verdict is Verdict.LANDED
        lease = Claim(run="_leader", nonce=nonce(), owner="w", ttl_ms=1_000, blame=False, max_crashes=0)
        answer = await store.commit(lease)
        assert answer.verdict is Verdict.LANDED
        assert answer.run == await store.load("_leader")
        assert answer.run is not None
        assert (answer.run.last_seq, answer.run.head, await store.tail("_leader")) == (0, "", [])
        assert ((await store.find()).runs, await store.kinds(), await store.next_due_ms(["_leader"])) == ((), [], None)

    async def test_i26_a_record_that_cannot_be_read_is_named_and_hides_no_other(self, store: Store) -> None:
        break_record = self.ability("break_record")
        for name in ("r1", "r2", "r3"):
            await self.create(store, name)
        await break_record(store, "r2")
        with pytest.raises(CorruptRecord, match="r2"):
            await store.load("r2")
        assert await store.raw("r2") != {}, "its bytes stay for people"
        page = await store.find()
        assert ({run.id for run in page.runs}, page.corrupt) == ({"r1", "r3"}, ("r2",))
        answers = await store.commit_many([claim("r1"), claim("r2"), claim("r3")])
        assert getattr(answers[0], "verdict", None) is Verdict.LANDED
        assert isinstance(answers[1], CorruptRecord) or getattr(answers[1], "verdict", None) is Verdict.REFUSED
        assert getattr(answers[2], "verdict", None) is Verdict.LANDED

    async def test_workers_rows_expire(self, store: Store) -> None:
        row = Beat(name="w1", host="h", pid=7, kinds=("a", "b"), version="v", slots=3, busy=1, lag_ms=2)
        for name in ("w1", "w2"):
            await store.beat(replace(row, name=name), ttl_ms=600_000)
        first, second = await store.beats()
        assert (replace(first, at_ms=0), second.name) == (row, "w2")
        assert abs(first.at_ms - (await store.facts()).now_ms) < 60_000
        await store.beat(replace(row, name="w2", busy=2), ttl_ms=600_000)
        await store.beat(row, ttl_ms=self.short_ms)
        await self.pass_ms(self.short_ms)
        (left,) = await store.beats()
        assert (left.name, left.busy) == ("w2", 2)

    async def test_i17_the_list_of_refused_writes_is_bounded(self, store: Store) -> None:
        line = Refused(run="r1", owner="w\x00é", token=2**53 - 1, what="commit", why="lost", current_token=9)
        some = anyio.CapacityLimiter(16)  # a hint that has to wait for long is not written

        async def tell() -> None:
            async with some:
                await store.tell_refused(line)

        async with anyio.create_task_group() as tasks:
            for _ in range(1_005):
                tasks.start_soon(tell)
        await store.tell_refused(replace(line, run="last"))
        newest = await store.refused(limit=2)
        assert [(found.run, replace(found, run="r1", at_ms=0)) for found in newest] == [("last", line), ("r1", line)]
        assert len(await store.refused(limit=5_000)) == 1_000

    async def test_a_wake_up_reaches_who_waits_and_who_looks_next(self, store: Store, other_store: Store) -> None:
        with anyio.fail_after(5):
            while await store.woken(["a"], timeout=0.02):
                """It may wake for nothing, but not for ever."""
        woken: list[bool] = []

        async def wait() -> None:
            woken.append(await store.woken(["a", "b"], timeout=10))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.sleep(0.02)
                await other_store.wake("b")
        assert woken == [True]
        await other_store.wake("a")
        with anyio.fail_after(5):
            assert await store.woken(["a"], timeout=10), "a wake between two looks is not lost"

    async def test_i18_facts_are_the_store_s_own(self, store: Store) -> None:
        first = await store.facts()
        await self.pass_ms(2)
        second = await store.facts()
        assert second.now_us >= first.now_us + 1_000
        await store.raise_ttl(7_000)
        await store.raise_ttl(5_000)
        assert (await store.facts()).max_ttl_ms == 7_000
        answer = await self.create(store)
        assert second.now_us <= answer.now_us
        await self.lands(store, signal())
