"""The bars of faults of storage, in their short form; and that each finds what it looks for where a defence is gone."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from conftest import skip_or_fail
from tenure.core.run import Grant, Run
from tenure.repair import Repaired
from tenure.store import Durability, Store
from tenure.testing._parent import dying_with_parent
from tenure.testing.chaos import clock
from tenure.testing.chaos._clock_hands import Hands, library
from tenure.testing.chaos._power_images import HARMS, image
from tenure.testing.chaos._promotion_story import Holder
from tenure.testing.chaos._sqlite_tape import Event
from tenure.testing.chaos._told import Told, out_of_order
from tenure.testing.chaos.aof import Aof
from tenure.testing.chaos.clock import Book, StoreClock
from tenure.testing.chaos.kinds import Kind, Place
from tenure.testing.chaos.pgcrash import PostgresCrash
from tenure.testing.chaos.power import Power
from tenure.testing.chaos.promotion import Promotion
from tenure.testing.chaos.sentinel import SentinelPartition
from tenure.testing.chaos.stage import Stage
from tenure.testing.servers import ServerMissing

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]


def _counts(kind: str) -> Counter[str]:
    command = [sys.executable, "-m", "tenure.testing.chaos", "--processes", "1", "--kinds", kind]
    done = subprocess.run(dying_with_parent(command), capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    told = re.search(rf"^{kind}: \d+ histories \((.*)\), 0 violations$", said, re.MULTILINE)
    assert told is not None, said
    return Counter({name: int(count) for name, count in re.findall(r"([^,]+?) (\d+)(?:, |$)", told[1])})


async def _finds(kind: Kind, what: str, store: str, folder: Path, *seeds: int) -> None:
    """Play until it is found: what a seed comes to hangs on the times at which leases end, too."""
    found = list[str]()
    for seed in seeds:
        own = folder / str(seed)
        own.mkdir()
        place = Place(name=store, url="", namespace="n", folder=own, stage=cast("Stage", None))
        found += (await kind.play(seed, place)).violations
        if re.search(what, "\n".join(found)):
            return
    pytest.fail(f"nobody found {what!r} in {found}")


def test_i08_i09_two_thousand_power_losses_leave_what_was_acknowledged_and_no_half_of_a_change() -> None:
    counts = _counts("power")
    assert counts["images"] == 2_000
    assert counts["what was under way landed"] > 100
    assert counts["former holders refused"] > 100
    assert counts["runs gone on with"] > 100


async def test_i09_a_file_that_is_not_flushed_at_each_commit_is_found_out_by_what_a_power_loss_takes(
    tmp_path: Path,
) -> None:
    kind = Power()
    kind.level = Durability.LOCAL
    await _finds(kind, "acknowledged are not there", "sqlite", tmp_path, 1, 2, 3)


async def test_i09_a_disk_that_says_it_has_flushed_and_has_not_is_found_out(tmp_path: Path) -> None:
    kind = Power()
    kind.lies = True
    await _finds(kind, "it cannot be read|integrity_check", "sqlite", tmp_path, 1, 2, 3, 4, 5)


def test_a_power_loss_keeps_what_was_flushed_and_harms_the_rest_in_every_way() -> None:
    old, new = b"a" * 9_000, b"b" * 9_000
    events = [
        Event(what="write", name="f", data=old),
        Event(what="sync", name="f"),
        Event(what="write", name="f", offset=4_500, data=new),
        Event(what="write", name="g", data=new),
    ]
    left = [image(events, random.Random(seed)) for seed in range(400)]
    assert {harm for harm, _ in left} == set(HARMS)
    assert all(files["f"][:4_500] == old[:4_500] for _, files in left)
    assert {len(files["f"]) for _, files in left} >= {9_000, 13_500}
    torn = {files["f"].count(b"b") for harm, files in left if harm.startswith("torn")}
    assert len(torn) > 5
    assert {"g" in files for _, files in left} == {True, False}, "its name was never flushed"


def test_i08_sixty_cuts_of_an_append_only_file_leave_each_script_whole_or_not_at_all() -> None:
    counts = _counts("aof")
    assert counts["cuts"] >= 60
    assert min(counts["on redis7"], counts["on valkey9"], counts["on redis8"]) == 2
    assert counts["only what was told is there"] + counts["what was under way landed"] == counts["cuts"]


@pytest.mark.parametrize("store", ["redis7", "valkey9"])
async def test_i08_a_script_whose_commands_are_no_transaction_is_found_in_halves(tmp_path: Path, store: str) -> None:
    kind = Aof()
    kind.wrapped, kind.cuts = False, 40
    await _finds(kind, "half of a change is there", store, tmp_path, 1, 2, 3, 4, 5)


def test_i08_i09_six_crashes_of_postgresql_under_writers_lose_nothing_and_leave_no_half() -> None:
    counts = _counts("pgcrash")
    assert sum(count for name, count in counts.items() if name.startswith("crashes by ")) == 6
    assert counts["acknowledged commits"] > 100


async def test_i09_a_server_that_answers_before_its_log_is_written_is_found_out_by_a_crash(tmp_path: Path) -> None:
    kind = PostgresCrash()
    kind.flushes = False
    await _finds(kind, "are not there", "postgres", tmp_path, 6, 5, 1)


def test_i10_twelve_promotions_that_lose_what_was_acknowledged_let_nothing_stale_land() -> None:
    counts = _counts("promotion")
    assert counts["lost"] > 0, "something was lost"
    assert min(counts["refused"], counts["history lost"]) > 0, "who wrote on was told"
    assert counts["on postgres"] == 3


async def test_i10_without_its_defence_the_same_promotions_are_found_out(tmp_path: Path) -> None:
    kind = Promotion()
    kind.ask = "&history=off"
    await _finds(kind, "C was let in while A could trust its lease", "valkey9", tmp_path, 1, 2, 5, 6, 3, 7)


def test_i09_a_partition_loses_nothing_that_replicas_acknowledged() -> None:
    counts = _counts("sentinel")
    assert counts["acknowledged"] > 40
    assert min(counts["A before the cut"], counts["B after it"]) > 0


async def test_i09_a_primary_that_waits_for_no_replica_is_found_out_by_a_partition(tmp_path: Path) -> None:
    kind = SentinelPartition()
    kind.level = "local"
    await _finds(kind, "acknowledged commits are not there", "valkey9", tmp_path, 1, 2)


@pytest.fixture
def faketime() -> None:
    try:
        library()
    except ServerMissing as missing:
        skip_or_fail(missing)


@pytest.mark.usefixtures("faketime")
def test_i01_i02_i11_a_store_s_clock_that_is_moved_lets_nothing_stale_land_and_nobody_wait_for_ever() -> None:
    counts = _counts("clock")
    assert counts["moves of the clock"] == 15
    assert min(counts["grants"], counts["commits"], counts["writes refused"]) > 5


@pytest.mark.usefixtures("faketime")
async def test_i11_without_the_repair_pass_a_clock_that_is_set_back_puts_runs_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_pass(store: Store) -> Repaired:
        return Repaired()

    monkeypatch.setattr(clock, "repair_pass", no_pass)
    monkeypatch.setattr(clock, "PATIENCE_S", 3.0)
    await _finds(StoreClock(), "could not be taken over", "valkey9", tmp_path, 0, 5, 10, 15, 20, 25)


def test_what_a_moved_clock_is_held_against_is_noticed(tmp_path: Path) -> None:
    run = Run(id="r0", kind="k")
    grants = [
        Told(who="a", run="r0", sent_s=1, heard_s=2, token=10),
        Told(who="b", run="r0", sent_s=3, heard_s=4, token=20),
    ]
    held = Grant(run="r0", token=10, nonce="n", epoch="", ttl_ms=900)
    book, hands = Book(), Hands(file=tmp_path / "clock")
    book.holders.append(Holder(name="a", grant=held, run=run, trusts_until_s=3.9))
    assert out_of_order(grants, [Told(who="a", run="r0", sent_s=3, heard_s=5, token=10)]) == []
    clock._judge_trust("r0", grants, hands, book)
    assert book.wrong == []
    late = Told(who="a", run="r0", sent_s=4.1, heard_s=5, token=10)
    assert out_of_order(grants, [late]) == ["a wrote under 10 after 20 was granted"]
    again = Told(who="b", run="r0", sent_s=3, heard_s=4, token=10)
    assert out_of_order([grants[0], again], []) == ["b was granted 10 after a had 10"]
    book.holders[0].trusts_until_s = 4.5
    clock._judge_trust("r0", grants, hands, book)
    assert book.wrong.pop() == "b was let in while a could trust its lease for 500 ms more (r0)"
    hands.fast.append((3.2, 3.3))
    clock._judge_trust("r0", grants, hands, book)
    assert book.wrong == []
    assert book.counts["leases that the clock ended early"] == 1
