"""Values in files: no dependency, each written beside, flushed and renamed, so that nobody reads half of one.

For one process: whoever opens the folder locks it, and a second one is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote, unquote

import anyio
import anyio.to_thread

from tenure.errors import CorruptRecord, StoreUnavailable, StoreUnsafe
from tenure.store import Durability

HEAD = b"tenure-value 1 "
ENDING = ".value"


class FileValues:
    """A store of values in a folder; a value is a file with its version in the first line."""

    atomicity: Literal["process"] = "process"
    level = Durability.DISK

    def __init__(self, folder: str | Path, /) -> None:
        self.folder = Path(folder)
        self.url = f"files://{self.folder}"
        self._guard = anyio.Lock()
        self._opened = 0
        self._lock: IO[bytes] | None = None

    async def open(self) -> None:
        """Make the folder and lock it; StoreUnsafe if another process has it."""
        async with self._guard:
            if self._opened == 0:
                self._lock = await anyio.to_thread.run_sync(self._take)
            self._opened += 1

    async def aclose(self) -> None:
        """Unlock the folder when the last one closes it."""
        self._opened -= 1
        if self._opened == 0 and self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take(self) -> IO[bytes]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("ab")
        except OSError as error:
            raise _unavailable(self.folder, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            message = f"{self.folder} is in use by another process; use sqlite:/// for more than one"
            raise StoreUnsafe(message) from None
        return lock

    async def get(self, key: str, /) -> tuple[bytes, int] | None:
        """Return the value and its version; CorruptRecord for a file that is none of ours."""
        return await anyio.to_thread.run_sync(self._get, key)

    def _get(self, key: str) -> tuple[bytes, int] | None:
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(self._path(key), error) from None
        head, line, value = data.partition(b"\n")
        version = head.removeprefix(HEAD)
        if not line or not head.startswith(HEAD) or not version.isdigit():
            message = f"{self._path(key)} is no value, or only a part of one; restore it, or delete it"
            raise CorruptRecord(message)
        return value, int(version)

    async def put(self, key: str, value: bytes, /, *, version: int) -> bool:
        """Write the next version beside, flush it, rename it and flush the folder; one at a time."""
        async with self._guard:
            return await anyio.to_thread.run_sync(self._put, key, value, version)

    def _put(self, key: str, value: bytes, version: int) -> bool:
        found = self._get(key)
        if (found[1] if found is not None else 0) != version:
            return False
        beside: str | None = None
        try:
            file, beside = tempfile.mkstemp(dir=self.folder, prefix="tmp-")
            with os.fdopen(file, "wb") as out:
                out.write(HEAD + str(version + 1).encode() + b"\n" + value)
                out.flush()
                os.fsync(out.fileno())
            Path(beside).rename(self._path(key))
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            if beside is not None:
                Path(beside).unlink(missing_ok=True)
            raise _unavailable(self._path(key), error) from None
        return True

    async def keys(self) -> list[str]:
        """Return every key."""

        def names() -> list[str]:
            return sorted(unquote(p.name.removesuffix(ENDING)) for p in self.folder.glob(f"*{ENDING}"))

        return await anyio.to_thread.run_sync(names)

    def _path(self, key: str) -> Path:
        return self.folder / f"{quote(key, safe='')}{ENDING}"


def _unavailable(path: Path, error: OSError) -> StoreUnavailable:
    todo = "make room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "look at the folder's rights"
    return StoreUnavailable(f"{path} cannot be used ({error.strerror}); {todo}, then try again")
