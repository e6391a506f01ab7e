"""docs/backup.md, done: a copy is taken from a live store, the store moves on and is lost, the copy is put back."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from cli.kit import Writer
from conftest import StartPostgres, StartRedis
from tenure.core import journal
from tenure.core.run import Grant, Reattach, Renew, Status, Verdict, Why
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing._postgres_server import program
from tenure.testing.contract_case import claim, write
from tenure.testing.servers import REDIS8, VALKEY9, RedisServer, ServerKind


async def before(store: Store) -> Grant:
    """One settled run, and one that somebody holds."""
    await store.raise_ttl(30_000)
    writer = Writer(store)
    await writer.create("done")
    await writer.commit(await writer.claim("done"), status=Status.COMPLETED)
    await writer.create("held")
    grant = await writer.claim("held")
    await writer.commit(grant, journal.event(journal.CHECKPOINT, value=1), step=1)
    return grant


async def after(store: Store, grant: Grant) -> tuple[int, str]:
    """What the copy will not know: a step that was acknowledged, and a run."""
    writer = Writer(store)
    run = await writer.commit(grant, journal.event(journal.CHECKPOINT, value=2), step=1)
    await writer.create("late")
    return run.last_seq, run.head


def new_history(url: str, namespace: str) -> None:
    command = [sys.executable, "-m", "tenure", "--store", url, "--namespace", namespace, "store", "new-history"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


async def shows_what_the_copy_knows(store: Store, grant: Grant, told: tuple[int, str]) -> None:
    """The past holder is stopped, its run goes on from the copy, and the copy is whole."""
    assert {run.id for run in (await store.find()).runs} == {"done", "held"}
    held = await store.load("held")
    assert held is not None
    assert (held.step, held.status) == (1, Status.RUNNING)
    assert verify_run(held, await store.tail("held")).ok
    assert (await store.commit(Renew(grant=grant))).verdict is Verdict.HISTORY
    assert (await store.commit(write(grant, held))).verdict is Verdict.HISTORY
    answer = await store.commit(Reattach(grant=grant, nonce="n" * 32, seq=told[0], head=told[1]))
    assert answer.why is Why.HISTORY_LOST, "it was told of a step that the copy does not know"
    answer = await store.commit(claim("held", ttl_ms=10_000))
    assert answer.why in (Why.HELD, Why.GRACE), "who took it over waits until the lease of the copy has run out"


async def test_a_copy_of_a_sqlite_file_is_put_back(tmp_path: Path) -> None:
    path, copy = tmp_path / "tenure.db", tmp_path / "copy.db"
    url = f"sqlite:///{path}"
    async with open_store(url) as store:
        grant = await before(store)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("VACUUM INTO ?", (str(copy),))
        connection.close()
        told = await after(store, grant)
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    shutil.copy(copy, path)
    new_history(url, "default")
    async with open_store(url) as store:
        await shows_what_the_copy_knows(store, grant, told)


@pytest.mark.parametrize("kind", [REDIS8, VALKEY9], ids=lambda kind: kind.name)
@pytest.mark.parametrize("way", ["dump", "log"])
async def test_a_copy_of_a_server_s_files_is_put_back(
    start_redis: StartRedis, namespace: str, tmp_path: Path, kind: ServerKind, way: str
) -> None:
    server = start_redis(kind, appendonly="yes", appendfsync="always")
    async with open_store(server.url, namespace=namespace) as store:
        grant = await before(store)
        with redis.Redis.from_url(server.url) as client:
            copy = tmp_path / "copy"
            folder = Path(client.config_get("dir")["dir"])
            if way == "dump":
                client.save()
                shutil.copy(folder / "dump.rdb", copy)
            else:
                client.config_set("auto-aof-rewrite-percentage", 0)
                shutil.copytree(folder / "appendonlydir", copy)
        told = await after(store, grant)
    put_back(server, way, folder, copy)
    new_history(server.url, namespace)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendonly", "yes")
    async with open_store(server.url, namespace=namespace) as store:
        await shows_what_the_copy_knows(store, grant, told)


async def test_a_dump_of_the_schema_is_put_back_into_postgresql(
    start_postgres: StartPostgres, namespace: str, tmp_path: Path
) -> None:
    server, copy = start_postgres(), str(tmp_path / "copy.dump")

    def run(name: str, *arguments: str) -> None:
        command = [str(program(name)), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr

    async with open_store(server.url, namespace=namespace) as store:
        grant = await before(store)
        run("pg_dump", server.url, "--schema=tenure", "--format=custom", f"--file={copy}")
        told = await after(store, grant)
    run("psql", server.url, "--command=DROP SCHEMA tenure CASCADE")
    run("pg_restore", f"--dbname={server.url}", "--single-transaction", copy)
    run("psql", server.url, "--command=ANALYZE tenure.run")
    new_history(server.url, namespace)
    async with open_store(server.url, namespace=namespace) as store:
        await shows_what_the_copy_knows(store, grant, told)


def put_back(server: RedisServer, way: str, folder: Path, copy: Path) -> None:
    server.kill()
    shutil.rmtree(folder / "appendonlydir")
    if way == "log":
        shutil.copytree(copy, folder / "appendonlydir")
        server.start()
        return
    shutil.copy(copy, folder / "dump.rdb")
    settings = server.folder / "server.conf"
    settings.write_text(settings.read_text().replace("appendonly yes", "appendonly no"))
    server.start()
