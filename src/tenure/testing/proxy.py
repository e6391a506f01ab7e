"""A proxy on loopback between a client and a server, which loses what it is told to lose."""

import asyncio
import contextlib
import socket
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Proxy"]

PIECE = 65_536


class Proxy:
    """Stands before the server of a URL for the length of an `async with` block; `url` leads through it."""

    def __init__(self, url: str, *, bytes_s: int = 0) -> None:
        self.lead_to(url)
        self._bytes_s = bytes_s
        """How many bytes a second a connection carries in each direction, and nothing waits in the proxy; 0: all."""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._passing = asyncio.Event()
        self._passing.set()
        self.lose_replies = False
        """Requests reach the server, their replies do not come back, and the connection is closed."""
        self.delay_s = 0.0
        """How long what a server says is held back."""
        self.refuse = False
        """New connections are closed at once."""
        self.connections = 0

    def lead_to(self, url: str) -> None:
        """Connect to this server from now on."""
        parts = urlsplit(url)
        self._to = (parts.hostname or "127.0.0.1", parts.port or 6379)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        """Begin to listen."""
        own = socket.socket()
        own.bind(("127.0.0.1", 0))
        if self._bytes_s:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)  # what is not carried yet waits with who sent it
        self._server = await asyncio.start_server(self._joined, sock=own)
        self.url = f"redis://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close every connection."""
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection there is, on both sides."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def hold_up(self) -> None:
        """Let nothing through and close nothing, as a network does that loses every packet."""
        self._passing.clear()

    def let_through(self) -> None:
        """Let everything through again, what was held up first."""
        self._passing.set()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.close()
            return
        self._writers.append(writer)
        await self._passing.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        self._writers.append(far_writer)
        self._tasks += [
            asyncio.create_task(self._pump(reader, far_writer, writer, back=False)),
            asyncio.create_task(self._pump(far_reader, writer, far_writer, back=True)),
        ]

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter, *, back: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                if self._bytes_s:
                    await asyncio.sleep(len(data) / self._bytes_s)
                if back and self.lose_replies:
                    break
                await self._passing.wait()
                if back and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        for end in (writer, other):
            end.close()
