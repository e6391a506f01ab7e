"""An opened PostgreSQL store: its connections, what was found out about the server, and the road of a change."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tenure.clock import Clock
from tenure.core.run import Answer, Change, Facts
from tenure.errors import OutcomeUnknown, StoreUnavailable, TenureError
from tenure.store import SLOW_BYTES_S, Durability, Finding
from tenure.stores import _postgres_check as check
from tenure.stores import _postgres_held as held
from tenure.stores._postgres_answer import answer_of, facts_of
from tenure.stores._postgres_bell import Listener, channel
from tenure.stores._postgres_connect import (
    Address,
    Connection,
    acknowledged,
    connect,
    died,
    told_why,
    translated,
    while_it_moves,
)
from tenure.stores._postgres_line import CLOSED, Line
from tenure.stores._postgres_migrate import Standing, migrate, refuse, standing
from tenure.stores._postgres_speech import Raw, Speech, size_of
from tenure.stores._postgres_sql import statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a store was opened with."""

    where: Address
    namespace: str
    durability: Durability | None = None
    allow: tuple[str, ...] = ()
    clock: Clock | None = None


class Session:
    """The connections of one opened store: a line for changes, a pool for reads, one that listens."""

    def __init__(self, wish: Wish, server: check.Server, found: Standing) -> None:
        where = self.where = wish.where
        self.server = server
        self.standing = found
        self.level = check.level_of(server, wish.durability, where, wish.allow)
        self._wish = wish
        self.namespace = wish.namespace
        self._sync = check.sync_of(self.level)
        self._safe = check.safe(self.level, server)
        self._native = self._boot = ""
        self.sql = statements("read.sql", where.schema)
        self._owned: set[asyncio.Task[Any]] = set()
        self._speech = Speech(
            change=f'SELECT "{where.schema}".change_1($1, $2)'.encode(),
            step=f'SELECT "{where.schema}".step_1($1, $2)'.encode(),
            renew=f'SELECT "{where.schema}".renew_1($1)'.encode(),
            known=self.known,
            beat_sync="off" if self._sync == "off" else "local",
        )
        self.line = Line(where, self._speech, opened=self._connection, look=self._look, busy=self._in_patience)
        self.pool = _pool(where)
        self.aside = _pool(where)  # for transactions of others, which may take their time
        self.listener = Listener(lambda: connect(where, direct=True), channel(where.schema, wish.namespace))

    @classmethod
    async def open(cls, wish: Wish, /) -> Self:
        """Connect, refuse an unsafe server or a schema that does not fit, and settle the level."""
        where = wish.where
        connection = await connect(where)
        try:
            async with asyncio.timeout(where.timeout):
                server = await check.server_of(connection, where)
            check.refuse_unsafe(server, where, wish.allow)
            if where.migrate:
                await migrate(where)
            async with asyncio.timeout(where.timeout):
                found = await standing(connection, where)
                refuse(found, where)
                self = cls(wish, server, found)
                await self._identify(connection)
                await self._ensure_space(connection)
        except BaseException as error:
            connection.pgconn.finish()
            if isinstance(error, psycopg.Error | TimeoutError):
                raise translated(error, where) from None
            raise
        self.line.use(connection)
        await self.pool.open()
        await self.aside.open()
        return self

    async def aclose(self) -> None:
        """Close every connection."""
        await self.listener.aclose()
        await self.line.aclose()
        for task in self._owned:
            task.cancel()
        if self._owned:
            await asyncio.wait(self._owned)
        await self.pool.close()
        await self.aside.close()

    def known(self) -> dict[str, Any]:
        """Return what the functions of the law have to be told."""
        clock = self._wish.clock
        return {
            "space": self._wish.namespace,
            "native": self._native,
            "boot": self._boot,
            "safe": self._safe,
            "sync": self._sync,
            **({} if clock is None else {"test_us": clock.now_ms() * 1000}),
        }

    async def _identify(self, connection: Connection) -> None:
        found = await (await connection.execute(check.IDENTITY)).fetchone()
        self._native, self._boot = (found[0], str(found[1])) if found else ("", "")

    async def _ensure_space(self, connection: Connection) -> None:
        await connection.execute(
            f'INSERT INTO "{self.where.schema}".space (name, salt) VALUES (%s, %s) ON CONFLICT DO NOTHING',  # noqa: S608
            [self._wish.namespace, secrets.token_hex(4)],
        )

    async def _connection(self) -> Connection:
        connection = await connect(self.where)
        try:
            async with asyncio.timeout(self.where.timeout):
                await self._identify(connection)
        except BaseException as error:
            connection.pgconn.finish()
            if isinstance(error, psycopg.Error | TimeoutError):
                raise translated(error, self.where) from None
            raise
        return connection

    async def _look(self, what: str) -> None:
        async def look(connection: Connection) -> None:
            await (self._identify(connection) if what == "boot" else self._ensure_space(connection))

        await self.on_pool(look)

    # -------------------------------------------------------------------------------------------- changes

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Return an answer to each change, in the order asked."""
        answers: list[Answer | TenureError] = []
        for answer in await self.line.ask(changes):
            if not isinstance(answer, Answer | TenureError):
                raise answer
            answers.append(answer)
        return answers

    async def _in_patience(self, change: Change) -> Answer:
        """Ask for one change whose row somebody else has locked, waiting for it aside of the line."""

        async def ask(connection: Connection) -> Answer:
            with acknowledged(connection, self.where):
                return await self.patiently(connection, change)

        answer: Answer = await self.on_pool(ask, change=True, size=size_of(change))
        return answer

    async def patiently(self, connection: Connection, change: Change, /) -> Answer:
        """Return the answer to one change on a connection, in whatever transaction, waiting for the run's row."""
        lock_ms = max(1, round(self.where.timeout * 800))
        while True:
            said = await self.asked(connection, change, patient=1, lock_ms=lock_ms)
            if not isinstance(said, str):
                return said
            if said.startswith("again"):
                await self._look(said[6:])

    async def asked(self, connection: Connection, change: Change, /, **more: Any) -> Answer | str:
        """Return the answer to one change on a connection: in whichever transaction it is in."""
        statement, _, (p, *bodies) = self._speech.call([change], whole=True)
        p = json.dumps({**json.loads(p), **more}).encode() if more else p
        cursor = await connection.execute(
            statement.replace(b"$1", b"%s::jsonb").replace(b"$2", b"%b::bytea[]"), [p.decode(), *map(Raw, bodies)]
        )
        found = await cursor.fetchone()
        said = str(found[0]).rstrip("\n") if found else ""
        if said == "busy" or said.startswith("again"):
            return said
        return answer_of(change, f"landed {said[4:]}" if said.startswith("all ") else said)

    # -------------------------------------------------------------------------------------------- reads

    async def read(self, name: str, /, **values: Any) -> list[Any]:
        """Return the rows of a statement; asked once more where a connection of the pool had died meanwhile."""
        clock = self._wish.clock
        given = {
            "space": self._wish.namespace,
            "test_us": None if clock is None else clock.now_ms() * 1000,
            **values,
        }

        async def ask(connection: Connection) -> list[Any]:
            cursor = await connection.execute(self.sql[name].encode(), given, binary=True)
            return await cursor.fetchall() if cursor.description else []

        rows: list[Any] = await self.on_pool(ask)
        return rows

    async def facts(self, ttl_ms: int = 0, /) -> Facts:
        """Return what the store knows now, after raising its longest ttl to this."""

        async def ask(connection: Connection) -> str:
            cursor = await connection.execute(
                f'SELECT "{self.where.schema}".know_1(%s::jsonb, %s)'.encode(),
                [json.dumps(self.known()), ttl_ms],
            )
            return str((await cursor.fetchone() or ("{}",))[0])

        for _ in range(3):
            found = json.loads(await self.on_pool(ask))
            if found["us"] is not None:
                return facts_of(found)
            await self._look("space" if found["space"] is None else "boot")
        message = f"{self.where.shown} changes as fast as it is looked at; try again"
        raise StoreUnavailable(message)

    async def diagnose(self) -> list[Finding]:
        """Return how the server is set now."""

        async def ask(connection: Connection) -> list[Finding]:
            server = await check.server_of(connection, self.where)
            found = check.findings(server, self.level, self.where, self.standing.shown)
            return found + await held.findings(connection)

        found: list[Finding] = await self.on_pool(ask)
        return found

    async def on_pool(self, work: Any, /, *, change: bool = False, size: int = 0) -> Any:
        """Do something with a connection of the pool, which has about `size` bytes to send."""
        return await self.owned(self._pooled(work, change=change, timeout_s=self.where.timeout + size / SLOW_BYTES_S))

    async def owned(self, work: Coroutine[Any, Any, Any], /) -> Any:
        """Return what comes of some work, done by a task of the store's own: who is cancelled only goes away."""
        task = asyncio.get_running_loop().create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        task.add_done_callback(_seen)
        await asyncio.wait([task])  # who waits is not cancelled with it, nor it with who waits
        if task.cancelled():
            raise OutcomeUnknown(CLOSED)
        return task.result()

    async def _pooled(self, work: Any, *, change: bool, timeout_s: float) -> Any:
        for left in (1, 0):
            try:
                async with asyncio.timeout(timeout_s) as patience, self.pool.connection() as connection:
                    with while_it_moves(connection, patience, timeout_s):
                        return await work(connection)
            except PoolTimeout:
                await told_why(self.where)
            except TimeoutError:
                message = f"{self.where.shown} did not answer in {timeout_s:.3g} s"
                raise translated(psycopg.OperationalError(message), self.where, change=change) from None
            except psycopg.OperationalError as error:
                if change or not left or not died(error):
                    raise translated(error, self.where, change=change) from None
                await self.pool.drain()
            except psycopg.Error as error:
                raise translated(error, self.where, change=change) from None
        return None


def _pool(where: Address) -> AsyncConnectionPool[Connection]:
    return AsyncConnectionPool(
        where.conninfo,
        connection_class=Connection,
        kwargs={"autocommit": True, "prepare_threshold": None},
        min_size=0,
        max_size=where.pool,
        timeout=where.timeout,
        open=False,
        name="tenure",
    )


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
