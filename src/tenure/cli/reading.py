"""What people write on a command line, read: JSON, instants, lengths of time, tags."""

from __future__ import annotations

import codecs
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tenure.cli.exits import UsageError
from tenure.cli.paths import file_named

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def read_input(text: str, /, *, origin: str = "the input") -> Any:
    """Return the JSON value of an argument: the text itself, the file after an @, or stdin for a dash."""
    from tenure.core import canonical
    from tenure.errors import InvalidContent

    if text == "-":
        origin, data = "stdin", sys.stdin.buffer.read()
    elif text.startswith("@"):
        origin = text[1:]
        try:
            data = Path(file_named(origin)).read_bytes()
        except OSError as error:
            message = f"the file {origin} cannot be read ({error.strerror}); name one that holds JSON"
            raise UsageError(message) from None
    else:
        data = text.encode(errors="surrogateescape")
    try:
        return canonical.decode(data.removeprefix(codecs.BOM_UTF8))  # which some editors put before a text
    except InvalidContent as error:
        if not error.message.startswith("not JSON"):
            raise
        if text == "-" or text.startswith("@"):
            message = f"{origin} is not JSON{_place_in(data)}; correct it there"
        else:
            message = (
                f"""{origin} is not JSON; text is quoted twice, like '"text"', and @FILE or - reads it from a file"""
            )
        raise InvalidContent(message) from None


def _place_in(data: bytes) -> str:
    import json

    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f" (line {error.lineno}, column {error.colno}: {error.msg})"
    except ValueError:
        pass
    return ""


def read_instant(text: str, /, *, now: datetime | None = None) -> datetime:
    """Return an instant from ISO 8601 (UTC where no zone is named) or from a time from now on such as +5m."""
    now = now or datetime.now(UTC)
    if text.startswith("+"):
        return now + timedelta(seconds=read_seconds(text[1:]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        message = (
            f"{text[:40]!r} is no instant; use ISO 8601 (2030-01-31T08:00:00Z) or a time from now (+30s, +5m, +2h)"
        )
        raise UsageError(message) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def read_age(text: str, /) -> float:
    """Return in seconds for how long something is kept that then goes for good: 30s, 5m, 2h, 7d; no bare number."""
    if text.strip().replace(".", "", 1).isdigit():
        message = f"{text[:40]!r} has no unit; write {text[:40].strip()}d for days, or another of s, m, h"
        raise UsageError(message)
    return read_seconds(text)


def read_seconds(text: str, /) -> float:
    """Return a length of time in seconds: 30, 30s, 5m, 2h, 1d."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS_S else (text, "s")
    try:
        found = float(number) * _UNITS_S[unit]
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        message = f"{text[:40]!r} is no length of time; write 30s, 5m, 2h or 1d"
        raise UsageError(message)
    return found


def read_tags(pairs: list[str], /) -> dict[str, str]:
    """Return tags from KEY=VALUE pairs."""
    tags: dict[str, str] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            message = f"{pair[:40]!r} is no tag; write KEY=VALUE"
            raise UsageError(message)
        if name in tags:
            message = f"the tag {name[:40]!r} is given twice; give it once"
            raise UsageError(message)
        tags[name] = value
    return tags
