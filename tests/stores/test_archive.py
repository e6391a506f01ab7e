"""Whole runs from store to store: equal on arrival, also those that somebody writes while they are read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cli.kit import Writer, fill
from tenure import Ledger, archive
from tenure.carry import Whole, bring, carried
from tenure.core import build, canonical, journal
from tenure.core.run import Ask, Delete, How, Row, Status, Verdict
from tenure.core.verify import verify_run
from tenure.errors import CorruptRecord, InvalidId
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores.memory import MemoryStore


async def lines_of(store: Store) -> list[bytes]:
    writer = archive.Writer()
    lines = [writer.head(namespace=store.namespace, at_ms=0)]
    for run in (await store.find()).runs:
        found = await archive.whole(store, run.id)
        assert found is not None
        lines += writer.run(found)
    return [*lines, writer.end()]


async def each(lines: list[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


async def move(source: Store, target: Store) -> dict[str, Whole]:
    """Bring every run of one store into another, by way of a file."""
    moved = {}
    async for found in archive.Reader().read(each(await lines_of(source))):
        assert isinstance(found, Whole)
        answer = await target.commit(bring(found, salt="5a17"))
        assert answer.verdict is Verdict.LANDED
        moved[found.record.id] = found
    return moved


@asynccontextmanager
async def stores(tmp_path: Path, namespace: str, *urls: str) -> AsyncIterator[list[Store]]:
    async with (
        open_store(f"sqlite:///{tmp_path / 'a.db'}") as first,
        open_store(urls[0], namespace=namespace) as second,
        open_store("memory://") as third,
        open_store(urls[1], namespace=namespace) as fourth,
        open_store(f"sqlite:///{tmp_path / 'b.db'}", namespace="other") as last,
    ):
        yield [first, second, third, fourth, last]


async def test_runs_go_through_every_kind_of_store_and_arrive_as_they_were(
    tmp_path: Path, namespace: str, valkey_url: str, postgres_url: str
) -> None:
    async with stores(tmp_path, namespace, valkey_url, postgres_url) as found:
        first, *others = found
        await fill(first)
        await first.commit(build.post(run="held", item="i-1", name="späť\x00", ask=Ask.SIGNAL, value="\x00\U0001f980"))
        writer = Writer(first)
        await writer.create("large", value="v" * 100_000)
        grant = await writer.claim("large")
        await writer.commit(grant, journal.event("x", v="y" * 90_000), blobs=[b"\xff" * 70_000, b"\x00small"])
        before = {run.id: run for run in (await first.find()).runs}
        assert len(before) == 7
        moved: dict[str, Whole] = {}
        for source, target in zip(found, others, strict=False):
            moved = await move(source, target)
        last = others[-1]
        for run_id, run in before.items():
            was, now = await archive.whole(first, run_id), await archive.whole(last, run_id)
            assert was is not None
            assert now is not None
            assert verify_run(now.record, now.rows).ok
            assert (list(now.rows), list(now.items), now.blobs) == (list(was.rows), list(was.items), was.blobs)
            assert now.record.status is (Status.QUEUED if run.status is Status.RUNNING else run.status)
            assert (now.record.attempt, now.record.crashes) == (run.attempt, run.crashes)
            assert now.record.token > run.token
            assert [line.ended for line in now.record.grants[-4:]] == ["imported"] * 4
            assert carried(now.record).version == run.version + 4
        assert set(moved) == set(before)


async def test_a_run_that_is_written_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store, store.beside() as other:
        writer = Writer(other)
        await writer.create("r1")
        grant = await writer.claim("r1")
        done, seen = anyio.Event(), 0

        async def write() -> None:
            for number in range(60):
                await other.commit(build.post(run="r1", item=f"i{number}", name="n", ask=Ask.SIGNAL, value=number))
                await writer.commit(grant, consume=[f"i{number}"])
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            while not done.is_set():
                found = await archive.whole(store, "r1")
                assert found is not None
                assert all(item.consumed or item.body for item in found.items), "it is taken, or says what it said"
                seen += 1
        assert seen > 3


async def test_a_blob_that_is_gone_is_told_and_a_run_that_is_gone_is_nothing(tmp_path: Path) -> None:
    async with open_store("memory://") as store:
        assert isinstance(store, MemoryStore)
        assert await archive.whole(store, "nowhere") is None
        writer = Writer(store)
        await writer.create("r1")
        await writer.commit(await writer.claim("r1"), blobs=[b"blob"])
        store.space.shelves["r1"].blobs.clear()
        with pytest.raises(CorruptRecord, match="of run r1 is gone"):
            await archive.whole(store, "r1")


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "x" * 201])
async def test_a_code_version_that_no_store_could_give_back_is_neither_made_nor_brought_in(name: str) -> None:
    with pytest.raises(InvalidId):
        build.create(run="r1", kind="k", value=1, code_version=name)
    async with open_store("memory://") as store:
        await store.commit(replace(build.create(run="r1", kind="k", value=1), code_version=name))
        found = await archive.whole(store, "r1")
    assert found is not None
    with pytest.raises(InvalidId):
        bring(found, salt="5a17")
    with pytest.raises(InvalidId):
        Ledger(store, code_version=name)


async def test_what_a_fork_begins_with_beside_its_journal_is_carried_too() -> None:
    data = b"\x89PNG"
    name = canonical.digest(data)
    fork = {"run": "origin", "seq": 3, "head": "0" * 64, "step": 2}
    change = build.fork(
        run="r1", kind="k", value=1, code_version="", priority=0, tags={}, fork=fork, state={}, agent=None,
        blobs={name: data},
    )  # fmt: skip
    async with open_store("memory://") as first, open_store("memory://") as second:
        assert (await first.commit(change)).verdict is Verdict.LANDED
        await move(first, second)
        assert await second.blob("r1", name) == data


class Vanishing(MemoryStore):
    """Whose settled runs are deleted just when their journal is read, and perhaps made anew."""

    anew = False

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        if (await self.commit(Delete(run=run_id))).verdict is Verdict.LANDED and self.anew:
            await self.commit(build.create(run=run_id, kind="k", value=2))
        return await super().tail(run_id, after=after, limit=limit)


async def test_a_run_that_is_deleted_while_it_is_read_is_gone_and_not_damaged() -> None:
    async with Vanishing() as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        assert (await store.commit(build.end(run="r1", how=How.CANCEL))).ok
        assert await archive.whole(store, "r1") is None
        store.anew = True
        await store.commit(build.create(run="r1", kind="k", value=1))
        assert (await store.commit(build.end(run="r1", how=How.CANCEL))).ok
        found = await archive.whole(store, "r1")
        assert found is not None
        assert found.record.status is Status.QUEUED
