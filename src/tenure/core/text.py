"""Text for people: what a message may show of anybody's value, whatever that value does."""

from __future__ import annotations


def printable(text: str, /) -> str:
    """Return text that can be printed and stored: lone surrogates, which no encoding takes, stand as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def shown(value: object, /) -> str:
    """Return what a message shows of a value: the first characters of its repr, or its type where that fails."""
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001 - a broken repr is no reason for another error than the one that is told
        return f"of type {type(value).__name__}"


def count(number: int, noun: str, /) -> str:
    """Return a number with its noun: 1 run, 2 runs, 1,234 runs, 3 crashes."""
    ending = "" if number == 1 else "es" if noun.endswith("sh") else "s"
    return f"{number:,} {noun}{ending}"


def share(before: bytes, after: bytes, /) -> float:
    """Return which part of `after` stands at the begin or the end of `before` as well; 0 for less than two fifths."""
    most = min(len(before), len(after))
    part = max(1, most * 2 // 5)
    near, far = slice(max(0, part - 16), part), slice(-part, 16 - part if part > 16 else None)
    if before[near] != after[near] and before[far] != after[far]:
        return 0.0  # so it is nearly always, and a few bytes tell
    if before[:part] != after[:part] and before[-part:] != after[-part:]:
        return 0.0
    prefix = _common(before, after)
    suffix = _common(before[prefix:][::-1], after[prefix:][::-1])
    return (prefix + suffix) / max(1, len(after))


def _common(one: bytes, other: bytes) -> int:
    """Return how long the common beginning is, found by halves: a loop over bytes would cost more than the write."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
