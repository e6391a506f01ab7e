"""Opening the file of the SQLite store: checks, pragmas, schema, and the binding of store time to this boot."""

from __future__ import annotations

import logging
import os
import random
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tenure.clock import Clock
from tenure.core.run import Facts
from tenure.errors import InvalidUrl, StoreNotFound, StoreTooNew, StoreUnavailable, StoreUnsafe
from tenure.store import Durability
from tenure.stores import _sqlite_fork, _sqlite_host, refuse_options
from tenure.stores._sqlite_host import Host
from tenure.stores._sqlite_sql import script, statements, translated

_LOG = logging.getLogger("tenure.stores.sqlite")

APPLICATION_ID = 0x74_6E_75_72  # "tnur": whose file this is
SCHEMA = 1
BUSY_MS = 5_000
OLDEST_SQLITE = (3, 37, 0)  # strict tables
CEILING_US = 1_000_000
"""How far the stored ceiling runs ahead of store time: one write a second keeps it, not one a transaction."""

FILE = statements("file.sql")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The file, and how it is to be opened; `host` is None until the store is opened."""

    path: str
    namespace: str
    durability: Durability | None
    allow: tuple[str, ...]
    busy_ms: int
    clock: Clock
    host: Host | None
    creates: bool = True
    """Whether a file that is not there is made."""

    @property
    def boot(self) -> str:
        """Return the id of this boot."""
        return self.host.boot if self.host is not None else ""

    @property
    def level(self) -> Durability:
        """Return the level that is reached here: what is named, else the strongest that the file system offers."""
        if self.durability is not None:
            return self.durability
        volatile = self.host is not None and _sqlite_host.is_volatile(self.host.file_system(self.path))
        return Durability.LOCAL if volatile else Durability.DISK


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The facts of a deciding step, the namespace's number, and the ceiling they came with."""

    facts: Facts
    space: int
    ceiling_us: int


def settings(options: dict[str, str]) -> tuple[int, bool]:
    """Return what the URL says: how long a write waits, in ms, and whether a missing file is made; InvalidUrl."""
    refuse_options(options, "sqlite", ("busy_timeout_ms", "create"))
    busy = options.get("busy_timeout_ms", str(BUSY_MS))
    if not busy.isdecimal() or not 0 < int(busy) <= 600_000:
        message = "busy_timeout_ms is a number of milliseconds from 1 to 600000"
        raise InvalidUrl(message)
    if options.get("create", "on") not in ("on", "off"):
        message = "create is on, or off for a file that has to be there"
        raise InvalidUrl(message)
    return int(busy), options.get("create") != "off"


def open_writer(place: Place) -> sqlite3.Connection:
    """Return the writing connection, with everything checked, created and bound."""
    _check_place(place)
    level = "NORMAL" if place.level is Durability.LOCAL else "FULL"
    pragmas = (f"synchronous = {level}", "fullfsync = 1", "checkpoint_fullfsync = 1", "journal_size_limit = 67108864")
    # Waiting is ours: the driver's own wait sleeps up to 100 ms between two looks and would starve beside a busy
    # writer, which leaves the file free for a moment only.
    return _connected(place, ("busy_timeout = 2", *pragmas), lambda found: _prepare(found, place))


def open_reader(place: Place) -> sqlite3.Connection:
    """Return a reading connection; writers do not block it."""
    return _connected(place, (f"busy_timeout = {place.busy_ms}", "query_only = 1"), lambda _: None)


def _connected(
    place: Place, pragmas: Sequence[str], prepare: Callable[[sqlite3.Connection], None]
) -> sqlite3.Connection:
    def connect() -> sqlite3.Connection:
        connection = _sqlite_fork.connect(place.path)
        try:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    try:
        # Settings too: the first to open a new file turns it to WAL, and keeps it locked meanwhile whatever one asks.
        return patiently(place, connect)
    except sqlite3.Error as error:
        raise translated(error, place.path) from None


def patiently(place: Place, attempt: Callable[[], T], before_wait: Callable[[], None] = lambda: None) -> T:
    """Return what an attempt returns, tried again while another connection keeps the file locked."""
    until = time.monotonic() + place.busy_ms / 1000
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            name = getattr(error, "sqlite_errorname", None) or ""
            if not name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or time.monotonic() >= until:
                raise
            before_wait()
            time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311 - so that two who wait do not meet again


def _check_place(place: Place) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        message = f"SQLite {sqlite3.sqlite_version} is too old; use a Python that brings 3.37 or later"
        raise StoreUnsafe(message)
    kind = place.host.file_system(place.path) if place.host is not None else ""
    if _sqlite_host.is_network(kind) and "network-fs" not in place.allow:
        message = (
            f"{place.path} is on a network file system ({kind}), where SQLite can lose what it acknowledged; use a "
            'local disk or a server, or open the store with allow=("network-fs",) if one machine alone uses the file'
        )
        raise StoreUnsafe(message)
    if _sqlite_host.is_volatile(kind) and place.durability is Durability.DISK:
        message = (
            f"{place.path} is in memory ({kind}), so durability disk cannot be reached; use a disk, or durability=local"
        )
        raise StoreUnsafe(message)
    path = Path(place.path)
    if not place.creates and not path.exists():
        message = f"no store is at {place.path}; correct the path, or let a worker or the first submitted run make it"
        raise StoreNotFound(message)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _LOG.info("the folder %s was not there, and was made for %s", path.parent, path.name)
    except OSError as error:
        message = f"the folder {path.parent} cannot be made ({error.strerror}); make it, or name a file elsewhere"
        raise StoreUnsafe(message) from None
    if path.is_dir():
        message = f"{place.path} is a folder; name a file in it"
        raise StoreUnsafe(message)
    if _size(path) == 0 and _size(path.with_name(path.name + "-wal")) > 0:
        # SQLite would delete the log and begin anew.
        message = (
            f"{place.path} is empty but its log is not: it was cut off; restore both from a backup, or move both away"
        )
        raise StoreUnsafe(message)
    if not path.exists():
        _make_private(path)


def _make_private(path: Path) -> None:
    """Make an empty file for its user only: it holds all that runs were given, and its log gets the mode of the file.

    It gets its name when nobody has it open. Closing a file drops all locks that the process has on it, those of SQLite
    too, so one that may be a database is never opened here. Where it cannot be made, SQLite says why.
    """
    with suppress(OSError):
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            os.link(beside, path)
        finally:
            Path(beside).unlink()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _prepare(connection: sqlite3.Connection, place: Place) -> None:
    _check_owner(connection, place)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        message = f"{place.path} cannot be put into WAL mode (it stays {mode}); use another file system or a server"
        raise StoreUnsafe(message)
    connection.execute("BEGIN IMMEDIATE")
    try:
        _migrate(connection, place)
        connection.execute(FILE["insert_space"], (place.namespace,))
        _bind(connection, place)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_owner(connection: sqlite3.Connection, place: Place) -> None:
    # One look at one state: another process may be making the tables just now.
    connection.execute("BEGIN")
    try:
        owner = _pragma(connection, "application_id")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        schema = _pragma(connection, "user_version")
    finally:
        connection.execute("COMMIT")
    if owner != APPLICATION_ID and (owner != 0 or tables or schema):
        message = f"{place.path} is the database of another program; nothing was changed: name another file"
        raise StoreUnsafe(message)
    _check_schema(schema, place)


def _check_schema(found: int, place: Place) -> None:
    if found > SCHEMA:
        message = f"{place.path} has schema {found} and this version reads up to {SCHEMA}; upgrade this worker"
        raise StoreTooNew(message)


def _migrate(connection: sqlite3.Connection, place: Place) -> None:
    # Read again under the write lock: another process may have been first.
    found = _pragma(connection, "user_version")
    _check_schema(found, place)
    for version in range(found + 1, SCHEMA + 1):
        for statement in script(f"schema_{version}.sql"):
            connection.execute(statement)
    if found < SCHEMA:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _bind(connection: sqlite3.Connection, place: Place) -> None:
    """Bind store time to this boot, once a boot, and never so that it goes back."""
    boot_us, wall_us = place.clock.boot_ns() // 1000, place.clock.now_ms() * 1000
    kept = connection.execute(FILE["file_facts"]).fetchone()
    if kept is None:
        offset_us = wall_us - boot_us
        first = (SCHEMA, secrets.token_hex(8), place.boot, offset_us, 0, wall_us // 1000)
        connection.execute(FILE["insert_file"], first)
        return
    _, _, boot, offset_us, ceiling_us, _ = kept
    # A clock behind what was given out is another clock than the one the offset was bound for.
    if boot == place.boot != "" and boot_us + offset_us >= ceiling_us - CEILING_US:
        return
    now_us = max(wall_us, ceiling_us)
    connection.execute(FILE["bind_boot"], (place.boot, now_us - boot_us, now_us // 1000))


def known(connection: sqlite3.Connection, place: Place) -> Known:
    """Return what the store knows now; StoreUnsafe if the file was bound to another boot since it was opened."""
    found = connection.execute(FILE["facts"], (place.namespace,)).fetchone()
    if found is None:
        message = f"{place.path} has lost the namespace {place.namespace!r}; open the store again"
        raise StoreUnavailable(message)
    schema, salt, boot, offset_us, ceiling_us, since_ms, number, floor, max_ttl_ms = found
    _check_schema(schema, place)
    if boot != place.boot:
        message = (
            f"{place.path} was opened under another boot id since this process opened it: another machine or sandbox "
            "shares the file; give each its own file, or use a server"
        )
        raise StoreUnsafe(message)
    now_us = max(place.clock.boot_ns() // 1000 + offset_us, ceiling_us - CEILING_US)
    facts = Facts(
        now_us=now_us,
        epoch=epoch(boot, salt),
        since_ms=since_ms,
        max_ttl_ms=max_ttl_ms,
        floor=floor,
        boot=f"{boot}." if boot else "",
    )
    return Known(facts=facts, space=number, ceiling_us=ceiling_us)


def epoch(boot: str, salt: str) -> str:
    """Return the id of the file's history: it changes with the boot of the machine, and with the salt."""
    return f"{boot}.{salt}"


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
