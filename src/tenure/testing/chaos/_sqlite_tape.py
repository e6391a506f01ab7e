"""Records what SQLite asks of the file system below a folder: writes, truncations, flushes, removals.

It stands between the `sqlite3` of this process and its library as a VFS, the library's own seam for this: files stay
what they are, and only what happens to them is noted first. Needs a Python whose sqlite3 uses the shared library.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_OK = 0
_OPEN_CREATE = 0x4
_OPEN_JOURNALS = 0x800 | 0x4000 | 0x80000  # rollback, super and write-ahead: the library flushes their folder
_FILE, _VFS = c.c_void_p, c.c_void_p
_WRITE = c.CFUNCTYPE(c.c_int, _FILE, c.c_void_p, c.c_int, c.c_int64)
_TRUNCATE = c.CFUNCTYPE(c.c_int, _FILE, c.c_int64)
_SYNC = c.CFUNCTYPE(c.c_int, _FILE, c.c_int)
_PATH = c.c_void_p  # passed on as it came: the library keeps the pointer for as long as the file is open
_OPEN = c.CFUNCTYPE(c.c_int, _VFS, _PATH, _FILE, c.c_int, c.POINTER(c.c_int))
_DELETE = c.CFUNCTYPE(c.c_int, _VFS, _PATH, c.c_int)
_METHODS = 19
"""Entries of `sqlite3_io_methods` version 3: the version, then functions."""


class NoTape(RuntimeError):
    """The sqlite3 of this Python cannot be listened to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that was asked for; `what` is write, truncate, sync, sync folder or delete."""

    what: str
    name: str
    offset: int = 0
    data: bytes = b""


@dataclass(slots=True, kw_only=True)
class Tape:
    """What happened to the files of one folder, in order."""

    folder: str
    events: list[Event] = field(default_factory=list)

    def note(self, what: str, name: str, offset: int = 0, data: bytes = b"") -> None:
        """Add one event."""
        self.events.append(Event(what=what, name=name, offset=offset, data=data))


class _Vfs(c.Structure):
    _fields_ = (
        ("version", c.c_int),
        ("file_bytes", c.c_int),
        ("longest_path", c.c_int),
        ("next", c.c_void_p),
        ("name", c.c_char_p),
        ("data", c.c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("rest", c.c_void_p * 16),
    )


class _File(c.Structure):
    _fields_ = (("methods", c.c_void_p),)


@functools.cache
def _library() -> c.CDLL:
    with sqlite3.connect(":memory:"):
        pass
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/libsqlite3." in line}
    if len(paths) != 1:
        message = "the sqlite3 of this Python is built in; use one that loads libsqlite3, as Debian's does"
        raise NoTape(message)
    return c.CDLL(paths.pop())


class _Recorder:
    """The one VFS of this process; new connections go through it while there is a tape."""

    def __init__(self) -> None:
        library = _library()
        find = library.sqlite3_vfs_find
        find.restype, find.argtypes = c.POINTER(_Vfs), [c.c_char_p]
        self.tapes: dict[str, Tape] = {}
        self._under = find(None).contents
        self._files: dict[int, tuple[Tape, str, bool]] = {}
        self._methods: dict[int, tuple[Any, ...]] = {}
        self._vfs = _Vfs.from_buffer_copy(self._under)
        self._vfs.name = b"tenure-tape"
        self._vfs.open, self._vfs.delete = _OPEN(self._open), _DELETE(self._delete)
        self._register = library.sqlite3_vfs_register
        self._register.argtypes = [c.c_void_p, c.c_int]

    def begin(self, tape: Tape) -> None:
        """Note what happens below the tape's folder, to files that are opened from now on."""
        if self._register(c.byref(self._vfs), 1) != _OK:
            message = "SQLite took no VFS of ours"
            raise NoTape(message)
        self.tapes[tape.folder] = tape

    def end(self, tape: Tape) -> None:
        """Note no more of it; after the last one connections go their own way."""
        self.tapes.pop(tape.folder, None)
        if not self.tapes:
            self._register(c.byref(self._under), 1)

    def _tape(self, path: int | None) -> tuple[Tape, str] | None:
        if not path:  # a temporary file
            return None
        folder, name = os.path.split(os.fsdecode(c.string_at(path)))
        tape = self.tapes.get(folder)
        return (tape, name) if tape is not None else None

    def _open(self, vfs: int, path: int | None, file: int, flags: int, out: Any) -> int:
        code: int = self._under.open(vfs, path, file, flags, out)
        found = self._tape(path)
        head = _File.from_address(file)
        if code == _OK and found is not None and head.methods:
            makes = bool(flags & _OPEN_CREATE and flags & _OPEN_JOURNALS)
            self._files[file] = (*found, makes)
            head.methods = self._listening(head.methods)
        return code

    def _delete(self, vfs: int, path: int, sync_folder: int) -> int:
        code: int = self._under.delete(vfs, path, sync_folder)
        found = self._tape(path)
        if code == _OK and found is not None:
            found[0].note("delete", found[1])
            if sync_folder:
                found[0].note("sync folder", "")
        return code

    def _listening(self, methods: int) -> int:
        """Return a table of a file's functions with ours in place of three of them."""
        if methods not in self._methods:
            table = (c.c_void_p * _METHODS).from_buffer_copy((c.c_void_p * _METHODS).from_address(methods))
            write, truncate = _WRITE(table[3] or 0), _TRUNCATE(table[4] or 0)

            def on_write(file: int, data: int, size: int, offset: int) -> int:
                tape, name, _ = self._files[file]
                tape.note("write", name, offset, c.string_at(data, size))
                return int(write(file, data, size, offset))

            def on_truncate(file: int, size: int) -> int:
                tape, name, _ = self._files[file]
                tape.note("truncate", name, size)
                return int(truncate(file, size))

            def on_sync(file: int, _: int) -> int:
                tape, name, makes = self._files[file]
                tape.note("sync", name)
                if makes:  # the first flush of a log that was made flushes its folder, too
                    tape.note("sync folder", "")
                    self._files[file] = (tape, name, False)
                return _OK  # the tape is the disk: nothing here has to survive more than this process

            ours = _WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync)
            for place, function in zip((3, 4, 5), ours, strict=True):
                table[place] = c.cast(function, c.c_void_p).value
            self._methods[methods] = (table, *ours)
        return c.addressof(self._methods[methods][0])


@functools.cache
def _recorder() -> _Recorder:
    return _Recorder()


def record(folder: Path, /) -> Tape:
    """Begin a tape of a folder, which files opened from now on are noted on; NoTape where that cannot be."""
    tape = Tape(folder=str(folder))
    _recorder().begin(tape)
    return tape


def stop(tape: Tape, /) -> None:
    """End a tape; its files have to be closed."""
    _recorder().end(tape)
