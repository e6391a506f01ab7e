"""How PostgreSQL is reached: the URL, a connection, and what its errors mean here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.errors import (
    CorruptRecord,
    InvalidContent,
    InvalidUrl,
    OutcomeUnknown,
    StoreUnavailable,
    StoreUnsafe,
    TenureError,
)
from tenure.stores import refuse_options

OPTIONS = ("schema", "timeout", "pool", "direct", "migrate", "testing")
_LIBPQ = (
    *("host", "hostaddr", "port", "dbname", "user", "passfile", "service", "options", "application_name"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "gssencmode", "require_auth"),
    *("target_session_attrs", "load_balance_hosts", "keepalives_idle", "keepalives_interval", "tcp_user_timeout"),
)
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?\Z")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class Connection(AsyncConnection[Any]):
    """A connection that says, if somebody wants to know, that something of what is waited for comes or goes."""

    moved: Callable[[], None] | None = None

    async def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Drive the steps of the driver as it does, and look at each."""
        return await super().wait(self._looked_at(gen), *args, **kwargs)

    def _looked_at(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready and self.moved is not None:
                    self.moved()
                wanted = gen.send(ready)
        except StopIteration as over:
            return over.value


@contextmanager
def while_it_moves(connection: Connection, patience: asyncio.Timeout, timeout_s: float, /) -> Iterator[None]:
    """Put a time-out off whenever something comes or goes: a large answer takes its time on a slow road."""

    def moved() -> None:
        if not patience.expired():
            patience.reschedule(asyncio.get_running_loop().time() + timeout_s)

    connection.moved = moved
    try:
        yield
    finally:
        connection.moved = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a database is and how it is spoken to; `shown` carries no password, `conninfo` does.

    `direct` reaches the server itself where `conninfo` reaches a pooler; empty where there is no other way.
    """

    shown: str
    conninfo: str = field(repr=False)
    direct: str = field(default="", repr=False)
    schema: str = "tenure"
    timeout: float = 5.0
    pool: int = 4
    migrate: bool = False
    testing: bool = False


def address(url: str, options: dict[str, str], /) -> Address:
    """Return the address of a URL; InvalidUrl says what to change and never repeats a password."""
    parts = urlsplit(url)
    refuse_options(options, parts.scheme, (*OPTIONS, *_LIBPQ))
    schema = options.get("schema", "tenure")
    if not _SCHEMA.match(schema) or schema.startswith("pg_"):
        message = "schema is the name of a schema of PostgreSQL: [a-z_][a-z0-9_]*, not beginning with pg_"
        raise InvalidUrl(message)
    try:
        timeout, pool = float(options.get("timeout", "5")), int(options.get("pool", "4"))
    except ValueError:
        timeout = pool = 0
    if timeout <= 0 or not 1 <= pool <= 100:
        message = "timeout is a number of seconds above 0, pool a number of connections from 1 to 100; correct the URL"
        raise InvalidUrl(message)
    for name in ("migrate", "testing"):
        if options.get(name, "off") not in ("on", "off"):
            message = f"{name} is 'on' or 'off'; correct the URL"
            raise InvalidUrl(message)
    given = {name: options[name] for name in _LIBPQ if name in options}
    host = parts.netloc.rpartition("@")[2]
    if not all(_HOST.match(one) for one in host.split(",")):
        message = f"a port is a number, unlike in {host}; correct the URL"
        raise InvalidUrl(message)
    where: tuple[str, ...] = ("host", "port", *(["schema"] if schema != "tenure" else []))
    shown = {name: options[name] for name in where if name in options}
    return Address(
        shown=f"{parts.scheme}://{host}{parts.path}" + (f"?{urlencode(shown, safe='/,')}" if shown else ""),
        conninfo=_conninfo(url, given),
        direct=_conninfo(options["direct"], given) if options.get("direct") else "",
        schema=schema,
        timeout=timeout,
        pool=pool,
        migrate=options.get("migrate") == "on",
        testing=options.get("testing") == "on",
    )


def _conninfo(url: str, given: dict[str, str]) -> str:
    parts = urlsplit(url)
    if parts.netloc.count("@") > 1 or "@" in parts.path:
        # What follows the first @ or / would be looked up, and shown, as a host or a database.
        message = "a name or password in the URL holds an @ or / as it is; write %40 and %2F for them"
        raise InvalidUrl(message)
    try:
        found = conninfo_to_dict(f"{url}?{urlencode(given, quote_via=quote)}" if given else url)
        named = {"application_name": "tenure", **{name: str(value) for name, value in found.items()}}
        return make_conninfo(**{**named, "client_encoding": "UTF8"})  # whatever PGCLIENTENCODING says
    except psycopg.Error:
        message = (
            "the URL is none that PostgreSQL's own library reads: postgresql://user:password@host:port/database; "
            "percent-encode what is special in names and passwords"
        )
        raise InvalidUrl(message) from None


async def connect(where: Address, /, *, direct: bool = False) -> Connection:
    """Return a new connection outside any transaction; an error of ours if there is none to be had.

    Nothing of it is kept in the session, so that a pooler may give each statement to another one.
    """
    conninfo = where.direct if direct and where.direct else where.conninfo
    try:
        async with asyncio.timeout(where.timeout):
            return await Connection.connect(conninfo, autocommit=True, prepare_threshold=None)
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise unreached(error, where) from None


def died(error: psycopg.OperationalError, /) -> bool:
    """Return whether an error says that the connection is gone."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


async def told_why(where: Address) -> None:
    """Raise the reason for which the pool has no connection, as one made by hand tells it."""
    await (await connect(where)).close()
    message = f"all {where.pool} connections to {where.shown} are busy; raise ?pool=, or ask for less at once"
    raise StoreUnavailable(message)


@contextmanager
def acknowledged(connection: Connection, where: Address, /) -> Iterator[None]:
    """Raise OutcomeUnknown if a commit of the block stopped waiting for its standbys: the server only warns of it."""
    warned: list[psycopg.errors.Diagnostic] = []

    def noticed(said: psycopg.errors.Diagnostic) -> None:
        if said.severity_nonlocalized == "WARNING":
            warned.append(said)

    connection.add_notice_handler(noticed)
    try:
        yield
    finally:
        connection.remove_notice_handler(noticed)
    if warned:
        raise unacknowledged(where)


def unacknowledged(where: Address, /) -> OutcomeUnknown:
    """Return the error for a change that is not yet where its level says."""
    message = f"{where.shown} took the change, but its standbys did not acknowledge it; send the same request again"
    return OutcomeUnknown(message)


_REFUSED = ("password", "authentication", "pg_hba.conf", "role ", "permission denied", "certificate", "SSL")
_MISSING = re.compile(r"database .* does not exist|no such database")


def unreached(error: BaseException, where: Address, /) -> TenureError:
    """Return what a connection that could not be made means; the library tells the reason as text only."""
    said = _first_line(error)
    if _MISSING.search(said):
        message = f"{where.shown} has no such database ({said}); create it, or correct the URL"
        return StoreUnsafe(message)
    if any(word in said for word in _REFUSED):
        message = f"{where.shown} refused the name or password ({said}); correct them in the URL, or pg_hba.conf"
        return StoreUnsafe(message)
    if "read-only" in said or "hot standby" in said:
        message = f"{where.shown} is a standby and takes no writes; point the URL at the primary"
        return StoreUnsafe(message)
    if "too many" in said or "connection slots" in said:
        message = (
            f"{where.shown} has no connection left ({said}); raise max_connections, put a pooler before it, or run "
            "fewer workers"
        )
        return StoreUnavailable(message)
    message = f"{where.shown} cannot be reached ({said}); look whether the server runs there, or correct the URL"
    return StoreUnavailable(message)


def translated(
    error: BaseException, where: Address, /, *, change: bool = False, run_id: str | None = None
) -> TenureError:
    """Return what a driver's error means here, and what to do about it; payloads and passwords stay out of it."""
    if isinstance(error, TenureError):
        return error
    state = getattr(error, "sqlstate", None) or ""
    if not state or state.startswith(("08", "57P")):
        if change:
            message = (
                f"the connection to {where.shown} broke before the answer came ({_first_line(error)}); send the same "
                "request again"
            )
            return OutcomeUnknown(message, run_id=run_id)
        message = f"{where.shown} does not answer ({_first_line(error)}); try again, and look whether the server runs"
        return StoreUnavailable(message, run_id=run_id)
    return said_by_server(state, _first_line(error), where, run_id=run_id)


def said_by_server(state: str, said: str, where: Address, /, *, run_id: str | None = None) -> TenureError:
    """Return what an SQLSTATE means: whatever has one was rolled back whole."""
    at = where.shown
    if state.startswith("28") or state == "42501":
        message = f"the role at {at} lacks a right ({said}); docs/postgres.md lists what a role needs"
        return StoreUnsafe(message, run_id=run_id)
    if state in ("3F000", "42P01", "42883", "42704", "42703"):
        message = (
            f"the schema {where.schema!r} at {at} is missing or behind ({said}); run `tenure --store URL store migrate "
            "--apply` with this store's URL"
        )
        return StoreUnsafe(message, run_id=run_id)
    if state in ("25006", "55000"):
        message = f"{at} is a standby or read-only and takes no writes ({said}); point the URL at the primary"
        return StoreUnsafe(message, run_id=run_id)
    if state == "53100":
        message = f"the disk of {at} is full; nothing was written: free space and try again"
        return StoreUnavailable(message, run_id=run_id)
    if state == "55P03":
        message = f"another transaction at {at} holds a row of this run; try again, and look for one that stays open"
        return StoreUnavailable(message, run_id=run_id)
    if state in ("22P05", "22021", "22P02"):
        return InvalidContent(f"PostgreSQL cannot store a name of this change ({state}); leave U+0000 out of names")
    if state.startswith(("XX0", "23")):
        message = f"{at} holds rows that its records do not explain ({said}); see `tenure show --raw`"
        return CorruptRecord(message, run_id=run_id)
    message = f"{at} cannot serve this now ({said}, {state}); nothing was written: try again"
    return StoreUnavailable(message, run_id=run_id)


def _first_line(error: BaseException) -> str:
    # What the library says of a connection names the host in front; parameters are never part of an error's first line.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    fatal = next((line for line in lines if "FATAL" in line or "ERROR" in line), None)
    return (fatal or (lines or [type(error).__name__])[0])[-200:]
