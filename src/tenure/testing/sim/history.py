"""Plays one story: real workers, ledgers, leases, heartbeats and agents on the simulated loop, and what befalls them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from tenure.active import ActiveRun
from tenure.agent.agent import Agent
from tenure.agent.model import ModelReply, ModelRequest
from tenure.agent.tool import tool
from tenure.app import App
from tenure.core.messages import ToolCall, Usage, assistant
from tenure.core.rules import OPEN
from tenure.core.run import Answer, Change, Row, Run, Status
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
from tenure.heartbeat import Heartbeat, Pulse
from tenure.ledger import Ledger
from tenure.retry import TryLater
from tenure.store import Store
from tenure.testing.linear import NEVER
from tenure.testing.sim.loop import PROCESS, Process, SimClock, SimLoop
from tenure.testing.sim.network import Network, SimStore
from tenure.testing.sim.server import Decided, SimServer
from tenure.testing.sim.story import Blow, Story, Wish
from tenure.worker import Worker

START_MS = 1_700_000_000_000
PATIENCE_S = 400.0
STEPS = 3
TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A call of the user's code: that it began, in which process, for which call of which run."""

    at_s: float
    process: str
    run: str
    name: str
    attempt: int


@dataclass(slots=True, kw_only=True)
class Asked:
    """One change as its sender saw it: when it was sent, when it was answered, with what (None: no answer)."""

    sent_s: float
    process: str
    change: Change
    told_s: float = NEVER
    answer: Answer | None = None


@dataclass(slots=True, kw_only=True)
class Played:
    """All that one history left behind."""

    story: Story
    decided: list[Decided] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, tuple[Run | None, list[Row]]] = field(default_factory=dict)
    lost_s: list[tuple[float, float]] = field(default_factory=list)
    ended_s: float = 0.0
    broken: str = ""


class LoopHeart:
    """The heartbeat as a task of the simulated loop: a stopped process stops it, too."""

    def __init__(self, store: Store, pulse: Pulse, clock: Any, *, ttl_ms: int, name: str) -> None:
        self._beats = Heartbeat(store, pulse, clock, ttl_ms=ttl_ms)
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._beats.serve(), name=f"heart of {self._name}")

    def hurry(self) -> None:
        """Renew at once."""
        self._beats.hurry()

    async def aclose(self) -> None:
        """End the task."""
        self._beats.stop()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class SimLedger(Ledger):
    """A ledger whose heart beats on the simulated loop."""

    heart = LoopHeart


class NotedStore(SimStore):
    """A process's store, that notes what its sender was told."""

    notes: list[Asked]

    def beside(self) -> NotedStore:
        """Return another one with the same notes."""
        return noted(self._network, self._process, self.notes)

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change, and note it."""
        (note,) = self._sent([change])
        answer = await super().commit(change)
        note.told_s, note.answer = self._network.loop.now_s, answer
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, and note them."""
        notes = self._sent(changes)
        answers = await super().commit_many(changes)
        for note, answer in zip(notes, answers, strict=True):
            if isinstance(answer, Answer):
                note.told_s, note.answer = self._network.loop.now_s, answer
        return answers

    def _sent(self, changes: Sequence[Change]) -> list[Asked]:
        # Noted when it is sent: who is killed meanwhile notes nothing any more.
        now_s = self._network.loop.now_s
        notes = [Asked(sent_s=now_s, process=self._process.name, change=change) for change in changes]
        self.notes += notes
        return notes


def noted(network: Network, process: Process, notes: list[Asked]) -> NotedStore:
    """Return a store of a process that notes what it is told."""
    store = NotedStore(network, process, timeout_s=max(0.5, network.late_s / 2))
    store.notes = notes
    return store


class Cast:
    """The actors of one story, and the app that they run."""

    def __init__(self, loop: SimLoop, story: Story) -> None:
        self.loop = loop
        self.story = story
        self.drawn = random.Random(story.seed ^ 0x5EED)
        self.played = Played(story=story)
        server = Process(loop, "server")
        self.server = SimServer(loop, SimClock(loop, server, start_ms=START_MS))
        self.network = Network(
            loop=loop,
            server=self.server,
            drawn=self.drawn,
            lost=story.lost,
            doubled=story.doubled,
            late=story.late,
            late_s=story.late_s,
            delay_s=story.delay_s,
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
        process = Process(
            self.loop, f"w{number}.{self.lives[number]}", rate=rate, skew_s=self.drawn.uniform(-5, 5)
        )

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
                grace = {"grace": 2.0} if wish.then == "grace" else {}
                verb = ledger.evict if wish.then == "evict" else ledger.cancel
                with contextlib.suppress(RunClosed, RunConflict, NotAllowed, LeaseLost):
                    await verb(run_id, reason="the story", **grace)
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
            ToolCall(id=f"c{request.step}{n}", name="look", arguments={"run": request.run_id, "name": f"c{request.step}{n}"})
            for n in range(2)
        ]
        return ModelReply(message=assistant("", *calls), usage=Usage())


def play(story: Story, /) -> Played:
    """Play a story on a loop of its own and return what it left; the same story leaves the same."""
    with seeded(story.seed), quiet_logs():
        loop = SimLoop()
        try:
            cast = Cast(loop, story)
            loop.run_until_complete(cast.play())
            return cast.gather()
        finally:
            bury(loop)


def bury(loop: SimLoop) -> None:
    """End every task where it stands, as the end of the world would, and close the loop.

    Their `finally` blocks run here, where no loop runs and nothing can be sent, and not when memory is collected.
    """
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it was meant to be left
        with contextlib.suppress(BaseException):
            task.get_coro().close()  # type: ignore[union-attr]
    loop.close()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw what the code draws from `random` and `secrets` from the seed."""
    drawn = random.Random(seed)
    before, token_hex, randbits = random.getstate(), secrets.token_hex, secrets.randbits
    random.seed(seed)
    secrets.token_hex = lambda nbytes=None: f"{drawn.getrandbits(8 * (nbytes or 16)):0{2 * (nbytes or 16)}x}"
    secrets.randbits = drawn.getrandbits
    try:
        yield
    finally:
        random.setstate(before)
        secrets.token_hex, secrets.randbits = token_hex, randbits


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Let nothing be said: what would be worth a warning is what is simulated."""
    found = logging.getLogger("tenure")
    level = found.level
    found.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        found.setLevel(level)
