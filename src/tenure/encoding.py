"""The canonical bytes of what a holder writes, by a faster encoder: nearly all that a step adds is texts in objects.

The encoder is orjson's where it is installed, else pydantic's: both write texts and whole numbers as RFC 8785 has them.
`core/canonical.py` says what the bytes are and what is refused. Here only what is sure to come out the same is written;
the rest is left to it, and so is every refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tenure.core import canonical, journal

_VALUES = 10_000


class _Unsure(Exception):
    """The other encoder might write something else than the canonical bytes."""


def event(type_: str, /, *, scope: str = "", **content: Any) -> bytes:
    """Return what `journal.event` returns."""
    try:
        found = _ordered({"type": type_, "scope": scope, **content}, canonical.MAX_DEPTH + 1, [_VALUES])
        data = _encoder()(found)
    except (_Unsure, LookupError, RuntimeError, TypeError, ValueError):  # as a lone surrogate, or a key gone meanwhile
        return journal.event(type_, scope=scope, **content)
    return data if len(data) <= canonical.MAX_EVENT_BYTES else journal.event(type_, scope=scope, **content)


@cache
def _encoder() -> Callable[[Any], bytes]:
    try:
        from orjson import dumps
    except ImportError:
        from pydantic_core import to_json

        return to_json
    return dumps


def _ordered(value: Any, depth: int, left: list[int]) -> Any:
    """Return a container with the keys of its objects in order."""
    left[0] -= len(value) + 1
    if depth == 0 or left[0] < 0:
        raise _Unsure
    if type(value) is list:
        return [item if type(item) is str else _value(item, depth, left) for item in value]
    found: dict[str, Any] = {}
    for key in sorted(value):
        if type(key) is not str:
            raise _Unsure
        item = value[key]
        found[key] = item if type(item) is str else _value(item, depth, left)
    return found


def _value(item: Any, depth: int, left: list[int]) -> Any:
    kind = type(item)
    if kind is dict or kind is list:
        return _ordered(item, depth - 1, left)
    if item is None or kind is bool or (kind is int and -canonical.MAX_NUMBER <= item <= canonical.MAX_NUMBER):
        return item
    raise _Unsure  # a number with a fraction is written in another way, and what else there is may be refused
