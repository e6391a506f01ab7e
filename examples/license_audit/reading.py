"""The tools: they read metadata and licence files of installed distributions, a capped piece at a time.

What goes wrong with a file is raised, and is thereby the call's result: the model reads it like any other.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired  # the standard one is not read by pydantic before Python 3.12

from typing_extensions import TypedDict

from examples.license_audit.licences import recognise
from examples.license_audit.places import Place, place
from tenure.agent.tool import tool

MAX_FILES = 100
MAX_LINES = 60
MAX_LINE = 240
MAX_BYTES = 256 * 1024
MAX_SOURCES = 40

LICENCE_NAME = re.compile(r"(un)?licen[cs]e|copying|notice|copyright|authors", re.IGNORECASE)
_MENTION = re.compile(r"SPDX-License-Identifier|\blicen[cs]ed? under\b|^\W*__license__\b", re.IGNORECASE)
_WANTED = ("name", "version", "license", "license-expression", "license-file", "classifier")


class File(TypedDict):
    """A file of a distribution; the path is relative to where the distribution is installed."""

    path: str
    bytes: int


class Line(TypedDict):
    """A line of a file, counted from 1."""

    line: int
    text: str


class Header(Line):
    """A field of the metadata, its name in lower case."""

    field: str


class Metadata(TypedDict):
    """The fields of a metadata file that say something about name and licence."""

    path: str
    headers: list[Header]


class Excerpt(TypedDict):
    """Up to 60 lines of a file; `next` is the line to go on from, and missing at the end."""

    path: str
    lines: list[Line]
    encoding: str
    next: NotRequired[int]
    cut: NotRequired[bool]


class TextMatch(Line):
    """A licence that a text looks like: the share of its known sentences that were found, the first at `line`."""

    spdx: str
    score: float


@tool
def list_files(dist: str) -> list[File]:
    """List the files of a distribution that may speak of its licence: its metadata folder, and licence files beside."""
    return [File(path=path, bytes=found.stat().st_size) for path, found in sorted(_files(place(dist)).items())]


@tool
def read_metadata(dist: str) -> Metadata:
    """Return the fields of a distribution's metadata that name it or its licence, with their lines."""
    found = place(dist)
    file = next((path for name in ("METADATA", "PKG-INFO") if (path := found.home / name).is_file()), found.home)
    if not file.is_file():
        message = f"{found.home.name} has no METADATA; list its files"
        raise FileNotFoundError(message)
    try:
        text = _start_of(file)[0].decode()
    except UnicodeDecodeError as error:
        message = f"{_told(found, file)} is not UTF-8 (byte {error.start}); read it with read_license"
        raise ValueError(message) from None
    return Metadata(path=_told(found, file), headers=list(headers(text)))


@tool
def read_license(dist: str, path: str, start: int = 1) -> Excerpt:
    """Return up to 60 lines of a file, from the line `start`; `path` is one of list_files."""
    text, encoding, cut = _text(_file(place(dist), path))
    lines = text.splitlines()
    shown = lines[start - 1 : start - 1 + MAX_LINES] if start > 0 else []
    found = Excerpt(
        path=path,
        encoding=encoding,
        lines=[Line(line=start + number, text=line[:MAX_LINE]) for number, line in enumerate(shown)],
    )
    if start - 1 + MAX_LINES < len(lines):
        found["next"] = start + MAX_LINES
    if cut:
        found["cut"] = True
    return found


@tool
def match_text(dist: str, path: str) -> list[TextMatch]:
    """Compare a whole file with known licence texts and return those it looks like, the surest first."""
    text = _text(_file(place(dist), path))[0]
    lines = text.splitlines()
    return [
        TextMatch(spdx=match.spdx, score=match.score, line=match.line, text=lines[match.line - 1].strip()[:MAX_LINE])
        for match in recognise(text)
    ]


@tool
def find_mentions(dist: str) -> list[dict[str, str | int]]:
    """Return lines at the top of a distribution's Python files that name a licence."""
    found = place(dist)
    mentions: list[dict[str, str | int]] = []
    sources = (one for one in _recorded(found) if one.endswith(".py"))
    for path, _ in zip(sorted(sources), range(MAX_SOURCES), strict=False):
        file = _inside(found.root, path)
        if file is None:
            continue
        for number, line in enumerate(_text(file)[0].splitlines()[:30], start=1):
            if _MENTION.search(line):
                mentions.append({"path": path, "line": number, "text": line.strip()[:MAX_LINE]})
    return mentions[:10]


def headers(text: str, /) -> Iterator[Header]:
    """Yield the fields of a metadata file that matter here, folded lines joined; the description is passed over."""
    last: Header | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            break
        if line[0].isspace() or line.startswith("|"):
            if last is not None and len(last["text"]) < MAX_BYTES:
                last["text"] += "\n" + line.strip().removeprefix("|").strip()
            continue
        if last is not None:
            yield last
        field, colon, value = line.partition(":")
        named = colon and field.strip().lower() in _WANTED
        last = Header(field=field.strip().lower(), line=number, text=value.strip()) if named else None
    if last is not None:
        yield last


def _files(found: Place) -> dict[str, Path]:
    if found.home.is_file():
        return {_told(found, found.home): found.home}
    own = [path for path in found.home.rglob("*") if path.is_file() and not path.is_symlink()]
    files = {_told(found, path): path for path in own}
    for path in _recorded(found):
        if LICENCE_NAME.match(Path(path).name) and (file := _inside(found.root, path)) is not None:
            files.setdefault(path, file)
    return dict(sorted(files.items())[:MAX_FILES])


def _recorded(found: Place) -> list[str]:
    record = found.home / "RECORD"
    if not record.is_file():
        return []
    text = _text(record)[0]
    return [row[0] for row in csv.reader(text.splitlines()) if row and row[0]]


def _inside(root: Path, path: str) -> Path | None:
    """The file of a recorded path, None if there is none or if it lies outside."""
    file = root / path
    return file if file.is_file() and file.resolve().is_relative_to(root.resolve()) else None


def _file(found: Place, path: str) -> Path:
    file = _files(found).get(path)
    if file is None:
        file = _inside(found.root, path) if path in _recorded(found) else None
    if file is None:
        message = f"{path!r:.120} is no file of {found.id}; take a path from list_files"
        raise FileNotFoundError(message)
    return file


def _told(found: Place, file: Path) -> str:
    return file.relative_to(found.root).as_posix()


def _start_of(file: Path) -> tuple[bytes, bool]:
    with file.open("rb") as opened:
        start = opened.read(MAX_BYTES + 1)
    return start[:MAX_BYTES], len(start) > MAX_BYTES


def _text(file: Path) -> tuple[str, str, bool]:
    """The start of a file as text, how it was decoded, and whether the file goes on."""
    start, cut = _start_of(file)
    try:
        return start.decode("utf-8-sig"), "utf-8", cut
    except UnicodeDecodeError as error:
        if cut and error.start > MAX_BYTES - 4:  # a character cut in two
            return start.decode("utf-8-sig", errors="ignore"), "utf-8", cut
    return start.decode("latin-1"), "latin-1", cut
