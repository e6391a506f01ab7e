"""Migrations of the PostgreSQL store: numbered, forward only, each in one transaction that also notes it down."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from tenure.errors import StoreTooNew, StoreUnsafe
from tenure.stores._postgres_connect import Address, Connection, connect, translated
from tenure.stores._postgres_sql import script


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step forward. `reads` is the first migration that a process must know to go on beside this one."""

    number: int
    name: str
    files: tuple[str, ...]
    reads: int

    @property
    def shown(self) -> str:
        """Return the migration for people."""
        return f"{self.number} ({self.name})"


MIGRATIONS = (
    Migration(number=1, name="tables", files=("tables.sql",), reads=1),
    Migration(
        number=2,
        name="law 1",
        files=(
            "law_1_shared.sql",
            "law_1_commit.sql",
            "law_1_claim.sql",
            "law_1_rest.sql",
            "law_1_change.sql",
            "law_1_step.sql",
        ),
        reads=2,
    ),
    Migration(number=3, name="statistics", files=("statistics.sql",), reads=2),
)
KNOWN = MIGRATIONS[-1].number
_PROLOGUE = """
CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE IF NOT EXISTS "{schema}".migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    reads integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Which migrations a database has: the last one, and the first that whoever uses it must know."""

    applied: int
    reads: int

    @property
    def missing(self) -> tuple[Migration, ...]:
        """Return what this version would still apply."""
        return tuple(step for step in MIGRATIONS if step.number > self.applied)

    @property
    def shown(self) -> str:
        """Return how far it is, for people."""
        return f"migration {self.applied} of {KNOWN}"


async def standing(connection: Connection, where: Address, /) -> Standing:
    """Return which migrations the schema has; none where there is no such schema."""
    try:
        found = await connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f'"{where.schema}".migration'])
        if not (await found.fetchone() or (False,))[0]:
            return Standing(applied=0, reads=0)
        rows = await connection.execute(
            f'SELECT coalesce(max(number), 0), coalesce(max(reads), 0) FROM "{where.schema}".migration'  # noqa: S608
        )
        applied, reads = await rows.fetchone() or (0, 0)
    except psycopg.Error as error:
        raise translated(error, where) from None
    return Standing(applied=applied, reads=reads)


def refuse(found: Standing, where: Address, /) -> None:
    """Raise StoreTooNew for a schema that a newer version made, StoreUnsafe for one that is not there or behind."""
    if found.reads > KNOWN:
        message = (
            f"the schema {where.schema!r} at {where.shown} has migration {found.applied} and this version knows "
            f"{KNOWN}; upgrade this process"
        )
        raise StoreTooNew(message)
    if found.missing:
        state = "is missing" if not found.applied else f"has {found.shown}"
        todo = "run `tenure --store URL store migrate --apply`"
        message = f"the schema {where.schema!r} at {where.shown} {state}; {todo}"
        raise StoreUnsafe(message)


async def missing(where: Address, /) -> tuple[Migration, ...]:
    """Return what this version would apply; StoreTooNew if a newer one made the schema."""
    connection = await connect(where)
    try:
        found = await standing(connection, where)
    finally:
        await connection.close()
    if found.reads > KNOWN:
        refuse(found, where)
    return found.missing


async def migrate(where: Address, /) -> list[Migration]:
    """Apply what is missing, and return it; one that was broken off has left nothing and is applied by the next call.

    Two processes that migrate at once do it one after the other.
    """
    connection = await connect(where)
    done: list[Migration] = []
    try:
        while True:
            found = await standing(connection, where)
            if found.reads > KNOWN:
                refuse(found, where)
            if not found.missing:
                return done
            if (step := await _apply(connection, where)) is not None:
                done.append(step)
    except psycopg.Error as error:
        raise translated(error, where) from None
    finally:
        await connection.close()


async def _apply(connection: Connection, where: Address) -> Migration | None:
    async with connection.transaction():
        # A lock of the transaction, not of the session: behind a pooler the next statement may be another session's.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"tenure migrate {where.schema}"])
        await connection.execute(_PROLOGUE.format(schema=where.schema).encode())
        now = await standing(connection, where)
        if not now.missing:
            return None
        step = now.missing[0]
        for name in step.files:
            await connection.execute(script(name, where.schema).encode())
        await connection.execute(
            f'INSERT INTO "{where.schema}".migration (number, name, reads) VALUES (%s, %s, %s)',  # noqa: S608
            [step.number, step.name, step.reads],
        )
        return step
