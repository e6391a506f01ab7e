"""A namespace of one's own in a store that others use, and how to leave nothing of it behind."""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio

from tenure.core import build, rules
from tenure.core.run import Delete, How
from tenure.errors import said
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.inline import outside

log = logging.getLogger("tenure.testing")


def new_namespace() -> str:
    """Return a namespace that nobody uses."""
    return f"scratch-{secrets.token_hex(8)}"


@contextmanager
def scratch_namespace(url: str, /) -> Iterator[str]:
    """Yield a new namespace of the store; what it holds at the end is removed."""
    namespace = new_namespace()
    try:
        yield namespace
    finally:
        outside(lambda: anyio.run(remove, url, namespace))


async def remove(url: str, namespace: str, /) -> None:
    """Remove a namespace: its runs by the port, then what a store keeps beside them, where it is known how."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return
    async with open_store(url, namespace=namespace) as store:
        await _remove_runs(store)
        try:
            if scheme == "sqlite":
                await anyio.to_thread.run_sync(_remove_space, _path_of(store), namespace)
            elif scheme in ("postgres", "postgresql"):
                await _remove_rows(store)
            else:
                await _remove_keys(store)
        except Exception as error:  # noqa: BLE001 - drivers have errors of their own, and it is no more than tidying up
            # A user that may not: what is left are a few entries of a namespace that nobody uses.
            log.warning("namespace %s is empty, and was not wholly removed: %s", namespace, said(error))


async def _remove_runs(store: Store) -> None:
    while runs := (await store.find(limit=100)).runs:
        for run in runs:
            if run.status not in rules.TERMINAL:
                await store.commit(build.end(run=run.id, how=How.CANCEL, reason="the scratch namespace is removed"))
            await store.commit(Delete(run=run.id))


def _path_of(store: Store) -> str:
    return unquote(urlsplit(store.url).path.removeprefix("/"))


def _remove_space(path: str, namespace: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in ("beat", "refused", "run"):
            connection.execute(
                f"DELETE FROM {table} WHERE space = (SELECT number FROM space WHERE name = ?)",  # noqa: S608 - fixed names
                (namespace,),
            )
        connection.execute("DELETE FROM space WHERE name = ?", (namespace,))
        connection.execute("COMMIT")


async def _remove_keys(store: Store) -> None:
    from tenure.stores._redis_line import pack
    from tenure.stores.redis import RedisStore

    assert isinstance(store, RedisStore)

    async def one(shard: Any) -> None:
        cursor: Any = b"0"
        while True:
            scan = pack("SCAN", cursor, "MATCH", f"tenure:{{{store.namespace}*", "COUNT", "500")
            ((cursor, keys),) = await shard.asked(scan)
            # One by one: in a cluster keys of several shards may stand on one node.
            if keys:
                await shard.asked(*(pack("UNLINK", key) for key in keys))
            if int(cursor) == 0:
                return

    await store._opened().every(one)  # noqa: SLF001 - the port has no word for what a store keeps beside its runs


async def _remove_rows(store: Store) -> None:
    from psycopg import AsyncConnection, sql

    from tenure.stores.postgres import PostgresStore

    assert isinstance(store, PostgresStore)
    where = store._wish.where  # noqa: SLF001 - same
    async with await AsyncConnection.connect(where.conninfo) as connection:
        for table in ("beat", "refused", "run"):
            statement = sql.SQL("DELETE FROM {0}.{1} WHERE space = (SELECT number FROM {0}.space WHERE name = %s)")
            names = sql.Identifier(where.schema), sql.Identifier(table)
            await connection.execute(statement.format(*names), [store.namespace])
        last = sql.SQL("DELETE FROM {}.space WHERE name = %s").format(sql.Identifier(where.schema))
        await connection.execute(last, [store.namespace])
