"""What the SQLite store says about itself to people."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tenure.store import Durability, Finding, Grade
from tenure.stores import _sqlite_host
from tenure.stores._sqlite_open import SCHEMA, Place

LONG_LOG_BYTES = 256 * 1024 * 1024


def findings(connection: sqlite3.Connection, place: Place) -> list[Finding]:
    """Return how the file is set, and what about it deserves attention."""
    kind = place.host.file_system(place.path) if place.host is not None else ""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    server = f"SQLite {sqlite3.sqlite_version}, schema {SCHEMA}, {place.path} on {kind or 'an unknown file system'}"
    found = [
        Finding(name="server", level=Grade.OK, text=server),
        _journal_mode(mode),
    ]
    if _sqlite_host.is_network(kind):
        text = f"a network file system ({kind}), allowed by name: safe only while one machine alone uses the file"
        found.append(_warning("file-system", text, "use a local disk, or a server"))
    if _sqlite_host.is_volatile(kind):
        text = f"the file is in memory ({kind}) and gone after a restart of the machine"
        found.append(_warning("file-system", text, "use a path on a disk"))
    if place.level is Durability.LOCAL and place.durability is Durability.LOCAL:
        found.append(_warning("synchronous", "NORMAL: a power loss can undo what was acknowledged", "durability=disk"))
    if not place.boot:
        text = "this system has no boot id: after a restart of the machine leases end by time only"
        found.append(_warning("boot", text, "nothing to do; leases end within their ttl"))
    log_bytes = _size(Path(place.path + "-wal"))
    if log_bytes > LONG_LOG_BYTES:
        text = f"the log beside the file has {log_bytes // 2**20} MiB: a program keeps a read open on it"
        found.append(_warning("log", text, "end the program that reads for so long"))
    return found


def _journal_mode(mode: str) -> Finding:
    if mode == "wal":
        return Finding(
            name="journal-mode", level=Grade.OK, text="WAL: readers and the writer do not wait for each other"
        )
    text = f"{mode}: another program has changed it"
    return Finding(name="journal-mode", level=Grade.PROBLEM, text=text, fix="PRAGMA journal_mode = WAL")


def _warning(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, level=Grade.WARNING, text=text, fix=fix)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
