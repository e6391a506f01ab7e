"""The statements of the SQLite store by name, as they stand in `sql/sqlite/`, and errors of the driver in our words."""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from importlib.resources import files

from tenure.errors import CorruptRecord, StoreUnavailable, StoreUnsafe, TenureError

_FOLDER = files("tenure.stores") / "sql" / "sqlite"


@lru_cache
def script(name: str) -> tuple[str, ...]:
    """Return the statements of a script, one by one: the driver would end our transaction to run it whole."""
    statements, pending = [], ""
    for line in (_FOLDER / name).read_text(encoding="utf-8").splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return tuple(statements)


@lru_cache
def statements(name: str) -> dict[str, str]:
    """Return the named statements of a file, without their heads (SQLite compiles what it is given)."""
    found: dict[str, str] = {}
    for block in (_FOLDER / name).read_text(encoding="utf-8").split("-- name: ")[1:]:
        title, _, text = block.partition("\n")
        found[title.strip()] = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip(" \n;")
    return found


def translated(error: Exception, path: str) -> Exception:
    """Return our error for the driver's; what is no error of the database is a fault of ours and stays."""
    if not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return error
    name = getattr(error, "sqlite_errorname", None) or ""
    found = _translated(name, path, error)
    found.__cause__ = error
    return found


def _translated(name: str, path: str, error: sqlite3.Error) -> TenureError:
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
        message = (
            f"{path} stayed locked by another connection ({name}); try again, and look for a program that keeps a "
            "transaction open on it"
        )
        return StoreUnavailable(message)
    if name.startswith("SQLITE_FULL"):
        message = f"no room to write {path} ({name}); nothing was written: free space on its disk and try again"
        return StoreUnavailable(message)
    if name.startswith("SQLITE_NOTADB"):
        message = f"{path} is not an SQLite database; nothing was changed: name another file or restore this one"
        return StoreUnsafe(message)
    if name.startswith("SQLITE_CORRUPT"):
        message = (
            f"{path} is damaged ({name}); nothing was changed: stop the workers, run `PRAGMA integrity_check` on a "
            "copy, and restore the file from a backup"
        )
        return CorruptRecord(message)
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        message = (
            f"{path} may not be written ({name}); give this user the right to write the file and its folder (SQLite "
            "keeps two more files beside it)"
        )
        return StoreUnsafe(message)
    if name.startswith("SQLITE_CANTOPEN"):
        message = (
            f"{path} cannot be opened ({name}); it must be a file in a folder that this user may write (SQLite keeps "
            "two more files beside it)"
        )
        return StoreUnsafe(message)
    if name.startswith("SQLITE_CONSTRAINT"):
        message = f"{path} holds rows that its records do not explain ({name}); see `tenure show --raw`"
        return CorruptRecord(message)
    message = f"{path} could not be read or written ({name or error}); look at its disk and try again"
    return StoreUnavailable(message)
