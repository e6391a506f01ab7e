"""The export of one run's journal: read back byte for byte, continued after a torn line, refused when damaged."""

from __future__ import annotations

import base64
import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from journal.kit import walk
from tenure import CorruptRecord, Ledger, Store, StoreTooNew, open_store
from tenure.core import journal
from tenure.core.run import Row
from tenure.journal_file import commit_value, export_to, read_export, verify_file


async def _exported(ledger: Ledger, tmp_path: Path) -> tuple[Path, list[Row]]:
    run, rows = await walk(ledger)
    path = tmp_path / "w1.jsonl"
    assert await export_to(ledger.store, "w1", path) == run.last_seq
    return path, rows


def _rows(path: Path) -> list[Row]:
    return [line.row for line in read_export(path) if line.row is not None]


async def test_an_export_holds_the_rows_and_the_record_and_verifies_without_a_store(
    ledger: Ledger, tmp_path: Path
) -> None:
    path, rows = await _exported(ledger, tmp_path)
    assert _rows(path) == rows
    assert [line.record for line in read_export(path)][-1] == replace(await ledger.load("w1"), nonce="")
    assert verify_file(path) == await ledger.handle("w1").verify()


@pytest.mark.slow
async def test_b121_m_jr08_a_file_cut_at_any_byte_of_its_last_commit_goes_on_where_it_was_whole(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.submit("own", "go", id="r1")
    path, store = tmp_path / "r1.jsonl", ledger.store
    async with ledger.hold("r1") as lease:
        await lease.checkpoint("first")
        await lease.checkpoint("łast ☃")  # cut inside a character of two bytes and of three as well
    await export_to(store, "r1", path)
    whole = path.read_bytes()
    *_, tail, record = whole.splitlines(keepends=True)
    begin = len(whole) - len(record) - len(tail)
    for cut in range(begin, len(whole) - len(record)):
        path.write_bytes(whole[:cut])
        kept = _rows(path)
        assert [row.seq for row in kept] == list(range(1, len(kept) + 1))
        assert not verify_file(path).ok, "what is torn or missing is told"
        assert await export_to(store, "r1", path) == 4
        assert path.read_bytes() == whole
    assert verify_file(path).ok


async def test_an_export_goes_on_with_what_landed_since(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "r1.jsonl"
    await ledger.submit("own", 0, id="r1")
    for n in range(4):
        async with ledger.hold("r1") as lease:
            await lease.checkpoint(n)
        await export_to(ledger.store, "r1", path)
        assert verify_file(path).ok
    assert _rows(path) == await ledger.store.tail("r1")
    assert sum(b'{"record"' in line for line in path.read_bytes().splitlines()) == 1, "the latest, and no older one"


async def test_m_jr08_damage_elsewhere_than_in_the_last_line_is_refused_by_its_line(
    ledger: Ledger, tmp_path: Path
) -> None:
    path, _ = await _exported(ledger, tmp_path)
    whole = path.read_bytes().splitlines(keepends=True)
    for damaged, said in (
        ([*whole[:2], whole[2][:-9] + b"\n", *whole[3:]], "line 3"),
        ([*whole[:2], b"\xff" + whole[2], *whole[3:]], "line 3"),
        ([*whole[:2], b"{}\n", *whole[3:]], "line 3"),
        (whole[1:], "line 1"),
        ([*whole, whole[0]], f"line {len(whole) + 1}"),
    ):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(CorruptRecord, match=said):
            list(read_export(path))
        with pytest.raises(CorruptRecord):
            await export_to(ledger.store, "w1", path)
        assert path.read_bytes() == b"".join(damaged), "nothing is written into a file that is not understood"
    for edited in (
        [*whole[:2], *whole[3:]],
        [*whole[:2], whole[3], whole[2], *whole[4:]],
        [*whole[:2], whole[2].replace(b"step 1", b"stop 1"), *whole[3:]],
        [*whole[:-2], whole[-1]],
        whole[:-1],
    ):
        path.write_bytes(b"".join(edited))
        assert not verify_file(path).ok


async def test_an_export_of_another_run_or_a_newer_format_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    path, _ = await _exported(ledger, tmp_path)
    await ledger.submit("own", 0, id="r1")
    with pytest.raises(CorruptRecord, match="export of run w1, not of r1"):
        await export_to(ledger.store, "r1", path)
    path.write_bytes(path.read_bytes().replace(b'"tenure":1', b'"tenure":9', 1))
    with pytest.raises(StoreTooNew, match="format 9"):
        list(read_export(path))


async def test_a_body_that_is_no_json_is_kept_byte_for_byte(store: Store) -> None:
    row = journal.row("r1", 1, "", b'\xff{"events": []}', None)
    assert base64.b64decode(commit_value(row)["raw"]) == row.body
    spaced = journal.row("r1", 1, "", b'{"events": []}', None)
    assert base64.b64decode(commit_value(spaced)["raw"]) == spaced.body, "JSON, but not in the canonical form"


FULL = """
import resource, signal, sys
from tenure.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
main()
"""


@pytest.mark.slow
async def test_b123_a_full_disk_is_told_and_the_next_export_mends_what_it_tore(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow beyond a size, in the middle of a line, in a process of its own."""
    url, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "w1.jsonl"
    async with open_store(url) as store, Ledger(store) as ledger:
        await walk(ledger)
        await export_to(store, "w1", path)
        whole = path.read_bytes()
        path.unlink()
        # Written by another process with a buffer of its own: the size stops it within a line.
        env = {**os.environ, "TENURE_STORE": url}
        room = 8192 + 100
        assert len(whole) > room
        program = [sys.executable, "-c", FULL, str(room), "journal", "export", "w1", "--file", str(path)]
        failed = await anyio.run_process(program, env=env, check=False)
        assert failed.returncode == 2, failed
        assert b"cannot be written" in failed.stderr
        assert 0 < path.stat().st_size <= room
        torn = verify_file(path)
        assert {found.code for found in torn.failures} <= {"TORN", "HEAD"}
        assert torn.failures, "the gap is shown"
        assert await export_to(store, "w1", path) > 0
        assert path.read_bytes() == whole
        assert verify_file(path).ok
