"""The actors of one story: real workers, ledgers, leases, heartbeats and agents, and what befalls them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from tenure.active import ActiveRun
from tenure.agent.agent import Agent
from tenure.agent.model import ModelReply, ModelRequest
from tenure.agent.tool import tool
from tenure.app import App
from tenure.core.messages import ToolCall, Usage, assistant
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
from tenure.retry import TryLater
from tenure.testing.sim.heart import SimLedger
from tenure.testing.sim.loop import PROCESS, Process, SimClock, SimLoop
from tenure.testing.sim.network import Network
from tenure.testing.sim.notes import Effect, Played, noted
from tenure.testing.sim.server import SimServer
from tenure.testing.sim.story import Blow, Story, Wish
from tenure.worker import Worker

START_MS = 1_700_000_000_000
PATIENCE_S = 400.0
STEPS = 3
TURNS = 3


class Cast:
    """The actors of one story, and the app that they run."""

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
        self.lives = [0] * story.workers
        self.workers: list[Process] = [self.hire(number) for number in range(story.workers)]
        self.processes: list[Process] = list(self.workers)

    def app(self) -> App:
        """Return the app of one process."""
        app = App()

        def note(run_id: str, name: str, attempt: int) -> None:
            process = PROCESS.get()
            name_of = process.name if process is not None else ""
            self.played.effects.append(
                Effect(at_s=self.loop.now_s, process=name_of, run=run_id, name=name, attempt=attempt)
            )

        async def work(run: ActiveRun[Any], name: str) -> str:
            note(run.id, f"step:{name}", run.attempt)
            await anyio.sleep(self.drawn.choice((0.0, 0.02, 0.3, self.story.ttl_s * 1.6)))
            # The second half of a longer step: nothing is written before it, so only the lease's own deadline stops it.
            run.check()
            note(run.id, f"half:{name}", run.attempt)
            return f"{run.id}/{name}"

        @app.kind("steps")
        async def steps(run: ActiveRun[int], count: int) -> list[str]:
            return [await run.step(f"s{n}", work, run, f"s{n}") for n in range(count)]

        @app.kind("fails", retries=1)
        async def fails(run: ActiveRun[int], count: int) -> None:
            for n in range(count):
                await run.step(f"s{n}", work, run, f"s{n}")
            message = "so it was ordered"
            raise ValueError(message)

        @app.kind("later")
        async def later(run: ActiveRun[int], count: int) -> list[str]:
            done = [await run.step("s0", work, run, "s0")]
            begun = await run.step("begun", self._now)
            if self.loop.now_s < begun + 1.5:
                raise TryLater(after=1.5)
            return [*done, *[await run.step(f"s{n}", work, run, f"s{n}") for n in range(1, count)]]

        @tool
        async def look(run: str, name: str) -> str:
            note(run, f"tool:{name}", 0)
            await anyio.sleep(self.drawn.choice((0.0, 0.02, 0.3)))
            return f"{run}/{name}"

        app.agent(Agent(SimModel(self, note), name="agent", tools=[look]))
        return app

    async def _now(self) -> float:
        return self.loop.now_s

    def hire(self, number: int) -> Process:
        """Start worker `number` in a new process."""
        self.lives[number] += 1
        rate = self.story.drift[number] if number < len(self.story.drift) else 1.0
        process = Process(self.loop, f"w{number}.{self.lives[number]}", rate=rate, skew_s=self.drawn.uniform(-5, 5))

        async def main() -> None:
            clock = SimClock(self.loop, process, start_ms=START_MS)
            app = self.app()
            while True:
                try:
                    async with (
                        noted(self.network, process, self.played.asked) as store,
                        SimLedger(store, owner=process.name, ttl=self.story.ttl_s, clock=clock) as ledger,
                    ):
                        await Worker(app, ledger, concurrency=3).run()
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
        number = blow.whom
        process = self.workers[number]
        match blow.what:
            case "kill":
                process.kill()
                await asyncio.sleep(blow.length)
                if self.workers[number] is process:
                    self.workers[number] = self.hire(number)
                    self.processes.append(self.workers[number])
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
        """Play the story to its end: every run has ended, or the patience has."""
        tasks = [asyncio.ensure_future(self.wish())]
        tasks += [asyncio.ensure_future(self.strike(blow)) for blow in self.story.blows]
        if any(blow.what == "failover" for blow in self.story.blows):
            tasks.append(asyncio.ensure_future(self._keep_images()))
        quiet_s = max([b.at_s + max(0.0, b.length if b.what != "step" else 0.0) for b in self.story.blows], default=0)
        while self.loop.now_s < PATIENCE_S:
            await asyncio.sleep(0.5)
            if self.loop.now_s > quiet_s and all(task.done() for task in tasks) and self._over():
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


class SimModel:
    """A model that asks for two tools side by side, twice, and answers then; it says when it is asked."""

    name = "sim"

    def __init__(self, cast: Cast, note: Any) -> None:
        self._cast = cast
        self._note = note

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return the answer of this step."""
        self._note(request.run_id, f"model:{request.step}", request.attempt)
        await anyio.sleep(self._cast.drawn.choice((0.01, 0.3, self._cast.story.ttl_s * 1.2)))
        if request.step >= TURNS:
            return ModelReply(message=assistant(f"{request.run_id} done"), usage=Usage())
        calls = [
            ToolCall(
                id=f"c{request.step}{n}", name="look", arguments={"run": request.run_id, "name": f"c{request.step}{n}"}
            )
            for n in range(2)
        ]
        return ModelReply(message=assistant("", *calls), usage=Usage())
