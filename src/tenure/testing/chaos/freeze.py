"""A process that stands still past its lease, frozen or stalled, while another goes on with its run."""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from tenure.testing.chaos.gate import Stand, gate
from tenure.testing.chaos.kinds import SHARED, Kind, Place, Played
from tenure.testing.chaos.run import RUN, WALK, Walk, walking
from tenure.testing.chaos.stage import Forked
from tenure.testing.chaos.walk import AWAY, DONE, LOST
from tenure.testing.crashing import Point, Side, points

TTLS_S = (1.0, 4.0, 16.0)
PATIENCE_S = 1.5
LOOK_S = 0.03
HOLDS_ON_S = 10.0
"""How long a run may stand still because its holder sleeps inside a transaction of a file."""
POINTS = [point for point in points() if point.side in (Side.BEFORE, Side.AFTER) or not point.write]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Where a process stands still, how, and whether it wakes while the other is still at work."""

    point: Point
    how: str
    early: bool

    def __str__(self) -> str:
        """Return it as words."""
        return f"{self.how} at {self.point}, wakes {'early' if self.early else 'late'}"


async def sleep_through(walk: Walk, sleep: Sleep, process: Forked, wake: Callable[[], Awaitable[None]]) -> None:
    """Let another process take over from one that stands still, and wake it; both have to end as they should."""
    counts, held = walk.played.counts, sleep.how != Stand.LOOP
    # Who blocks its loop alone keeps its run: its heartbeat goes on.
    await (_lease_over(walk) if held else anyio.sleep(PATIENCE_S))
    async with walk.place.stage.room:
        other = await walk.fork()
        with anyio.move_on_after(HOLDS_ON_S if held else PATIENCE_S):
            await (_moved(walk) if sleep.early and held else other.ended())
    counts["woke while the other was at work"] += other.code is None
    await wake()
    # Who sleeps inside a transaction of a file keeps everybody out of it.
    away = {AWAY} if walk.place.name == "sqlite" else set[int]()
    if await walk.ends(other, {DONE} | away, "the other") != DONE:
        counts["slept inside a transaction"] += 1
        await walk.recover()
    code = await walk.ends(process, {DONE, LOST}, "who stood still")
    counts["was told that its lease is lost"] += code == LOST
    counts["found its run ended, or kept it"] += code == DONE


async def _lease_over(walk: Walk) -> None:
    store = walk.ledger.store
    while (run := await store.load(RUN)) is not None and run.nonce:
        left_ms = run.lease_until_ms - (await store.facts()).now_ms
        if left_ms <= 0:
            return
        await anyio.sleep(max(LOOK_S, left_ms / 1000))


async def _moved(walk: Walk) -> None:
    store = walk.ledger.store
    was = await store.load(RUN)
    while was is not None and (run := await store.load(RUN)) is not None and run.token == was.token:  # noqa: ASYNC110
        await anyio.sleep(LOOK_S)


Stands = Callable[[Walk, Sleep, float], Awaitable[bool]]
"""Lets a process come to its point with a lease of so many seconds; False if it lost that before."""


async def _until_it_stands(place: Place, words: str, sleep: Sleep, stands: Stands) -> Played:
    played = Played(note=str(sleep))
    for turn, ttl_s in enumerate(TTLS_S):
        async with walking(place, words, turn=turn) as walk:
            walk.played = played
            stood = await stands(walk, sleep, ttl_s)
            if not stood:
                # On a machine this busy a lease can be over before the point is reached.
                played.counts["lost the lease before its point"] += 1
                await walk.recover()
            await walk.judge(None)
            if stood:
                break
    return played


class Freeze(Kind):
    """A process that is stopped with SIGSTOP at a point until another has its run, and is let go on."""

    name = "freeze"
    stores = SHARED
    short, long = 120, 2_000
    batch, at_once = 40, 20
    works_in = (WALK,)

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one history."""
        words = f"{self.name}:{place.name}:{seed}"
        drawn = random.Random(words)
        sleep = Sleep(point=drawn.choice(POINTS), how="stop", early=drawn.random() < 0.5)
        return await _until_it_stands(place, words, sleep, self._stands)

    async def _stands(self, walk: Walk, sleep: Sleep, ttl_s: float) -> bool:
        async with walk.place.stage.room:
            process = await walk.fork(point=str(sleep.point), blow="stop", inside=0.5, ttl=ttl_s)
            if not await process.still():
                await walk.ends(process, {LOST}, "who should have been frozen")
                return False
        walk.played.counts["frozen"] += 1
        await sleep_through(walk, sleep, process, lambda: process.send(signal.SIGCONT))
        return True


class Stall(Kind):
    """A process whose loop, or whose whole interpreter, stands still in a call that does not return."""

    name = "stall"
    stores = SHARED
    short, long = 20, 400
    batch, at_once = 20, 20
    works_in = (WALK,)

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one history."""
        words = f"{self.name}:{place.name}:{seed}"
        drawn = random.Random(words)
        how = drawn.choice((Stand.LOOP, Stand.INTERPRETER, Stand.INTERPRETER))
        sleep = Sleep(point=drawn.choice(POINTS), how=how, early=drawn.random() < 0.5)
        return await _until_it_stands(place, words, sleep, self._stands)

    async def _stands(self, walk: Walk, sleep: Sleep, ttl_s: float) -> bool:
        with gate(walk.folder) as found:
            async with walk.place.stage.room:
                process = await walk.fork(point=str(sleep.point), blow=str(sleep.how), inside=0.5, ttl=ttl_s)
                if not await found.reached(process):
                    await walk.ends(process, {LOST}, "who should have stood still")
                    return False
            walk.played.counts[f"stalled: {sleep.how}"] += 1

            async def wake() -> None:
                found.open()

            await sleep_through(walk, sleep, process, wake)
        return True
