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


def share(before: bytes, after: bytes, /) -> float:
    """Return which part of `after` stands at the begin or the end of `before` as well, from 0 to 1."""
    prefix = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    rest, other = before[prefix:], after[prefix:]
    suffix = next(
        (at for at, (a, b) in enumerate(zip(reversed(rest), reversed(other), strict=False)) if a != b),
        min(len(rest), len(other)),
    )
    return (prefix + suffix) / max(1, len(after))
