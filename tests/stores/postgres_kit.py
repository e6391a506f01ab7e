"""What tests of the PostgreSQL store share: a connection beside the store's, and a proxy that loses an answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import psycopg

from tenure.core import build
from tenure.errors import OutcomeUnknown, StoreUnavailable, StoreUnsafe
from tenure.store import Store
from tenure.testing.contract_case import claim

LONG_S = 60


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection outside any transaction."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


async def rows_of(url: str, statement: str, *values: object) -> list[Any]:
    """What a statement returns."""
    async with connected(url) as connection:
        cursor = await connection.execute(statement.encode(), values)
        return await cursor.fetchall() if cursor.description else []


async def until(url: str, statement: str, wanted: object, *values: object) -> None:
    """Wait until a statement's first value is the one that is wanted."""
    with anyio.fail_after(60):
        while (await rows_of(url, statement, *values) or [(None,)])[0][0] != wanted:  # noqa: ASYNC110 - it is the server's
            await anyio.sleep(0.02)


async def eventually(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again while there is no answer."""
    with anyio.fail_after(LONG_S):
        while True:
            try:
                return await ask()
            except (StoreUnavailable, OutcomeUnknown, StoreUnsafe):
                await anyio.sleep(0.05)


async def begun(store: Store, name: str) -> Any:
    """The record of a run that was created and claimed."""
    await store.commit(build.create(run=name, kind="k", value=1))
    answer = await store.commit(claim(name, ttl_ms=60_000))
    assert answer.run is not None
    return answer.run


class Proxy:
    """Stands before a server; once it meets `word` in what a client says, it lets it pass or not, and hangs up.

    One that `stalls` says nothing more instead, and takes `word` in every connection.
    """

    def __init__(self, url: str, *, word: bytes, passes: bool, stalls: bool = False) -> None:
        self._server = urlsplit(url)
        self.word = word
        self._passes = passes
        self._stalls = stalls
        self.met = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The server's URL through this proxy."""
        return self._server._replace(netloc=f"{self._server.username}@127.0.0.1:{self._port}").geturl()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listening.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """End every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        back = asyncio.create_task(_copy(server_reader, writer))
        try:
            while data := await reader.read(65536):
                if (self._stalls or not self.met) and self.word in data:
                    self.met += 1
                    if self._stalls:
                        await reader.read()  # until the client goes
                        return
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    if self._passes:
                        server_writer.write(data)
                        await server_writer.drain()
                        await server_reader.read(1)  # the server has answered: it is done
                    return
                server_writer.write(data)
        except (OSError, asyncio.CancelledError):
            return
        finally:
            back.cancel()
            for end in (server_writer, writer):
                end.close()
                with suppress(OSError, asyncio.CancelledError):
                    await end.wait_closed()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
