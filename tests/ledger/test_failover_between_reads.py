"""A failover between two reads of one run: what it took looks like damage, and is none."""

import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cli.kit import Writer
from tenure import Ledger, RunConflict, StoreUnavailable, archive, forking
from tenure.core import build
from tenure.core.run import Ask, Item, Row, Run
from tenure.errors import CorruptRecord
from tenure.journal_file import export_to, verify_file
from tenure.stores.memory import MemoryStore, Shelf
from tenure.verifying import verified


class Forgets(MemoryStore):
    """A store that goes back to `then` when a run's rows or blobs are asked for the next time, or rows were given."""

    then: dict[str, Shelf] | None = None
    at: tuple[str, ...] = ("rows", "blobs")

    def now(self) -> dict[str, Shelf]:
        return copy.deepcopy(self.space.shelves)

    def will_go_back(self) -> bool:
        return self.then is not None

    def _go_back(self, what: str) -> None:
        if self.then is not None and what in self.at:
            then, self.then = self.then, None
            self.space.shelves.clear()
            self.space.shelves.update(then)

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        self._go_back("rows")
        rows = await super().tail(run_id, after=after, limit=limit)
        self._go_back("rows given")
        return rows

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        self._go_back("blobs")
        return await super().blob(run_id, digest)


@pytest.fixture
async def store() -> AsyncIterator[Forgets]:
    async with Forgets() as opened:
        yield opened


async def ended(ledger: Ledger, run_id: str, result: object) -> Run:
    async with ledger.hold(run_id) as lease:
        await lease.checkpoint({"n": 1})
        await lease.settle("completed", result)
    return await ledger.load(run_id)


async def test_a_result_that_is_gone_with_its_record_is_waited_for(store: Forgets) -> None:
    async with Ledger(store, ttl=60) as ledger:
        handle = await ledger.submit("k", 1, id="r1")
        before = store.now()
        await ended(ledger, "r1", "first")
        store.then = before
        found: list[object] = []

        async def wait() -> None:
            found.append(await handle.result(timeout=60))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            with anyio.fail_after(60):
                while store.will_go_back():  # noqa: ASYNC110 - until the wait has met what was lost
                    await anyio.sleep(0.001)
            assert found == []
            await ended(ledger, "r1", "second")
        assert found == ["second"]


async def test_a_result_that_is_gone_beside_its_record_is_told(store: Forgets) -> None:
    async with Ledger(store, ttl=60) as ledger:
        handle = await ledger.submit("k", 1, id="r1")
        await ended(ledger, "r1", "first")
        store.space.shelves["r1"].blobs.clear()
        with pytest.raises(CorruptRecord, match="result of run r1 is missing or edited"):
            await handle.result(timeout=60)


@pytest.mark.parametrize("at", ["rows", "rows given", "blobs"])
async def test_a_journal_that_went_back_with_its_record_is_not_damaged(store: Forgets, at: str) -> None:
    store.at = (at,)
    async with Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        before = store.now()
        await ended(ledger, "r1", "first")
        store.then = before
        assert (await verified(store, "r1")).ok
        await ended(ledger, "r1", "second")
        store.then = store.now()
        store.then["r1"].rows.pop()
        store.then["r1"].blobs.clear()
        assert not (await verified(store, "r1")).ok, "its record stayed"


async def test_a_run_that_went_back_while_it_was_exported_is_exported_as_it_is(store: Forgets) -> None:
    async with Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        before = store.now()
        await ended(ledger, "r1", "first")
        store.then = before
        found = await archive.whole(store, "r1")
        assert found is not None
        assert (found.record.last_seq, len(found.rows)) == (1, 1)
        await ended(ledger, "r1", "second")
        store.then = store.now()
        store.then["r1"].rows.pop()
        with pytest.raises(CorruptRecord, match="is not whole"):
            await archive.whole(store, "r1")


async def test_a_run_that_moved_and_then_went_back_while_it_was_exported_is_exported_as_it_is() -> None:
    class Moves(Forgets):
        async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
            await writer.commit(grant, consume=["i1"])
            items = await super().inbox(run_id, after=after)
            self._go_back("items given")
            return items

    async with Moves() as store:
        writer = Writer(store)
        await writer.create("r1")
        before = store.now()
        grant = await writer.claim("r1")
        await writer.commit(grant)
        await store.commit(build.post(run="r1", item="i1", name="n", ask=Ask.SIGNAL, value=1))
        store.then, store.at = before, ("items given",)
        found = await archive.whole(store, "r1")
    assert found is not None
    assert (found.record.last_seq, len(found.rows)) == (1, 1)


async def test_a_blob_that_went_with_its_run_while_it_was_forked_is_asked_for_again(store: Forgets) -> None:
    async with Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        before = store.now()
        run = await ended(ledger, "r1", "first")
        assert run.outcome is not None
        name = run.outcome.result
        assert list(await forking.blobs(store, run, [name], [name])) == [name]
        store.then = before
        with pytest.raises(StoreUnavailable, match="moved while it was read"):
            await forking.blobs(store, run, [name], [name])
        run = await ended(ledger, "r1", "second")
        for seen in (run, replace(run, touch=run.touch + 1)):  # also beside a record that has moved since, by a renewal
            with pytest.raises(CorruptRecord, match="is gone"):
                await forking.blobs(store, seen, [name], [name])


async def test_a_journal_that_went_back_while_it_was_exported_is_exported_again_to_another_file(
    store: Forgets, tmp_path: Path
) -> None:
    store.at = ("rows given",)
    async with Ledger(store, ttl=60) as ledger:
        await ledger.submit("k", 1, id="r1")
        before = store.now()
        await ended(ledger, "r1", "first")
        store.then = before
        with pytest.raises(RunConflict, match="lost commits of run r1 that were exported"):
            await export_to(store, "r1", tmp_path / "first")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint({"n": 1})
            await lease.checkpoint({"n": 2})
            await lease.settle("completed", "second")  # what follows the file's last commit is not of its history
        with pytest.raises(RunConflict, match="to another file"):
            await export_to(store, "r1", tmp_path / "first")
        assert await export_to(store, "r1", tmp_path / "second") == 4
        assert verify_file(tmp_path / "second").ok
        assert await export_to(store, "r1", tmp_path / "second") == 4
        store.space.shelves["r1"].rows.pop()
        assert await export_to(store, "r1", tmp_path / "damaged") == 3
        assert not verify_file(tmp_path / "damaged").ok, "what is damaged is exported as it is"
