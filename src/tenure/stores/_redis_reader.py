"""From the bytes of a connection to replies: hiredis where it is installed, else the few lines below."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
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


class PlainReader:
    """The reader where hiredis is not installed; a reply that is not whole is read on where its bytes ended."""

    def __init__(self, said: Said, /) -> None:
        self._said = said
        self._data = bytearray()
        self._at = 0
        self._replies = self._read()

    def feed(self, data: bytes, /) -> None:
        """Take more bytes."""
        del self._data[: self._at]
        self._at = 0
        self._data += data

    def gets(self) -> Reply:
        """Return the next reply, NOTHING if it is not whole yet."""
        return next(self._replies, NOTHING)

    def _read(self) -> Iterator[Reply]:
        while True:
            yield (yield from self._reply())

    def _reply(self) -> Generator[Any, None, Reply]:
        """Yield NOTHING for as long as bytes are missing, and return the reply."""
        while (end := self._data.find(b"\r\n", self._at)) < 0:
            yield NOTHING
        line = self._taken(end)
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
        if kind == b"$":
            while len(self._data) < self._at + number + 2:
                yield NOTHING
            return self._taken(self._at + number)
        found: list[Reply] = []
        while len(found) < number:
            found.append((yield from self._reply()))
        return found

    def _taken(self, end: int) -> bytes:
        begin, self._at = self._at, end + 2
        with memoryview(self._data) as data:
            return bytes(data[begin:end])
