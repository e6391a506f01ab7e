"""The files that commands read and write beside a store: what names none is told before anything is done."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tenure.cli.exits import UsageError


def file_named(path: str, /) -> str:
    """Return the path of a file, or - for what the command has it stand for; UsageError for what names no file."""
    if not path:
        message = "the name of a file is empty; name a file"
        raise UsageError(message)
    if path != "-" and _is_folder(path):
        message = f"{path} is a folder; name a file in it"
        raise UsageError(message)
    return path


def is_stream(path: str, /) -> bool:
    """Return whether it is stdout, a device or a pipe: nothing is put in its place, what there is goes into it."""
    try:
        return path == "-" or not stat.S_ISREG(Path(path).stat().st_mode)
    except OSError:
        return False  # it is to be made, or who opens it says what is wrong


@contextmanager
def streamed(path: str, /) -> Iterator[IO[bytes]]:
    """Open what `is_stream`; bytes are what digests are of, whatever the encoding of a terminal."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with Path(path).open("wb") as file:
        yield file


def _is_folder(path: str) -> bool:
    # Not by `is_dir`, which raises for a name that is too long in some versions of Python, and not in others.
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False  # it may be one that is to be made; if it is not, who opens it says so
    except OSError as error:
        message = f"{path} cannot be opened ({error.strerror}); name another file"
        raise UsageError(message) from None
