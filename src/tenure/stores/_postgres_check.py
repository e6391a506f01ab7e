"""What is looked at before a database is used: it stops at whatever would lose or tear what it acknowledges."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import psycopg

from tenure.core.text import count
from tenure.errors import StoreUnsafe
from tenure.store import Durability, Finding, Grade
from tenure.stores._postgres_connect import Address, Connection, translated, unreached

_LOG = logging.getLogger("tenure.stores.postgres")

QUESTION = """
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery(), current_setting('fsync') = 'on',
    current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'),
    (SELECT count(*)::integer FROM pg_stat_replication),
    (SELECT count(*)::integer FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
    pg_backend_pid(), current_setting('default_transaction_read_only') = 'on', current_setting('server_encoding')
"""
IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
    (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint
"""
STRENGTHS = ("off", "local", "remote_write", "on", "remote_apply")
"""What a commit may wait for, the weakest first."""
NEEDS = {
    Durability.MEMORY: "off",
    Durability.LOCAL: "local",
    Durability.DISK: "local",
    Durability.REPLICATED: "remote_write",
    Durability.REPLICATED_DISK: "on",
}
"""What a commit waits for at each level; `on` waits for standbys only where synchronous_standby_names has some."""
_NAMES = re.compile(r"\s*(?:(?:(?:FIRST|ANY)\s+)?(?P<number>\d+)\s*\((?P<listed>.*)\)|(?P<bare>.+))\s*", re.IGNORECASE)
"""synchronous_standby_names: `FIRST n (a, b)`, `ANY n (a, b)`, `n (a, b)`, or `a, b`, which is FIRST 1."""
_REPLICATED = (Durability.REPLICATED, Durability.REPLICATED_DISK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server says of itself."""

    version: int
    standby: bool
    fsync: bool
    full_pages: bool
    commit: str
    names: str
    standbys: int
    synchronous: int
    backend_pid: int
    read_only: bool
    encoding: str = "UTF8"
    pooled: bool = False

    @property
    def names_standbys(self) -> bool:
        """Return whether commits wait for a standby, if there is one."""
        return self.names != ""

    @property
    def every_standby(self) -> bool:
        """Return whether each standby that could be promoted has to have a commit before it is acknowledged."""
        found = _NAMES.fullmatch(self.names)
        if found is None:
            return False
        listed = {name.strip().strip('"').lower() for name in (found["listed"] or found["bare"]).split(",")}
        # Behind a * stands whoever is attached, and who was yesterday may be promoted tomorrow.
        return "*" not in listed and int(found["number"] or 1) >= max(len(listed), self.standbys)

    @property
    def shown(self) -> str:
        """Return the version as people write it."""
        return f"{self.version // 10000}.{self.version % 10000}"


async def server_of(connection: Connection, where: Address, /) -> Server:
    """Ask a server what it is and how it is set."""
    try:
        found = await (await connection.execute(QUESTION)).fetchone()
    except psycopg.Error as error:
        raise translated(error, where) from None
    if found is None:
        raise unreached(psycopg.OperationalError("no answer"), where)
    version, standby, fsync, pages, commit, names, standbys, synchronous, pid, read_only, encoding = found
    return Server(
        version=version,
        standby=standby,
        fsync=fsync,
        full_pages=pages,
        commit=commit,
        names=names,
        standbys=standbys,
        synchronous=synchronous,
        backend_pid=pid,
        read_only=read_only,
        encoding=encoding,
        pooled=pid != connection.pgconn.backend_pid,
    )


def refuse_unsafe(server: Server, where: Address, allow: tuple[str, ...], /) -> None:
    """Raise StoreUnsafe for an old version, another encoding, a standby, and a server that acknowledges too early."""
    at = where.shown
    if server.version < 140000:
        message = f"{at} is PostgreSQL {server.shown}; upgrade to 14 or later"
        raise StoreUnsafe(message)
    if server.encoding != "UTF8":
        message = f"{at} keeps texts as {server.encoding}, which not all fit into; CREATE DATABASE ... ENCODING 'UTF8'"
        raise StoreUnsafe(message)
    if server.standby:
        message = f"{at} is a standby: what it shows is late and it takes no writes; point the URL at the primary"
        raise StoreUnsafe(message)
    if server.read_only:
        message = f"{at} is read-only (default_transaction_read_only); set it off for this role and database"
        raise StoreUnsafe(message)
    if server.commit == "off" and "async-commit" not in allow:
        message = (
            f"{at} acknowledges before it has written (synchronous_commit off); ALTER SYSTEM SET synchronous_commit = "
            "on and SELECT pg_reload_conf(), or allow 'async-commit'"
        )
        raise StoreUnsafe(message)


def level_of(server: Server, wanted: Durability | None, where: Address, allow: tuple[str, ...], /) -> Durability:
    """Return the level that acknowledgements have; StoreUnsafe if it was named and is not reached."""
    if wanted is None:
        return _offered(server, where)
    need = f"{where.shown} does not reach durability {wanted.value}: "
    if wanted is not Durability.MEMORY and STRENGTHS.index(server.commit) < STRENGTHS.index(NEEDS[wanted]):
        weak = f"synchronous_commit is {server.commit}"
        raise StoreUnsafe(f"{need}{weak}; ALTER SYSTEM SET synchronous_commit = on and SELECT pg_reload_conf()")
    if wanted in (Durability.DISK, Durability.REPLICATED_DISK) and not (server.fsync and server.full_pages):
        raise StoreUnsafe(f"{need}fsync or full_page_writes is off; set both on and restart the server")
    if wanted in _REPLICATED:
        if not server.names_standbys:
            raise StoreUnsafe(
                f"{need}no standby is waited for; ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)' and SELECT "
                "pg_reload_conf()"
            )
        if server.synchronous == 0 and not (server.standbys and "unchecked" in allow):
            raise StoreUnsafe(
                f"{need}{server.standbys} standbys are attached and none of them is synchronous; start one that "
                "synchronous_standby_names names (or GRANT pg_read_all_stats, or allow 'unchecked', if one is unseen)"
            )
    return wanted


def _offered(server: Server, where: Address) -> Durability:
    if server.commit == "off":
        level = Durability.MEMORY
    elif server.names_standbys and server.commit != "local" and server.fsync and server.full_pages:
        level = Durability.REPLICATED if server.commit == "remote_write" else Durability.REPLICATED_DISK
    elif server.fsync and server.full_pages:
        level = Durability.DISK
    else:
        level = Durability.LOCAL
        _LOG.warning(
            "%s does not flush to its disk, so a power loss can undo what was acknowledged (durability local); set "
            "fsync and full_page_writes on and restart the server",
            where.shown,
            extra={"setting": True},
        )
    if level is Durability.MEMORY:
        text = "%s: synchronous_commit is off, so a crash undoes what was acknowledged"
        _LOG.warning(text, where.shown, extra={"setting": True})
    _LOG.info("%s: durability %s", where.shown, level.value)
    return level


def safe(level: Durability, server: Server, /) -> str:
    """Return why no acknowledged grant can be missing after a history change: disk, replicated, or empty."""
    if level is Durability.DISK:
        return "disk"
    return "replicated" if level in _REPLICATED and server.every_standby else ""


def sync_of(level: Durability, /) -> str:
    """Return what a commit waits for at a level; `local` where no standby is counted, which is the same."""
    return NEEDS[level] if level in _REPLICATED or level is Durability.MEMORY else "local"


def findings(server: Server, level: Durability, where: Address, migrations: str, /) -> list[Finding]:
    """Return how the server is set, for people."""
    ok = Grade.OK
    found = [
        Finding(name="server", level=ok, text=f"PostgreSQL {server.shown}, schema {where.schema!r} ({migrations})"),
        Finding(
            name="durability",
            level=Grade.WARNING if level in (Durability.MEMORY, Durability.LOCAL) else ok,
            text=f"{level.value}: a commit waits for {_waits(level)}",
            fix="set fsync, full_page_writes and synchronous_commit on" if level is Durability.LOCAL else "",
        ),
        Finding(
            name="synchronous_commit",
            level=Grade.PROBLEM if server.commit == "off" else ok,
            text=f"{server.commit}, fsync {_on(server.fsync)}, full_page_writes {_on(server.full_pages)}",
            fix="ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()" if server.commit == "off" else "",
        ),
    ]
    if level in _REPLICATED:
        found.append(_of_standbys(server))
    if server.pooled:
        found.append(
            Finding(
                name="pooler",
                level=ok if where.direct else Grade.WARNING,
                text="reached through a pooler"
                + ("; wake-ups come by `direct`" if where.direct else ": nobody is woken, everybody looks by itself"),
                fix="" if where.direct else "name the server itself in the URL: ?direct=postgresql://..",
            )
        )
    return found


def _of_standbys(server: Server) -> Finding:
    text = f"{server.synchronous} of {count(server.standbys, 'attached standby')} synchronous"
    if not server.synchronous:
        fix = "start a standby that synchronous_standby_names names"
        return Finding(name="standbys", level=Grade.PROBLEM, text=text, fix=fix)
    if not server.every_standby:
        text += f"; not each has all ({server.names}), so after a promotion runs wait for the longest ttl"
    return Finding(name="standbys", level=Grade.OK, text=text)


def _on(value: bool) -> str:  # noqa: FBT001 - a value, no choice
    return "on" if value else "off"


_WAITS = {"off": "nothing", "local": "its own disk", "remote_write": "its standbys", "on": "its standbys' disks"}


def _waits(level: Durability) -> str:
    return _WAITS[NEEDS[level]]
