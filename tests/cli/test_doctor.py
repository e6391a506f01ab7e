"""`doctor`: every line is measured, and every problem names the line that fixes it."""

import re
from dataclasses import replace

import anyio
import pytest

from cli.kit import Console, Writer
from tenure.cli import census, doctor
from tenure.core.run import LEADER_ID, Claim, Create, Facts
from tenure.store import Beat, Finding, Grade, Store
from tenure.stores.memory import MemoryStore


def _levels(console: Console, *arguments: str) -> dict[str, str]:
    return {one["name"]: one["level"] for one in console("doctor", *arguments, "-o", "jsonl").lines}


def test_doctor_tells_what_is_in_the_store(filled: Console) -> None:
    said = filled("doctor")
    assert said.code == 0, "warnings are no problems"
    out = said.out
    assert out.startswith(f"store {filled.url}, namespace default\n")
    for sentence in (
        "6 runs: 1 queued, 1 running, 1 suspended, 1 quarantined, 1 completed, 1 failed",
        "1 of the suspended wait for somebody",
        "no live worker serves nobody-serves-this (1 open run)",
        "→ start a worker whose app has it (tenure worker MODULE:APP), or the program that holds its runs",
        "tenure runs --kind nobody-serves-this",
        "1 run set aside, last poison",
        "→ tenure show poison, then tenure release poison",
        "1 live worker: alpha (0/8 slots, heard ",
        "s ago, heartbeat lag 0ms)",
        "no worker leads at this moment",
        "memory: an acknowledged change survives nothing",
        "epoch (none",
        "records up to schema 2",
        "0 problems, 4 warnings",
    ):
        assert sentence in out


def test_doctor_as_json_counts_and_lists(filled: Console) -> None:
    value = filled("doctor", "-o", "json").json
    assert (value["problems"], value["warnings"]) == (0, 4)
    assert value["store"] == filled.url
    assert {one["level"] for one in value["findings"]} == {"ok", "warning"}
    assert all(one["fix"] for one in value["findings"] if one["level"] != "ok")


def test_doctor_quick_asks_the_store_only(filled: Console) -> None:
    assert set(_levels(filled, "--quick")) == {"level", "schema", "round trip", "clock", "history"}


def test_a_leader_is_named(filled: Console) -> None:
    async def lead(store: Store) -> None:
        await store.commit(Create(run=LEADER_ID, kind=LEADER_ID, input_digest="", row=None))
        claim = Claim(run=LEADER_ID, nonce="n" * 32, owner="alpha/1", ttl_ms=30_000)
        assert (await store.commit(claim)).ok

    filled.do(lead)
    assert re.search(r"✓ leader +alpha/1, \d\S+ left of its lease", filled("doctor").out)


def test_a_lease_that_nobody_takes_over_is_told(console: Console) -> None:
    async def fill(store: Store) -> None:
        writer = Writer(store)
        await writer.create("r")
        claim = Claim(run="r", nonce="n" * 32, owner="gone", ttl_ms=1)
        assert (await store.commit(claim)).ok
        await store.beat(Beat(name="a", host="h", pid=1, kinds=("research",)), ttl_ms=60_000)
        await anyio.sleep(0.01)

    console.do(fill)
    assert "1 lease ran out and nobody has taken over yet" in console("doctor").out


def test_slots_are_shown_as_the_records_have_them_and_not_as_a_row_had_them(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(store: Store) -> None:
        writer = Writer(store)
        for number in range(3):
            await writer.create(f"r{number}")
            claim = Claim(run=f"r{number}", nonce=f"{number}" * 32, owner="a/1" if number else "b/1", ttl_ms=30_000)
            assert (await store.commit(claim)).ok
        await store.beat(Beat(name="a/1", host="h", pid=1, kinds=("k",), slots=10), ttl_ms=60_000)

    console.do(fill)
    assert "1 live worker: a/1 (2/10 slots" in console("doctor").out
    monkeypatch.setattr(census, "COUNT_LIMIT", 2)
    monkeypatch.setattr(census, "PAGE", 1)
    assert "1 live worker: a/1 (0/10 slots" in console("doctor").out, "where not all are looked at, its row is asked"


def test_a_slow_store_is_a_problem_long_before_leases_are_lost() -> None:
    assert doctor.of_round_trips([1.0] * 40, ttl_ms=30_000).level is Grade.OK
    warned = doctor.of_round_trips([1.0] * 39 + [1_200.0], ttl_ms=30_000)
    assert (warned.level, "TENURE_TTL to 72" in warned.fix) == (Grade.WARNING, True)
    assert doctor.of_round_trips([6_000.0] * 40, ttl_ms=30_000).level is Grade.PROBLEM


def test_a_clock_that_is_off_is_a_warning() -> None:
    assert doctor.of_clock(-3.4).text == "the store's is 3 ms behind this machine's"
    assert doctor.of_clock(2_500).level is Grade.WARNING


def test_a_history_that_changed_is_told_while_it_matters() -> None:
    facts = Facts(now_us=10_000_000, epoch="e2", since_ms=9_000, max_ttl_ms=30_000, lossy=True)
    (found,) = doctor.of_history(facts)
    assert (found.level, "wait 29s" in found.fix) == (Grade.WARNING, True)
    assert doctor.of_history(replace(facts, lossy=False))[0].level is Grade.OK
    assert doctor.of_history(replace(facts, now_us=40_000_000))[0].level is Grade.OK


class _Telling(MemoryStore):
    """A store that says how it is set."""

    async def diagnose(self) -> list[Finding]:
        return [
            Finding(name="level", level=Grade.OK, text="disk"),
            Finding(name="appendonly", level=Grade.PROBLEM, text="off", fix="CONFIG SET appendonly yes"),
        ]


def test_what_a_store_says_of_itself_goes_first_and_decides(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.stores.memory.MemoryStore", _Telling)
    said = console("doctor")
    assert said.code == 8
    assert "✗ appendonly" in said.out
    assert "→ CONFIG SET appendonly yes" in said.out
    assert "1 problem, 0 warnings (exit 8)" in said.out
    assert said.out.count("level") == 1


def test_counting_stops_at_a_limit_and_says_so(filled: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "COUNT_LIMIT", 2)
    monkeypatch.setattr(census, "PAGE", 1)
    assert "the newest 2 runs: " in filled("doctor").out


def test_a_worker_that_is_silent_is_not_counted_as_live(filled: Console) -> None:
    beats = [
        Beat(name="alive", host="h", pid=1, kinds=("a",), at_ms=100_000),
        Beat(name="killed", host="h", pid=2, kinds=("b",), at_ms=55_000),
    ]
    facts = Facts(now_us=100_000_000)
    assert [beat.name for beat in census.live(beats, facts)] == ["alive"]
    found = {one.name: one for one in census._of_workers(census.Census(), beats, facts)}
    assert found["workers"].text.startswith("1 live worker: alive")
    assert (found["silent"].level, "killed for 45s" in found["silent"].text) == (Grade.WARNING, True)
