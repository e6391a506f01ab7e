"""What a network does to a process: its road to the store breaks at a point of its run, in one of many ways."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tenure.testing.chaos.gate import Stand, gate
from tenure.testing.chaos.kinds import SERVERS, Kind, Place, Played
from tenure.testing.chaos.run import WALK, Walk, walking
from tenure.testing.chaos.walk import AWAY, DONE, LOST
from tenure.testing.crashing import Point, Side, points

CHUNK = 1 << 16
TTLS_S = (2.0, 8.0, 32.0)
RESET = struct.pack("ii", 1, 0)
POINTS = [point for point in points() if point.side is Side.BEFORE]


class Break(StrEnum):
    """How the road breaks at the next request of the process."""

    RESET = "reset"
    """The connection is reset, and nothing of the request arrives."""
    HALF = "half"
    """A part of the request arrives, then the connection is reset."""
    LOST = "lost reply"
    """The request arrives, its reply does not: the connection is reset."""
    REFUSED = "refused"
    """Reset, and nobody listens for a while."""
    HOLE = "black hole"
    """Nothing gets through in either direction for a while, and nothing is closed; then what was sent arrives."""
    OPEN = "half-open"
    """The server's side is closed, and the process is not told: what it sends goes nowhere, for a while."""
    SLOW = "slow"
    """What is sent comes in crumbs, in both directions, for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Where the road breaks, how, for how long, and whether another process waits for the run meanwhile."""

    point: Point
    how: Break
    length_s: float
    rival: bool

    def __str__(self) -> str:
        """Return it as words."""
        return f"{self.how} for {self.length_s:.2f} s before {self.point}" + ", with a rival" * self.rival


class Road:
    """A proxy before a server; `url` leads over it."""

    def __init__(self, url: str, drawn: random.Random) -> None:
        self._parts = urlsplit(url)
        self._drawn = drawn
        self._armed: Trouble | None = None
        self._broken: Trouble | None = None
        self._mended = asyncio.Event()
        self._mended.set()
        self.met = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> asyncio.Server:
        """Begin to listen, and say where by `url`."""
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        self.url = urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))
        return server

    def arm(self, trouble: Trouble) -> None:
        """Break at the next request."""
        self._armed = trouble

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken is not None and self._broken.how in (Break.REFUSED, Break.HOLE):
            if self._broken.how is Break.REFUSED:
                _reset(writer)
                return
            await self._mended.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        except OSError:
            _reset(writer)
            return
        for pump in (self._forth(reader, far_writer, writer), self._back(far_reader, writer, far_writer)):
            task = asyncio.create_task(pump)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _forth(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while sent := await reader.read(CHUNK):
                if self._armed is not None:
                    trouble, self._armed = self._armed, None
                    self.met = True
                    if self._breaks(trouble, sent, writer, back):
                        return
                await self._send(sent, writer)
        writer.close()

    def _breaks(self, trouble: Trouble, sent: bytes, writer: asyncio.StreamWriter, back: asyncio.StreamWriter) -> bool:
        """Break the road; returns whether this connection is over."""
        if trouble.how in (Break.RESET, Break.HALF, Break.REFUSED):
            if trouble.how is Break.HALF:
                writer.write(sent[: self._drawn.randrange(1, max(2, len(sent)))])
            writer.close()
            _reset(back)
        elif trouble.how is Break.LOST:
            writer.write(sent)
        elif trouble.how is Break.OPEN:
            writer.close()
        self._broken = trouble
        if trouble.how in (Break.HOLE, Break.OPEN, Break.REFUSED, Break.SLOW):
            self._mended.clear()
            asyncio.get_running_loop().call_later(trouble.length_s, self._mend)
        return trouble.how not in (Break.HOLE, Break.SLOW, Break.LOST)

    def _mend(self) -> None:
        self._broken = None
        self._mended.set()

    async def _back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forth: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while sent := await reader.read(CHUNK):
                if self._broken is not None and self._broken.how is Break.LOST:
                    self._broken = None
                    _reset(writer)
                    forth.close()
                    return
                await self._send(sent, writer)
        if self._broken is not None and self._broken.how is Break.OPEN:
            await self._mended.wait()  # until then nobody tells the process
            _reset(writer)
        writer.close()

    async def _send(self, sent: bytes, writer: asyncio.StreamWriter) -> None:
        if self._broken is not None and self._broken.how is Break.HOLE:
            await self._mended.wait()
        while self._broken is not None and self._broken.how is Break.SLOW and sent:
            if writer.is_closing():
                return
            size = self._drawn.randrange(1, 40)
            writer.write(sent[:size])
            sent = sent[size:]
            await asyncio.sleep(self._drawn.uniform(0.001, 0.01))
        if not writer.is_closing():
            writer.write(sent)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    own: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


@asynccontextmanager
async def road(url: str, drawn: random.Random) -> AsyncIterator[Road]:
    """Build a road to the server of a URL."""
    found = Road(url, drawn)
    server = await found.listen()
    try:
        yield found
    finally:
        server.close()
        for task in found.tasks:
            task.cancel()
        await asyncio.gather(*found.tasks, return_exceptions=True)


class Roads(Kind):
    """A process whose road to the store breaks at a point; what it cannot end itself, another one recovers."""

    name = "road"
    stores = SERVERS
    short, long = 200, 5_000
    batch, at_once = 50, 12
    works_in = (WALK,)

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one history."""
        words = f"{self.name}:{place.name}:{seed}"
        drawn = random.Random(words)
        trouble = Trouble(
            point=drawn.choice(POINTS),
            how=drawn.choice([*Break, Break.HOLE, Break.OPEN]),
            length_s=drawn.choice((0.2, 0.7, TTLS_S[0] * 1.3)),
            rival=drawn.random() < 0.3,
        )
        played = Played(note=str(trouble))
        for turn, ttl_s in enumerate(TTLS_S):
            async with walking(place, words, turn=turn) as walk, road(place.url, drawn) as found:
                walk.played = played
                reached = await self._cut_off(walk, found, trouble, ttl_s)
                await walk.judge(None)
            if reached:
                break
            # On a machine this busy a lease can be over before the point is reached.
            played.counts["lost the lease before its point"] += 1
        return played

    async def _cut_off(self, walk: Walk, found: Road, trouble: Trouble, ttl_s: float) -> bool:
        counts = walk.played.counts
        with gate(walk.folder) as stands:
            order: dict[str, Any] = {"point": str(trouble.point), "blow": str(Stand.TASK), "inside": 0.5, "ttl": ttl_s}
            async with walk.place.stage.room:
                process = await walk.fork(url=found.url, **order)
                reached = await stands.reached(process)
            rival = None
            if reached:
                found.arm(trouble)
                rival = await walk.fork() if trouble.rival else None
                stands.open()
            code = await walk.ends(process, {DONE, LOST, AWAY}, "who was cut off")
        counts[f"broken: {trouble.how}"] += found.met
        counts["got through"] += code == DONE
        counts["lost its lease"] += code == LOST
        counts["gave up"] += code == AWAY
        if rival is not None:
            await walk.ends(rival, {DONE}, "the rival")
        elif code != DONE:
            await walk.recover()
        return reached
