"""Which SQLite files this process has open, and which it must never open because the process it was forked from had.

A lock of a file belongs to a process, and a fork leaves it behind. SQLite counts the locks that it has taken, and in
the child it counts on those of the parent: it takes none of its own for a file that was open. Who closes the file last,
by the locks that there are, deletes the log, and with it what the child was told has landed.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TypeAlias

from tenure.errors import NotAllowed

_File: TypeAlias = tuple[int, int]

_OPEN: dict[int, _File] = {}
_INHERITED: set[_File] = set()


class Connection(sqlite3.Connection):
    """A connection that counts as open until it is closed."""

    def close(self) -> None:
        """Close."""
        super().close()
        _OPEN.pop(id(self), None)


def connect(path: str, /) -> sqlite3.Connection:
    """Return a connection without implicit transactions; NotAllowed for a file that was open before a fork."""
    try:
        inherited = bool(_INHERITED) and _file(path) in _INHERITED
    except OSError:  # there is none, or SQLite says what is wrong with it
        inherited = False
    if inherited:
        message = (
            f"{path} was open in the process that this one was forked from, and SQLite would lose what is written "
            "to it here; start the process by spawn, or fork before a store is opened"
        )
        raise NotAllowed(message)
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256, factory=Connection)
    try:
        _OPEN[id(connection)] = _file(path)  # no lock is taken yet
    except OSError as error:
        connection.close()
        raise sqlite3.OperationalError(str(error)) from None
    return connection


def _file(path: str) -> _File:
    found = os.stat(path)  # noqa: PTH116 - not opened: to close it again would drop the locks of this process
    return found.st_dev, found.st_ino


def _forked() -> None:
    _INHERITED.update(_OPEN.values())
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
