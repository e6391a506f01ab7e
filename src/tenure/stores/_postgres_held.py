"""Who keeps PostgreSQL from removing old versions of rows, which every look at a run would otherwise be spared."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from tenure.store import Finding, Grade
from tenure.stores._postgres_connect import Connection

HELD_S = 60
"""Seconds from which a transaction is told: till then a run leaves some pages of old versions at most."""
HELD_XIDS = 100_000
"""The same in transactions, for those of which the server does not tell the time."""

QUESTION = """
SELECT 'session', pid::text, usename::text, application_name, coalesce(state, ''),
    extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds,
    greatest(age(backend_xmin), age(backend_xid))::bigint AS xids
FROM pg_stat_activity
WHERE (datname = current_database() OR datname IS NULL) AND pid <> pg_backend_pid()
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND backend_type IS DISTINCT FROM 'autovacuum worker'
UNION ALL
SELECT 'prepared', gid, owner::text, '', '', extract(epoch FROM clock_timestamp() - prepared)::bigint,
    age(transaction)::bigint
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
SELECT 'slot', slot_name::text, '', '', '', NULL, age(xmin)::bigint FROM pg_replication_slots WHERE xmin IS NOT NULL
ORDER BY xids DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A session, a prepared transaction or a replication slot that still may look at old versions."""

    kind: str
    name: str
    role: str
    program: str
    state: str
    seconds: int | None
    xids: int

    @property
    def too_long(self) -> bool:
        """Return whether it has been there for so long that people should know."""
        return self.xids >= HELD_XIDS if self.seconds is None else self.seconds >= HELD_S

    @property
    def shown(self) -> str:
        """Return who it is and since when, for people."""
        since = f"{self.xids:,} transactions" if self.seconds is None else f"{self.seconds:,} s"
        match self.kind:
            case "prepared":
                return f"the prepared transaction {self.name!r} of role {self.role} has been open for {since}"
            case "slot":
                return f"the replication slot {self.name!r} has held back {since}"
        said = f" of {self.program!r}" if self.program else ""
        what = "idle in a transaction" if self.state.startswith("idle") else "in a transaction"
        return f"session {self.name}{said}, role {self.role or 'unknown'}, has been {what} for {since}"

    @property
    def fix(self) -> str:
        """Return what ends it."""
        match self.kind:
            case "prepared":
                name = self.name.replace("'", "''")
                return f"COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}', in this database"
            case "slot":
                return f"end its standby's long queries; has it none, SELECT pg_drop_replication_slot('{self.name}')"
        return f"SELECT pg_terminate_backend({self.name}), and set idle_in_transaction_session_timeout"


async def findings(connection: Connection, /) -> list[Finding]:
    """Return who has held back the removal of old rows for too long; nothing where it cannot be seen."""
    try:
        rows = await (await connection.execute(QUESTION)).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        return []
    fields = "kind", "name", "role", "program", "state", "seconds", "xids"
    holders = [Holder(**dict(zip(fields, row, strict=True))) for row in rows]
    long = [holder for holder in holders if holder.too_long]
    if not long:
        return []
    oldest = long[0]
    more = f"; so {'has' if len(long) == 2 else 'have'} {len(long) - 1} more" if len(long) > 1 else ""
    text = f"{oldest.shown}{more}: no old version of a row is removed until it ends, and each step reads all there are"
    return [Finding(name="old rows", level=Grade.WARNING, text=text, fix=oldest.fix)]
