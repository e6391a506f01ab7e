"""The actors of one story: real workers, ledgers, leases, heartbeats and agents, and what befalls them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from tenure.core.rules import OPEN
from tenure.core.run import Status
from tenure.errors import (
    LeaseLost,
    NotAllowed,
    OutcomeUnknown,
    RunCancelled,
    RunClosed,
    RunConflict,
    RunFailed,
    RunNotFound,
    RunQuarantined,
    StoreUnavailable,
    TenureError,
)
from tenure.ledger import Ledger
from tenure.testing.sim.acts import STEPS, acts
from tenure.testing.sim.heart import SimLedger
from tenure.testing.sim.loop import Process, SimClock, SimLoop
from tenure.testing.sim.network import Network
from tenure.testing.sim.notes import Played, noted
from tenure.testing.sim.server import SimServer
from tenure.testing.sim.story import Blow, Story, Wish
from tenure.worker import Worker

START_MS = 1_700_000_000_000
PATIENCE_S = 400.0


class Cast:
    """The actors of one story."""

    def __init__(self, loop: SimLoop, story: Story) -> None:
        self.loop = loop
        self.story = story
        self.drawn = random.Random(story.seed ^ 0x5EED)  # noqa: S311 - a seed, not a secret
        self.played = Played(story=story)
        server = Process(loop, "server")
        self.server = SimServer(loop, SimClock(loop, server, start_ms=START_MS))
        self.network = Network(
            loop=loop,
            server=self.server,
            drawn=self.drawn,
            road=story.road,
        )
        self.quiet_s = 0.0
        self.lives = [0] * story.workers
        self.workers: list[Process] = [self.hire(number) for number in range(story.workers)]

    def hire(self, number: int) -> Process:
        """Start worker `number` in a new process."""
        self.lives[number] += 1
        rate = self.story.drift[number] if number < len(self.story.drift) else 1.0
        name, skew_s = f"w{number}.{self.lives[number]}", self.drawn.uniform(-5, 5)
        process = Process(self.loop, name, cast=self, rate=rate, skew_s=skew_s)

        async def main() -> None:
            clock = SimClock(self.loop, process, start_ms=START_MS)
            while True:
                try:
                    async with (
                        noted(self.network, process, self.played.asked) as store,
                        SimLedger(store, owner=process.name, ttl=self.story.ttl_s, clock=clock) as ledger,
                    ):
                        await Worker(acts(), ledger, concurrency=3).run()
                except TenureError:
                    await anyio.sleep(0.5)

        process.start(main)
        return process

    async def wish(self) -> None:
        """Submit the story's runs from one process, and do to them what the story says."""
        process = Process(self.loop, "client")
        clock = SimClock(self.loop, process, start_ms=START_MS)

        async def main() -> None:
            store = noted(self.network, process, self.played.asked)
            ledger = SimLedger(store, owner=process.name, ttl=self.story.ttl_s, clock=clock)
            await self._insist(ledger.__aenter__)
            async with anyio.create_task_group() as tasks:
                for number, wish in enumerate(self.story.wishes):
                    tasks.start_soon(self._wish, ledger, f"r{number}", wish)

        await process.start(main)

    async def _wish(self, ledger: Ledger, run_id: str, wish: Wish) -> None:
        await anyio.sleep(wish.at_s)
        value: Any = run_id if wish.kind == "agent" else STEPS
        meant = wish.then

        async def once() -> None:
            nonlocal meant
            handle = await ledger.submit(wish.kind, value, id=run_id)
            if meant:
                meant = ""
                await anyio.sleep(wish.after_s)
                with contextlib.suppress(RunClosed, RunConflict, NotAllowed, LeaseLost):
                    if wish.then == "evict":
                        await ledger.evict(run_id, reason="the story")
                    else:
                        await ledger.cancel(run_id, reason="the story", grace=2.0 if wish.then == "grace" else None)
            with contextlib.suppress(RunFailed, RunCancelled, RunQuarantined):
                self.played.results[run_id] = await handle.result()

        await self._insist(once)

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
            except (StoreUnavailable, OutcomeUnknown, RunNotFound):
                # Not found: a promotion has forgotten it, and who wants it submits it again.
                await anyio.sleep(0.5)
            else:
                return

    async def strike(self, blow: Blow) -> None:
        """Let one fault happen, and end."""
        await asyncio.sleep(blow.at_s)
        self.played.fell.append(blow)
        lasts_s = blow.length if blow.what != "step" else 0.0
        self.quiet_s = max(self.quiet_s, self.loop.now_s + lasts_s)
        number = blow.whom
        process = self.workers[number]
        match blow.what:
            case "kill":
                process.kill()
                await asyncio.sleep(blow.length)
                if self.workers[number] is process:
                    self.workers[number] = self.hire(number)
            case "stop":
                process.stop()
                await asyncio.sleep(blow.length)
                process.go_on()
            case "cut":
                self.network.cut[process.name] = self.loop.now_s + blow.length
            case "outage":
                self.network.down_until_s = self.loop.now_s + blow.length
            case "restart":
                self.network.down_until_s = self.loop.now_s + blow.length
                await asyncio.sleep(blow.length)
                self.server.turn()
            case "failover":
                self.network.down_until_s = max(self.network.down_until_s, self.loop.now_s + 0.2)
                self.server.turn(lost_s=blow.length)
            case "step":
                self.server.step_ms += int(blow.length)
            case _:
                raise ValueError(blow.what)

    async def play(self) -> None:
        """Play the story to its end: every run has ended and every blow that fell, or the patience has.

        A blow that would fall later has nothing to fall on, and who was stopped is let go on before the end.
        """
        tasks = [asyncio.ensure_future(self.wish())]
        tasks += [asyncio.ensure_future(self.strike(blow)) for blow in self.story.blows]
        if any(blow.what == "failover" for blow in self.story.blows):
            tasks.append(asyncio.ensure_future(self._keep_images()))
        while self.loop.now_s < PATIENCE_S:
            await asyncio.sleep(0.5)
            if tasks[0].done() and self.loop.now_s > self.quiet_s + 0.5 and self._over():
                break
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.played.broken = self.played.broken or repr(error)
        self.played.ended_s = self.loop.now_s

    def _over(self) -> bool:
        shelves = self.server.space.shelves
        runs = [shelves.get(f"r{n}") for n in range(len(self.story.wishes))]
        # Who submitted a run that is gone has been told of its end, before a promotion forgot it.
        return all(
            shelf is None or shelf.run.status not in OPEN or shelf.run.status is Status.QUARANTINED for shelf in runs
        )

    async def _keep_images(self) -> None:
        last_s = max(blow.at_s for blow in self.story.blows if blow.what == "failover")
        while self.loop.now_s <= last_s:
            self.server.keep_image()
            await asyncio.sleep(0.05)

    def gather(self) -> Played:
        """Return what is left when nobody moves any more."""
        self.played.decided = self.server.decided
        self.played.lost_s = self.server.history.lost_s
        for number in range(len(self.story.wishes)):
            shelf = self.server.space.shelves.get(f"r{number}")
            self.played.ends[f"r{number}"] = (shelf.run, list(shelf.rows)) if shelf is not None else (None, [])
        return self.played
