"""The files that commands read and write beside a store: what names none is told before anything is done."""

from __future__ import annotations

from pathlib import Path

from tenure.cli.exits import UsageError


def file_named(path: str, /) -> str:
    """Return the path of a file, or - for what the command has it stand for; UsageError for what names no file."""
    if not path:
        message = "the name of a file is empty; name a file"
        raise UsageError(message)
    if path != "-" and Path(path).is_dir():
        message = f"{path} is a folder; name a file in it"
        raise UsageError(message)
    return path
