"""`verify_run`: whatever is done to a journal is found, and what is merely not there to be compared is no failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agent.parts import Bench, agent_of
from journal.kit import forged, walk
from tenure import App, CheckpointedAgent, Ledger, Run, RunNotFound, Store, verify_run
from tenure.core.run import Row, Status


def _codes(run: Run, rows: Sequence[Row]) -> set[str]:
    return {found.code for found in verify_run(run, rows).failures}


async def test_m_jr21_a_whole_journal_verifies_with_its_numbers(ledger: Ledger) -> None:
    run, rows = await walk(ledger)
    found = verify_run(run, rows)
    assert (found.failures, found.inconclusive, found.ok) == ((), (), True)
    assert found.stats.commits == len(rows) == run.last_seq
    assert (found.stats.steps, found.stats.requests) == (9, 9)
    assert found.stats.blocks > 20
    assert verify_run(run, iter(rows)) == found, "rows may be read as they come"
    assert await ledger.handle("w1").verify() == found


DAMAGE: dict[str, Callable[[list[Row]], list[Row]]] = {
    "edit": lambda rows: [*rows[:3], replace(rows[3], body=rows[3].body.replace(b"step", b"stop")), *rows[4:]],
    "edit of the last": lambda rows: [
        *rows[:-1],
        replace(rows[-1], body=rows[-1].body.replace(b"completed", b"failed")),
    ],
    "drop": lambda rows: [*rows[:3], *rows[4:]],
    "swap": lambda rows: [*rows[:3], rows[4], rows[3], *rows[5:]],
    "swap of bodies": lambda rows: [
        *rows[:3],
        replace(rows[3], body=rows[4].body),
        replace(rows[4], body=rows[3].body),
        *rows[5:],
    ],
    "insertion": lambda rows: [*rows[:3], rows[2], *rows[3:]],
    "insertion at the end": lambda rows: [*rows, replace(rows[-1], seq=rows[-1].seq + 1)],
    "cut tail": lambda rows: rows[:-1],
    "cut head": lambda rows: rows[1:],
    "torn": lambda rows: [*rows[:-1], replace(rows[-1], body=rows[-1].body[:-7])],
    "another's token": lambda rows: [*rows[:3], replace(rows[3], token=rows[3].token + 1), *rows[4:]],
    "nothing left": lambda rows: [],
}


@pytest.mark.parametrize("how", DAMAGE)
async def test_i16_m_jr22_every_damage_to_a_journal_is_found(ledger: Ledger, how: str) -> None:
    run, rows = await walk(ledger)
    assert _codes(run, DAMAGE[how](rows)) & {"SEQUENCE", "DIGEST", "HEAD", "CONTENT", "TOKEN_ORDER"}, how


async def test_a_record_that_was_edited_is_found(ledger: Ledger) -> None:
    run, rows = await walk(ledger)
    for edited in (
        replace(run, step=run.step + 1),
        replace(run, base_seq=1),
        replace(run, input_digest="0" * 64),
    ):
        assert _codes(edited, rows) == {"RECORD"}
    assert _codes(replace(run, head="0" * 64), rows) == {"HEAD"}
    assert _codes(replace(run, token=1), rows) == {"GRANT"}


def _say(text: str) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        if event["type"] == "assistant/message" and event["step"] == 2:
            event["message"]["parts"][0]["text"] = text

    return change


def _result(event: dict[str, Any]) -> None:
    if event.get("name") == "tool:c2":
        event["value"] = {"found": 99}


def _no_names(event: dict[str, Any]) -> None:
    if event["type"] == "model/request" and event["step"] == 3:
        event["blocks"][0]["from"] = []


def _counters(event: dict[str, Any]) -> None:
    if event["type"] == "context/replace":
        event["agent"]["spent"]["turns"] = 0


def _smuggled(event: dict[str, Any]) -> None:
    if event["type"] == "context/replace":
        event["agent"]["messages"][1]["message"]["parts"][0]["text"] = "said by nobody"


def _input(event: dict[str, Any]) -> None:
    if event["type"] == "context/replace":
        event["state"]["input"] = "went"


def _orphan(event: dict[str, Any]) -> None:
    if event.get("name") == "tool:c3":
        event["name"] = "tool:c99"


@pytest.mark.parametrize(
    "change, code, said",
    [
        (_say("another word"), "MISSING_CONTEXT_REPLACE", "not-reproducible"),
        (_result, "MISSING_CONTEXT_REPLACE", "not-reproducible"),
        (_no_names, "MISSING_CONTEXT_REPLACE", "no-lineage"),
        (_smuggled, "MISSING_CONTEXT_REPLACE", "stood nowhere before"),
        (_counters, "RESTATED", "spent"),
        (_input, "RESTATED", "state"),
        (_orphan, "FOLD", "c99 has no open call"),
    ],
)
async def test_m_jr22_m_jr23_a_journal_that_was_forged_with_its_chain_contradicts_itself(
    ledger: Ledger, change: Callable[[dict[str, Any]], None], code: str, said: str
) -> None:
    run, rows = await walk(ledger)
    found = [one for one in verify_run(*forged(run, rows, change)).failures if one.code == code]
    assert any(said in one.detail for one in found), verify_run(*forged(run, rows, change))
    assert found[0].index is not None
    assert verify_run(*forged(run, rows, lambda _: None)).ok, "the forger's tool alone changes nothing"


async def test_m_jr23_an_answer_that_names_no_request_is_inconclusive(ledger: Ledger) -> None:
    run, rows = await walk(ledger)

    def older(event: dict[str, Any]) -> None:
        if event["type"] == "model/request":
            event["type"] = "unknown/event"

    found = verify_run(*forged(run, rows, older))
    assert found.ok
    assert {one.code for one in found.inconclusive} == {"NO_REQUEST"}
    assert len(found.inconclusive) == 9


async def test_a_message_of_a_newer_schema_is_inconclusive(ledger: Ledger) -> None:
    run, rows = await walk(ledger)

    def newer(event: dict[str, Any]) -> None:
        if event["type"] == "assistant/message" and event["step"] == 2:
            event["message"]["schema"] = 99

    found = verify_run(*forged(run, rows, newer))
    assert "NEWER" in {one.code for one in found.inconclusive}
    assert {one.code for one in found.failures} <= {"MISSING_CONTEXT_REPLACE"}


async def test_a_result_that_is_gone_or_edited_is_found_and_a_missing_run_is_named(
    ledger: Ledger, store: Store
) -> None:
    await walk(ledger)
    shelf = store._space.shelves["w1"]  # type: ignore[attr-defined]
    (digest,) = shelf.blobs
    shelf.blobs[digest] = b'"undone"'
    assert [one.code for one in (await ledger.handle("w1").verify()).failures] == ["RESULT"]
    del shelf.blobs[digest]
    assert "missing" in (await ledger.handle("w1").verify()).failures[0].detail
    with pytest.raises(RunNotFound):
        await ledger.handle("nobody").verify()


async def test_verifying_writes_nothing(ledger: Ledger, store: Store) -> None:
    await walk(ledger)
    before = (await store.raw("w1"), await store.tail("w1", limit=1000))
    assert (await ledger.handle("w1").verify()).ok
    assert (await store.raw("w1"), await store.tail("w1", limit=1000)) == before


async def test_a_run_that_goes_on_meanwhile_verifies(ledger: Ledger) -> None:
    await ledger.submit("own", 0, id="r1")
    async with ledger.hold("r1") as lease, anyio.create_task_group() as tasks:

        async def write() -> None:
            for n in range(200):
                await lease.checkpoint(n)

        tasks.start_soon(write)
        looks = 0
        while lease.run.step < 200:
            found = await ledger.handle("r1").verify()
            assert found.ok, found
            looks += 1
            await anyio.lowlevel.checkpoint()
        assert looks > 1
        await lease.settle(Status.COMPLETED)


async def test_handlers_steps_and_own_names_verify(ledger: Ledger) -> None:
    from tenure.perform import perform

    app = App()

    @app.kind("pair")
    async def pair(run: Any, n: int) -> int:
        await run.step("one", lambda: 1, effect="fail")
        return int(await run.step("two", lambda: n))

    await ledger.submit(pair, 3, id="p1")
    async with ledger.hold("p1") as lease:
        await perform(app, ledger, lease)
    found = await ledger.handle("p1").verify()
    assert (found.ok, found.stats.steps) == (True, 2)
    await ledger.submit("own", 0, id="r1")
    async with ledger.hold("r1") as lease:
        await lease.started(["tool:mine"])
        await lease.record("tool:mine", 1)
    assert (await ledger.handle("r1").verify()).ok


async def test_m_jr11_m_jr25_a_recovered_run_verifies_over_all_its_attempts(ledger: Ledger, store: Store) -> None:
    bench = Bench(ledger, store)
    agent = agent_of(bench.effect("work"))
    await bench.abandon(agent)
    assert await CheckpointedAgent(agent, ledger).recover("w1") == "done"
    found = await ledger.handle("w1").verify()
    assert (found.failures, found.inconclusive) == ((), ())
    assert (await ledger.load("w1")).attempt == 2
    events = [(address, event) async for address, event in ledger.handle("w1").events()]
    assert [event["attempt"] for _, event in events if event["type"] == "attempt/start"] == [1, 2]
    assert [row.seq for row in await store.tail("w1")] == list(range(1, found.stats.commits + 1))
