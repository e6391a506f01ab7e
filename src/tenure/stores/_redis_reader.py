"""From the bytes of a connection to replies: hiredis where it is installed, else the few lines below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

from redis.exceptions import InvalidResponse

Reply: TypeAlias = Any
"""What the server answered to one command: bytes, int, None, a list of these, or the exception that says why not."""

NOTHING = object()
"""What `gets` returns while the next reply is not whole."""

Said = Callable[[str], Exception]
"""Makes an exception of what the server said against a command."""


class Reader(Protocol):
    """Takes bytes as they come and gives replies in order; InvalidResponse for what is none."""

    def feed(self, data: bytes, /) -> None:
        """Take more bytes."""
        ...

    def gets(self) -> Reply:
        """Return the next reply, NOTHING if it is not whole yet."""
        ...


def reader(said: Said, /) -> Reader:
    """Return a new reader of RESP 2."""
    try:
        import hiredis
    except ImportError:
        return PlainReader(said)
    return cast("Reader", hiredis.Reader(protocolError=InvalidResponse, replyError=said, notEnoughData=NOTHING))


def as_text(data: bytes, /) -> str:
    """Return what the server keeps as text; what is no UTF-8 stays visible as escapes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace")


class _NotWhole(Exception):
    """The reply goes on in bytes that have not come yet."""


class PlainReader:
    """The reader where hiredis is not installed; a reply that is not whole is read anew with the next bytes."""

    def __init__(self, said: Said, /) -> None:
        self._said = said
        self._data = b""
        self._at = 0

    def feed(self, data: bytes, /) -> None:
        """Take more bytes."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def gets(self) -> Reply:
        """Return the next reply, NOTHING if it is not whole yet."""
        begun = self._at
        try:
            return self._reply()
        except _NotWhole:
            self._at = begun
            return NOTHING

    def _reply(self) -> Reply:
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b"+":
            return text
        if kind == b"-":
            return self._said(text.decode(errors="backslashreplace"))
        if kind not in (b":", b"$", b"*"):
            message = f"no reply begins with {kind!r}"
            raise InvalidResponse(message)
        try:
            number = int(text)
        except ValueError:
            message = f"a reply of kind {kind!r} without a number"
            raise InvalidResponse(message) from None
        if kind == b":":
            return number
        if number < 0:
            return None
        return self._bulk(number) if kind == b"$" else [self._reply() for _ in range(number)]

    def _line(self) -> bytes:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            raise _NotWhole
        line, self._at = self._data[self._at : end], end + 2
        return line

    def _bulk(self, size: int) -> bytes:
        end = self._at + size
        if len(self._data) < end + 2:
            raise _NotWhole
        data, self._at = self._data[self._at : end], end + 2
        return data
