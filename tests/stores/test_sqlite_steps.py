"""Plain commits of many runs in one transaction: each is decided as if it came alone, and what fails writes nothing."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changes import nonce, step
from stores.test_sqlite_file import at, held
from tenure.codec import pack_row
from tenure.core import build
from tenure.core.run import Answer, Ask, Commit, Delete, Outcome, Status, Verdict, Why
from tenure.core.verify import verify_run
from tenure.errors import CorruptRecord, StoreTooNew
from tenure.stores._sqlite_transact import LONG_BYTES
from tenure.stores.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with at(tmp_path / "t.db") as opened:
        yield opened


async def together(store: SqliteStore, works: Sequence[Any]) -> list[Any]:
    """The answers to works that are one transaction, which the trace proves."""
    said: list[str] = []
    await store._written(lambda transaction: transaction.connection.set_trace_callback(said.append))
    said.clear()
    answers: list[Any] = await store._desks()[0].ask(works)
    assert said.count("COMMIT") == 1
    return answers


def told(answer: Any) -> Any:
    return (answer.verdict, answer.why) if isinstance(answer, Answer) else type(answer)


def damage(store: SqliteStore, run_id: str, old: str, new: str) -> None:
    with closing(sqlite3.connect(store._place.path, isolation_level=None)) as other:
        changed = other.execute("UPDATE run SET record = replace(record, ?, ?) WHERE id = ?", (old, new, run_id))
        assert changed.rowcount == 1


async def test_each_has_its_own_answer_and_only_what_landed_is_written(store: SqliteStore) -> None:
    a, b, c, corrupt, newer, last = [await held(store, name) for name in ("a", "b", "c", "d", "e", "f")]
    again = step(b)
    done = (await store.commit(again)).run
    assert done is not None
    damage(store, "d", '"head":"', '"head":"0')
    damage(store, "e", '"schema":"1"', '"schema":"99"')
    foreign = replace(step(c), grant=replace(step(c).grant, nonce=nonce()))
    works = [step(a), again, foreign, step(corrupt), step(newer), step(replace(a, id="absent")), step(last)]
    answers = await together(store, works)
    assert list(map(told, answers)) == [
        (Verdict.LANDED, None),
        (Verdict.ALREADY, None),
        (Verdict.REFUSED, Why.LOST),
        (Verdict.REFUSED, Why.CORRUPT),
        StoreTooNew,
        (Verdict.REFUSED, Why.ABSENT),
        (Verdict.LANDED, None),
    ]
    for run_id, answer, rows in (("a", answers[0], 2), ("b", answers[1], 2), ("f", answers[6], 2)):
        found = await store.load(run_id)
        assert found == answer.run
        journal = await store.tail(run_id)
        assert len(journal) == rows
        assert found is not None
        assert verify_run(found, journal).ok
    assert answers[1].run.touch == done.touch + 1
    assert await store.load("c") == c
    assert [len(await store.tail(run_id)) for run_id in ("c", "d", "e")] == [1, 1, 1]


async def test_all_of_them_are_decided_at_one_time(store: SqliteStore) -> None:
    runs = [await held(store, f"r{number}") for number in range(5)]
    answers = await together(store, [step(run) for run in runs])
    assert len({answer.now_us for answer in answers}) == 1


async def test_two_commits_of_one_run_see_each_other(store: SqliteStore) -> None:
    a, b = await held(store, "a"), await held(store, "b")
    first = step(a)
    after = replace(a, last_seq=first.row.seq, head=first.row.digest)
    answers = await together(store, [first, step(b), step(after, 2), step(after, 3)])
    assert list(map(told, answers)) == [(Verdict.LANDED, None)] * 3 + [(Verdict.REFUSED, Why.SEQUENCE)]
    assert (await store.load("a")) == answers[2].run


async def test_between_them_other_changes_keep_their_place(store: SqliteStore) -> None:
    a, b = await held(store, "a"), await held(store, "b")
    post = build.post(run="b", item="i", name="s", ask=Ask.SIGNAL, value=1)
    works = [
        step(a),
        post,
        step(b, inbox_seq=1, consume=["i"], blobs=[b"kept"]),
        step(replace(a, last_seq=2, head=step(a).row.digest), status=Status.QUEUED),
        lambda transaction: transaction.raise_ttl(5),
    ]
    answers = await together(store, works)
    assert list(map(told, answers[:4])) == [(Verdict.LANDED, None)] * 4
    queued = await store.load("a")
    assert queued is not None
    assert (queued.status, queued.step) == (Status.QUEUED, 2)
    assert [item.consumed for item in await store.inbox("b")] == [True]


async def test_what_cannot_be_written_rolls_all_back_and_is_done_again_one_by_one(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [await held(store, f"r{number}") for number in range(4)]

    def packed(row: Any, at_ms: int) -> Any:
        return None if row.digest == doomed.row.digest else pack_row(row, at_ms)  # which the table refuses

    changes: list[Commit] = [step(run, number) for number, run in enumerate(runs)]
    doomed = changes[1]
    monkeypatch.setattr("tenure.stores._sqlite_write.pack_row", packed)
    answers = await store.commit_many([*changes[:1], *changes[2:]])
    assert [told(answer) for answer in answers] == [(Verdict.LANDED, None)] * 3
    found = await store._desks()[0].ask(changes)
    assert list(map(told, found)) == [
        (Verdict.ALREADY, None),
        CorruptRecord,
        (Verdict.ALREADY, None),
        (Verdict.ALREADY, None),
    ]
    assert await store.load("r1") == runs[1]
    assert len(await store.tail("r1")) == 1


@pytest.mark.parametrize("what", ["few", "many bytes", "delete"])
async def test_who_was_answered_waits_for_the_statements_of_short_works_only(
    store: SqliteStore, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await held(store, "a"), await held(store, "b")
    if what == "delete":
        done = step(b, status=Status.COMPLETED, outcome=Outcome(code="c", message="m"))
        assert (await store.commit(done)).ok
    works: list[Any] = [step(a), Delete(run="b") if what == "delete" else step(b)]
    if what == "many bytes":
        works[1] = step(b, "x" * LONG_BYTES)
    seen: list[str] = []
    await store._written(lambda transaction: transaction.connection.set_trace_callback(seen.append))
    desk = store._desks()[0]
    tell = desk._tell

    def noted() -> None:
        seen.append("tells")
        tell()

    monkeypatch.setattr(desk, "_tell", noted)
    seen.clear()
    assert all(answer.ok for answer in await desk.ask(works))
    assert seen.index("tells") == (seen.index("COMMIT") - 1 if what == "few" else seen.index("BEGIN IMMEDIATE") + 1)


async def test_what_is_no_change_at_all_fails_alone(store: SqliteStore) -> None:
    a, b = await held(store, "a"), await held(store, "b")
    nothing: Any = None
    bodiless = replace(step(a), row=replace(step(a).row, body=nothing))
    answers = await store._desks()[0].ask([bodiless, step(b)])
    assert list(map(told, answers)) == [TypeError, (Verdict.LANDED, None)]
    assert await store.load("a") == a
