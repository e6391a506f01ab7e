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
        data = _encoder()(_looked_at({"type": type_, "scope": scope, **content}, canonical.MAX_DEPTH + 1, [_VALUES]))
        if len(data) <= canonical.MAX_EVENT_BYTES:
            return data
    except (_Unsure, LookupError, RuntimeError, TypeError, ValueError):  # as a lone surrogate
        pass
    return journal.event(type_, scope=scope, **content)


def texts(fields: dict[str, str], /) -> bytes:
    """Return the canonical bytes of an object of texts, which has its keys in order."""
    try:
        data = _encoder()(fields)
    except (TypeError, ValueError):  # a lone surrogate
        return canonical.encode(fields)
    return data if len(data) <= canonical.MAX_COMMIT_BYTES or data.isascii() else canonical.encode(fields)


@cache
def _encoder() -> Callable[[Any], bytes]:
    try:
        from orjson import dumps
    except ImportError:
        from pydantic_core import to_json

        return to_json
    return dumps


def _looked_at(value: Any, depth: int, left: list[int]) -> Any:
    """Return a container as it is at one moment, with the keys of its objects in order.

    What was looked at is what is written: of what another thread puts in after the look an encoder would make `null` or
    `NaN`, where the canonical one refuses it.
    """
    left[0] -= len(value) + 1
    if depth == 0 or left[0] < 0:
        raise _Unsure
    # Nearly all there is are texts, and a call for each would cost more than the rest.
    if type(value) is list:
        return [item if type(item) is str else _item(item, depth, left) for item in value.copy()]
    found: dict[str, Any] = {}
    for key, item in sorted(value.items()):
        if type(key) is not str:
            raise _Unsure
        found[key] = item if type(item) is str else _item(item, depth, left)
    return found


def _item(item: Any, depth: int, left: list[int]) -> Any:
    kind = type(item)
    if kind is dict or kind is list:
        return _looked_at(item, depth - 1, left)
    if item is None or kind is bool or (kind is int and -canonical.MAX_NUMBER <= item <= canonical.MAX_NUMBER):
        return item
    raise _Unsure  # a number with a fraction is written in another way, and what else there is may be refused
