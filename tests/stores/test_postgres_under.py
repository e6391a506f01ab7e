"""A dump that was put back, and a disk that is full: what lies under a PostgreSQL store."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from conftest import StartPostgres
from stores.postgres_kit import begun, rows_of
from tenure import StoreUnavailable, open_store
from tenure.core.run import Verdict, Why
from tenure.store import Restorable
from tenure.testing._postgres_server import own, program
from tenure.testing.contract_case import grant_of, write
from tenure.testing.contract_history import reattach
from tenure.testing.servers import PostgresServer


async def test_i10_a_dump_that_was_put_back_lets_nobody_go_on_with_what_it_lacks(
    start_postgres: StartPostgres, namespace: str
) -> None:
    """The documented restore: stop the workers, pg_dump and psql, then `tenure store new-history`."""
    server = start_postgres()
    url = server.url.replace("/postgres", "/restored")
    async with open_store(server.url, namespace=namespace) as store:
        run = await begun(store, "r1")
        dump = await anyio.run_process(
            [str(program("pg_dump")), "--schema=tenure", f"--dbname={server.url}"], env=dict(os.environ)
        )
        later = await store.commit(write(grant_of(run), run, step=1))
        assert later.verdict is Verdict.LANDED
    await rows_of(server.url, "CREATE DATABASE restored")
    await anyio.run_process([str(program("psql")), "-q", "-v", "ON_ERROR_STOP=1", url], input=dump.stdout)
    async with open_store(url, namespace=namespace) as store:
        assert isinstance(store, Restorable)
        await store.raise_ttl(60_000)
        await store.new_history()
        told = await store.load("r1")
        assert told is not None
        assert told.last_seq == run.last_seq, "the copy lacks what came after"
        flown = write(grant_of(run), run, step=1)
        answer = await store.commit(reattach(grant_of(run), replace(run, last_seq=2, head=flown.row.digest)))
        assert answer.why is Why.HISTORY_LOST
        assert (await store.commit(flown)).verdict is Verdict.HISTORY
        assert (await store.facts()).lossy


@pytest.fixture
def small_disk(start_postgres: StartPostgres) -> Iterator[tuple[PostgresServer, Path]]:
    """A server, and a disk of two megabytes that it may use."""
    server = start_postgres()
    place = server.folder / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        own(place)
        yield server, place
    finally:
        server.stop()
        subprocess.run(["umount", "--lazy", str(place)], check=True)


async def test_a_full_disk_is_named_leaves_nothing_half_written_and_passes(
    small_disk: tuple[PostgresServer, Path],
) -> None:
    server, place = small_disk
    await rows_of(server.url, f"CREATE TABLESPACE small LOCATION '{place}'")
    await rows_of(server.url, "ALTER TABLE tenure.blob SET TABLESPACE small")
    async with open_store(server.url) as store:
        run = await begun(store, "r1")
        large = write(grant_of(run), run, step=1, blobs=[os.urandom(3_000_000)])
        with pytest.raises(StoreUnavailable, match=r"disk .* is full"):
            await store.commit(large)
        assert (await store.load("r1"), len(await store.tail("r1"))) == (run, 1)
        small = await begun(store, "r2")
        assert (await store.commit(write(grant_of(small), small, step=1))).ok, "who needs no room goes on"
        await anyio.run_process(["mount", "-o", "remount,size=50m", str(place)])
        assert (await store.commit(large)).verdict is Verdict.LANDED
