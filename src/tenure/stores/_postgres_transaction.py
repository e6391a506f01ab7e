"""A transaction of somebody else's statements and one change of ours: both land, or neither.

Nothing of ours is locked while the block is at work. The guarded write is the last statement before COMMIT. A COMMIT
whose answer was lost is never sent again: whoever asks once more is told by a locked read of the run's row whether it
has landed, for the row stays locked until the former one has ended, either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tenure.core.run import Answer, Commit, Verdict
from tenure.errors import NotAllowed, OutcomeUnknown, RolledBack, StoreUnavailable, TenureError
from tenure.store import SLOW_BYTES_S
from tenure.stores._postgres_connect import Connection, acknowledged, died, told_why, translated
from tenure.stores._postgres_session import Session
from tenure.stores._postgres_speech import size_of


class Transaction:
    """One transaction on a connection that it shares with the block."""

    def __init__(self, session: Session, connection: Connection) -> None:
        self.connection = connection
        self._session = session
        self._where = session.where
        self._tried = False

    async def commit(self, change: Commit, /) -> Answer:
        """Write the change and commit; asked again, say what became of it.

        RolledBack if nothing of the transaction is there, OutcomeUnknown while that cannot be said.
        """
        if self._tried:
            answer: Answer = await self._session.on_pool(lambda connection: self._found(connection, change))
            return answer
        self._check()
        self._tried = True
        written: Answer = await self._session.owned(self._write(change))
        return written

    def _check(self) -> None:
        status = self.connection.info.transaction_status
        if status is TransactionStatus.INERROR:
            message = "a statement of the block has failed, so nothing of it can be committed; let its error be raised"
            raise NotAllowed(message)
        if status is not TransactionStatus.INTRANS:
            message = "the block has ended its own transaction; leave BEGIN, COMMIT and ROLLBACK to it"
            raise NotAllowed(message)

    async def _write(self, change: Commit) -> Answer:
        try:
            async with asyncio.timeout(self._where.timeout + size_of(change) / SLOW_BYTES_S):
                answer = await self._session.patiently(self.connection, change)
        except (psycopg.Error, TimeoutError, OutcomeUnknown, StoreUnavailable) as error:
            # COMMIT was not sent, so what is not committed now never is.
            await self._abandon()
            message = f"the transaction at {self._where.shown} was rolled back ({type(error).__name__}); do it again"
            raise RolledBack(message, run_id=change.run) from error
        if answer.verdict is Verdict.HISTORY:
            self._tried = False  # the holder shows that it may go on, and asks again in this transaction
            return answer
        if answer.verdict is not Verdict.LANDED:
            await self.connection.execute("ROLLBACK")
            return answer
        try:
            with acknowledged(self.connection, self._where):
                async with asyncio.timeout(self._where.timeout):
                    await self.connection.execute("COMMIT")
        except (psycopg.Error, TimeoutError) as error:
            await self._abandon()
            message = f"the answer of {self._where.shown} to COMMIT was lost; whether it has landed is looked up"
            raise OutcomeUnknown(message, run_id=change.run) from error
        return answer

    async def _abandon(self) -> None:
        self.connection.pgconn.finish()

    async def _found(self, connection: Connection, change: Commit) -> Answer:
        # The lock is written too, so that this waits for the standbys as the COMMIT before it should have.
        with acknowledged(connection, self._where):
            row = await self._locked_row(connection, change)
        if row is None or row[0] != change.row.digest:
            message = f"the transaction at {self._where.shown} was rolled back whole; do it again"
            raise RolledBack(message, run_id=change.run)
        # The holder knows its run, and the lease that this commit has extended is extended by the next renewal.
        return Answer(verdict=Verdict.LANDED, now_us=row[1] * 1000)

    async def _locked_row(self, connection: Connection, change: Commit) -> Any:
        async with connection.transaction():
            await connection.execute(
                "SELECT set_config('lock_timeout', %s, true)", [str(round(self._where.timeout * 800))]
            )
            values: dict[str, Any] = {"space": self._session.namespace, "id": change.run}
            await connection.execute(self._session.sql["lock"].encode(), values)
            found = await connection.execute(
                self._session.sql["row_digest"].encode(), {**values, "seq": change.row.seq}
            )
            return await found.fetchone()


@asynccontextmanager
async def transaction(session: Session) -> AsyncIterator[Transaction]:
    """Begin a transaction for a block; what it has not committed at its end is rolled back."""
    connection = await _begun(session)
    try:
        yield Transaction(session, connection)
    finally:
        await asyncio.shield(session.owned(_given_back(session, connection)))


async def _begun(session: Session) -> Connection:
    again = True
    while True:
        connection = await _taken(session)
        try:
            async with asyncio.timeout(session.where.timeout):
                await connection.execute("BEGIN")
        except BaseException as error:
            # Also from who is cancelled: a connection that is not given back is missing in the pool for good.
            connection.pgconn.finish()
            await asyncio.shield(session.owned(_given_back(session, connection)))
            if not isinstance(error, psycopg.Error | TimeoutError):
                raise
            if not (again and isinstance(error, psycopg.OperationalError) and died(error)):
                raise translated(error, session.where) from None
            again = False
            await session.aside.drain()  # nothing was begun, and the others in the pool have died with this one
        else:
            return connection


async def _taken(session: Session) -> Connection:
    try:
        return await session.aside.getconn()
    except psycopg.OperationalError:
        await told_why(session.where)
        raise


async def _given_back(session: Session, connection: Connection) -> None:
    try:
        if connection.info.transaction_status is not TransactionStatus.IDLE and not connection.closed:
            async with asyncio.timeout(session.where.timeout):
                await connection.execute("ROLLBACK")
    except (psycopg.Error, TimeoutError, TenureError):
        connection.pgconn.finish()
    finally:
        await session.aside.putconn(connection)
