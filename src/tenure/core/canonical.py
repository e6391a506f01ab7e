"""The canonical form of content: what is hashed is what is stored, byte for byte.

UTF-8, no spaces, keys sorted by code point, integers verbatim. Content is data only; nothing is revived on the
way back. What has no place in it is refused before anything is written, alike on every store.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tenure.core.text import printable, shown
from tenure.errors import InvalidContent, NotAllowed

MAX_DEPTH = 64
# A stored body is an object of a list of events around the values, and an event may restate a conversation with the
# values in its messages: whatever may be written can be read again.
RESTATED_DEPTH = MAX_DEPTH + 8
_READ_DEPTH = RESTATED_DEPTH + 2
MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_COMMIT_BYTES = 8 * 1024 * 1024
# CPython refuses to turn longer decimal strings into integers, so a longer one could be written and never read.
MAX_INT_DIGITS = 4000
MAX_NUMBER = 10**15
"""The largest number to be given for a record: with store time added it is still one that a double keeps whole."""
_INT_LIMIT = 10**MAX_INT_DIGITS
_PLAIN_VALUES = 10_000
# What holds itself is refused before it gets here, so the encoder need not look for it.
_TEXT = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def encode(value: Any, /, *, limit: int = MAX_COMMIT_BYTES, depth: int = MAX_DEPTH) -> bytes:
    """Return the canonical bytes of a JSON value; InvalidContent names the JSON path of what cannot be stored."""
    try:
        if not _is_plain(value, depth):
            _refuse_foreign(value, "$", depth, [limit // 2 + 1])
        text = _TEXT(value)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            message = "a string holds a lone surrogate; encode binary text (base64) before it is stored"
            raise InvalidContent(message, path=_surrogate_path(value, "$")) from None
    except RecursionError:
        raise  # the caller's stack is full
    except (RuntimeError, TypeError, ValueError) as error:
        # A container that grew or shrank under way, or what was not yet there when it was looked at.
        said = f"content was changed while it was being stored ({type(error).__name__})"
        message = f"{said}; pass a copy (copy.deepcopy) of what other threads change"
        raise InvalidContent(message, path="$") from None
    if len(data) > limit:
        message = f"content of {len(data)} bytes is over the limit of {limit}; store it elsewhere and keep a reference"
        raise InvalidContent(message, path="$", size=len(data), limit=limit)
    return data


def again(value: Any, /) -> bytes:
    """Return the canonical bytes of a value that was read from such bytes; it is not checked anew."""
    return _TEXT(value).encode()


def decode(data: bytes, /) -> Any:
    """Return the value of JSON bytes; duplicate keys, NaN, infinities and deep nesting raise InvalidContent."""
    if data.count(b"[") + data.count(b"{") > _READ_DEPTH:
        _refuse_depth(data)
    try:
        text = data.decode()  # not left to the parser, which would take UTF-16 as well
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        message = f"not JSON text ({type(error).__name__}); pass valid UTF-8 JSON"
        raise InvalidContent(message, path="$") from None


def plain(text: str, limit: int, /) -> str:
    """Return text for people (a reason, what an exception says) so that it can be stored: cut, no lone surrogates."""
    return printable(text[:limit])


def whole(value: object, what: str, /) -> int:
    """Return a number of a record; NotAllowed for one that not every store keeps to the last digit."""
    if type(value) is int and -MAX_NUMBER <= value <= MAX_NUMBER:
        return value
    message = f"{what} is a whole number of at most {MAX_NUMBER}, not {shown(value)[:40]}; pass such a number"
    raise NotAllowed(message)


def digest(data: bytes, /) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def decode_own(data: bytes, /) -> Any:
    """Return the value of bytes that `encode` has just made: nothing in them has to be refused again."""
    return json.loads(data)


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a value is sure to have a place in JSON; one by one, because most values are of a few types.

    What is not sure is looked at again by `_refuse_foreign`, which names what it refuses.
    """
    level, left = [value], _PLAIN_VALUES
    while level:
        left -= len(level)
        if left < 0:
            return False
        inside: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or item is None or kind is bool:
                continue
            if kind is int:
                if not -MAX_NUMBER <= item <= MAX_NUMBER:
                    return False
            elif kind is list and depth > 0:
                inside += item
            elif kind is dict and depth > 0:
                for key in item:
                    if type(key) is not str:
                        return False
                inside += item.values()
            elif kind is not float or not math.isfinite(item):
                return False
        level, depth = inside, depth - 1
    return True


def _too_deep(path: str) -> InvalidContent:
    message = f"content is nested deeper than {MAX_DEPTH}; flatten it"
    return InvalidContent(message, path=path)


def _refuse_foreign(value: Any, path: str, room: int, left: list[int]) -> None:
    # Each value takes two bytes at least, with what divides it from the next. Without a limit a list that holds itself
    # twice, and so on, would take years.
    left[0] -= 1
    if left[0] < 0:
        message = "content has more values than the size limit has bytes; store it elsewhere and keep a reference"
        raise InvalidContent(message, path="$")
    if value is None or isinstance(value, str | bool):
        return
    if room == 0 and isinstance(value, dict | list | tuple):
        raise _too_deep(path)
    if isinstance(value, int):
        if not -_INT_LIMIT < value < _INT_LIMIT:
            message = f"an integer has more than {MAX_INT_DIGITS} digits; store it as text"
            raise InvalidContent(message, path=path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            message = f"{float(value)} has no place in JSON; store null or text instead"
            raise InvalidContent(message, path=path)
    elif isinstance(value, dict | list | tuple):
        for step, item in _parts(value, path):
            _refuse_foreign(item, f"{path}{step}", room - 1, left)
    else:
        message = f"a value of type {type(value).__name__} cannot be stored; return JSON types or annotate the type"
        raise InvalidContent(message, path=path)


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a container, each with its step of the JSON path."""
    if not isinstance(value, dict):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
        return
    for key, item in value.items():
        if not isinstance(key, str):
            message = f"a key of type {type(key).__name__} is not text; use str keys"
            raise InvalidContent(message, path=path)
        yield f".{_shown(key)}", item


def json_path(where: Iterable[int | str], /) -> str:
    """Return the JSON path of the steps that pydantic names."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{_shown(step)}" for step in where)


def _shown(key: str) -> str:
    # A key is content as well: a message stays short, and can be printed whatever the key holds.
    return printable(key if len(key) <= 40 else f"{key[:40]}...")


def _surrogate_path(value: Any, path: str) -> str:
    if isinstance(value, dict) and not all(map(_encodable, value)):
        return path
    if isinstance(value, dict | list | tuple):
        return next(filter(None, (_surrogate_path(item, f"{path}{step}") for step, item in _parts(value, path))), "")
    return path if isinstance(value, str) and not _encodable(value) else ""


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_depth(data: bytes) -> None:
    depth = 0
    for match in _BRACKETS.finditer(data):
        mark = match.group()
        if mark in b"[{":
            depth += 1
            if depth > _READ_DEPTH:
                raise _too_deep("$")
        elif mark in b"]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        message = "an object has the same key twice; two readers could disagree about it"
        raise InvalidContent(message, path="$")
    return found


def _refuse_constant(name: str) -> Any:
    message = f"{name} has no place in JSON; store null or text instead"
    raise InvalidContent(message, path="$")


def _finite(text: str) -> float:
    if math.isfinite(found := float(text)):
        return found
    message = "a number is too large for JSON readers; store it as text"
    raise InvalidContent(message, path="$")
