"""How times, ids and foreign text are written for people; always the same for the same value, instants in UTC."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

ID_WIDTH = 22


def duration(ms: int, /) -> str:
    """Return a length of time in at most two units: 340ms, 21.4s, 4m10s, 3h05m, 2d04h."""
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms // 100 / 10:g}s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def ago(ms: int, now_ms: int, /) -> str:
    """Return how long ago an instant was, or how far away it is."""
    past = now_ms - ms
    return f"{duration(past)} ago" if past >= 0 else f"in {duration(-past)}"


def instant(ms: int, /) -> str:
    """Return an instant as date and time in UTC, to the second."""
    return _utc(ms).strftime("%Y-%m-%d %H:%M:%SZ")


def clock_time(ms: int, /) -> str:
    """Return the time of day of an instant in UTC, to the millisecond."""
    return _utc(ms).strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def _utc(ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(ms // 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):  # a damaged record may hold any number
        return datetime.fromtimestamp(0, tz=UTC)


def short_id(run_id: str, /, *, width: int = ID_WIDTH) -> str:
    """Return an id of at most `width` characters: the end stays, because time-ordered ids begin alike."""
    if len(run_id) <= width:
        return run_id
    head = (width - 1) // 4
    return f"{run_id[:head]}…{run_id[-(width - 1 - head) :]}"


def clean(text: str, /) -> str:
    """Return text that cannot steer a terminal: control, format and surrogate characters stand as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if unicodedata.category(c)[0] != "C" else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cut(text: str, width: int, /) -> str:
    """Return the text in at most `width` characters, with an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
