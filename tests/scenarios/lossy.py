"""A line between a store and its server that lets requests through and loses replies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream


class Line:
    """Lets everything through, but for the next `to_lose` replies: these are dropped, and the connection breaks."""

    def __init__(self, url: str) -> None:
        self.to_lose = 0
        self._server = urlsplit(url)
        self.url = ""

    async def serve(self, client: SocketStream) -> None:
        server = await anyio.connect_tcp(self._server.hostname or "", self._server.port or 0)
        async with client, server, anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, client, server, False)
            await self._pump(server, client, True)
            tasks.cancel_scope.cancel()

    async def _pump(self, source: SocketStream, target: SocketStream, replies: bool) -> None:
        try:
            async for data in source:
                if replies and self.to_lose:
                    self.to_lose -= 1
                    break
                await target.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            await anyio.aclose_forcefully(target)


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[Line]:
    """A line to the server at `url`, with a URL of its own, for the length of the block."""
    line = Line(url)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        line.url = f"redis://127.0.0.1:{port}"
        tasks.start_soon(listener.serve, line.serve)
        yield line
        tasks.cancel_scope.cancel()
