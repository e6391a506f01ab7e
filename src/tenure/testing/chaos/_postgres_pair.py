"""A PostgreSQL primary and a standby that can be cut off from it and promoted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from tenure.stores._postgres_connect import address
from tenure.stores._postgres_migrate import migrate
from tenure.testing._postgres_server import ROLE, PostgresServer
from tenure.testing._server_process import START_TIMEOUT_S


class PostgresPair:
    """Two servers; the standby streams asynchronously, so it lacks what was written after it was cut off."""

    def __init__(self, primary: PostgresServer, replica: PostgresServer) -> None:
        self.primary = primary
        self.replica = replica

    async def follow(self) -> None:
        """Let the standby follow the primary again."""
        where = f"host=127.0.0.1 port={self.primary.port} user={ROLE}"
        await told(self.replica, f"ALTER SYSTEM SET primary_conninfo = '{where}'")
        self.replica.reload()
        await self.caught_up()

    async def caught_up(self) -> None:
        """Wait until the standby shows what the primary has."""
        ((wanted,),) = await told(self.primary, "SELECT pg_current_wal_lsn()")
        await _until(self.replica, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", wanted)

    async def cut(self) -> None:
        """From now on nothing reaches the standby."""
        await told(self.replica, "ALTER SYSTEM SET primary_conninfo = ''")
        self.replica.reload()
        await _until(self.replica, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    async def promote(self, how: str) -> None:
        """Make the standby the primary; the one before is killed, frozen, or goes on cut off."""
        if how == "kill":
            await asyncio.to_thread(self.primary.kill)
        elif how == "freeze":
            self.primary.freeze()
        await asyncio.to_thread(self.replica.promote)


@contextlib.asynccontextmanager
async def postgres_pair() -> AsyncIterator[PostgresPair]:
    """Start a pair; gone at the end of the block."""
    primary = PostgresServer()
    try:
        await asyncio.to_thread(primary.start)
        await migrate(address(primary.url, {}))
        replica = PostgresServer(copy_of=primary)
        try:
            await asyncio.to_thread(replica.start)
            yield PostgresPair(primary, replica)
        finally:
            await asyncio.to_thread(replica.close)
    finally:
        await asyncio.to_thread(primary.close)


async def told(server: PostgresServer, statement: str, *values: object) -> list[Any]:
    """Return what a server answers to one statement, empty where it returns no rows."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode(), values or None)
        return await cursor.fetchall() if cursor.description else []


async def _until(server: PostgresServer, question: str, *values: object) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while not (await told(server, question, *values))[0][0]:  # noqa: ASYNC110 - other processes bring it about
            await asyncio.sleep(0.02)
