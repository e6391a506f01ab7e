"""Several workers on shared runs, a mix of blows that fall on whoever comes by, and the search for an order."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio

from tenure.core.rules import TERMINAL
from tenure.core.run import Status
from tenure.errors import TenureError
from tenure.ledger import Ledger
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos import noted
from tenure.testing.chaos.gate import Gate, Stand, gate
from tenure.testing.chaos.kinds import SERVERS, SHARED, Kind, Place, Played
from tenure.testing.chaos.noted import NotedStore
from tenure.testing.chaos.road import Break, Road, Trouble, road
from tenure.testing.chaos.stage import Forked
from tenure.testing.chaos.verdict import CALLS, judge
from tenure.testing.chaos.walk import AWAY, DONE
from tenure.testing.crashing import Point
from tenure.testing.models import CallLog

SERVE = "tenure.testing.chaos.serve"
WORKERS = 3
TTL_S = 1.0
MOVED_S = 4.0
LOOK_S = 0.05
PATIENCE_S = 90.0
DRAIN_S = 20.0
SAY_S = 1.0
SLEEPS = ("stop", str(Stand.INTERPRETER), str(Stand.LOOP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What befalls the worker that makes a call of a run, when it begins or is done; `late_s`: so much later."""

    run: str
    name: str
    mark: str
    how: str
    late_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Some runs by their kind, the blows that fall meanwhile, and when, how and for how long a worker's road breaks."""

    runs: dict[str, str]
    blows: tuple[Blow, ...]
    trouble: tuple[float, Break, float] | None

    def __str__(self) -> str:
        """Return it as words."""
        blows = ", ".join(f"{blow.how} at {blow.run} {blow.name} {blow.mark}" for blow in self.blows)
        return f"{len(self.runs)} runs; {blows}" + (f"; the road: {self.trouble[1]}" if self.trouble else "")


def draw(drawn: random.Random, *, roads: bool) -> History:
    """Return a history; at most two of the three workers sleep."""
    runs = {f"r{n}": drawn.choice(list(CALLS)) for n in range(drawn.choice((2, 2, 3)))}
    spots = [(run, call, mark) for run, kind in runs.items() for call in CALLS[kind] for mark in ("called", "returned")]
    hows = drawn.sample(SLEEPS, drawn.choice((0, 1, 1, 2))) + ["kill"] * drawn.choice((0, 1, 1, 2))
    blows = tuple(
        Blow(run=run, name=call, mark=mark, how=how, late_s=None if drawn.random() < 0.6 else drawn.uniform(0, 0.04))
        for how, (run, call, mark) in zip(hows or ["kill"], drawn.sample(spots, len(hows) or 1), strict=True)
    )
    trouble = (drawn.uniform(0, 0.4), drawn.choice(list(Break)), drawn.uniform(0.2, TTL_S * 1.5))
    return History(runs=runs, blows=blows, trouble=trouble if roads and drawn.random() < 0.5 else None)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The workers of one history; who is killed is replaced, who is frozen is woken when its runs have moved on."""

    place: Place
    ledger: Ledger
    history: History
    played: Played
    members: list[Forked] = field(default_factory=list)
    over: anyio.Event = field(default_factory=anyio.Event)

    async def member(self, url: str) -> None:
        """Keep one worker alive until the history is over."""
        while not self.over.is_set():
            process = await self._fork(url)
            if self.over.is_set():  # the others have been told already
                await process.send(signal.SIGTERM)
            while await process.still():
                self.played.counts["frozen"] += 1
                await self.moved()
                await process.send(signal.SIGCONT)
            code = await process.ended()
            # Who replaced a worker at the very end may not have come as far as to listen.
            if code not in (DONE, AWAY, -signal.SIGKILL) and not (self.over.is_set() and code == -signal.SIGTERM):
                self.played.violations.append(f"a worker ended with {code}: {process.errors}")
            self.played.counts["did not get through at its start"] += code == AWAY
            self.played.counts["killed"] += code == -signal.SIGKILL

    async def _fork(self, url: str) -> Forked:
        number = len(self.members) + 1
        folder = self.place.folder
        order = {"url": url, "namespace": self.place.namespace, "folder": str(folder), "ttl": TTL_S}
        order["name"] = f"w{number}"
        process = await self.place.stage.fork(f"{SERVE}:serve", order, errors=folder / f"errors.{number}")
        self.members.append(process)
        return process

    async def moved(self) -> None:
        """Return when a lease that stood still is over, and some run has changed hands or ended, if one does."""
        was = await self._tokens()
        await anyio.sleep(TTL_S + 0.1)
        with anyio.move_on_after(MOVED_S):
            while (now := await self._tokens()) == was and not all(status in TERMINAL for _, status in now):  # noqa: ASYNC110
                await anyio.sleep(LOOK_S)

    async def _tokens(self) -> list[tuple[int, Status]]:
        runs = [await self.ledger.store.load(run) for run in self.history.runs]
        return [(run.token, run.status) for run in runs if run is not None]

    async def hold_up(self, found: Gate) -> None:
        """Let who stands at a gate through when its runs have moved on."""
        await found.stood_at()
        self.played.counts["stalled"] += 1
        await self.moved()
        found.open()

    async def end(self) -> None:
        """Let all workers drain; who does not end is a violation."""
        self.over.set()
        with anyio.move_on_after(DRAIN_S) as patience:
            for process in self.members:
                await process.send(signal.SIGTERM)
            for process in self.members:
                await process.ended()
        if patience.cancelled_caught:
            await self._kill_who_stays()

    async def _kill_who_stays(self) -> None:
        staying = [process for process in self.members if process.code is None]
        for process in staying:
            await process.send(signal.SIGUSR1)
        await anyio.sleep(SAY_S)
        for process in staying:
            said = f"a worker did not drain within {DRAIN_S:.0f} s: {process.errors or 'it says nothing'}"
            self.played.violations.append(said)
            await process.send(signal.SIGKILL)


class Histories(Kind):
    """Three workers on two or three runs; what each was told is searched for an order that explains it."""

    name = "histories"
    stores = SHARED
    short, long = 40, 2_000
    batch, at_once = 20, 4
    works_in = (SERVE,)

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one history."""
        drawn = random.Random(f"{self.name}:{place.name}:{seed}")
        history = draw(drawn, roads=place.name in SERVERS)
        played = Played(note=str(history))
        store = NotedStore(open_store(place.url, namespace=place.namespace), place.folder)
        async with store, Ledger(cast("Store", store)) as ledger:
            fleet = Fleet(place=place, ledger=ledger, history=history, played=played)
            with ExitStack() as gates:
                stands = _lay_out(fleet, gates)
                if history.trouble is None:
                    await _play(fleet, place.url, stands, None)
                else:
                    async with road(place.url, drawn) as found:
                        await _play(fleet, found.url, stands, found)
            await _judge(fleet)
        return played


def _lay_out(fleet: Fleet, gates: ExitStack) -> list[Gate]:
    folder = fleet.place.folder
    (folder / "blows").mkdir()
    found = []
    for number, blow in enumerate(fleet.history.blows):
        own = folder / f"gate-{number}"
        said = {"how": blow.how, "late_s": blow.late_s, "gate": own.name}
        if blow.how in tuple(Stand):
            own.mkdir()
            found.append(gates.enter_context(gate(own)))
        (folder / "blows" / f"{blow.run}.{blow.name.replace(':', '-')}.{blow.mark}").write_text(json.dumps(said))
    return found


async def _play(fleet: Fleet, first_url: str, stands: list[Gate], broken: Road | None) -> None:
    for run, kind in fleet.history.runs.items():
        await fleet.ledger.submit(kind, run, id=run)
    async with anyio.create_task_group() as tasks, anyio.create_task_group() as members:
        for number in range(WORKERS):
            members.start_soon(fleet.member, fleet.place.url if number else first_url)
        for found in stands:
            tasks.start_soon(fleet.hold_up, found)
        if broken is not None:
            tasks.start_soon(_break, broken, fleet)
        with anyio.move_on_after(PATIENCE_S) as patience:
            for run in fleet.history.runs:
                with suppress(TenureError):  # how it ended is judged
                    await fleet.ledger.handle(run).result()
        if patience.cancelled_caught:
            fleet.played.violations.append(f"I11 it did not end within {PATIENCE_S:.0f} s")
        await fleet.end()
        tasks.cancel_scope.cancel()


async def _break(found: Road, fleet: Fleet) -> None:
    assert fleet.history.trouble is not None
    after_s, how, length_s = fleet.history.trouble
    await anyio.sleep(after_s)
    somewhere = Point.parse("write end before")
    found.arm(Trouble(point=somewhere, how=how, length_s=length_s, rival=False))
    await anyio.sleep_forever()


async def _judge(fleet: Fleet) -> None:
    folder = fleet.place.folder
    lines, asked = CallLog(folder / "calls.log").read(), noted.read(folder)
    counts: Counter[str] = fleet.played.counts
    counts.update(f"hit: {line['how']}" for line in lines if line["what"] == "hit")
    for run_id in fleet.history.runs:
        run = await fleet.ledger.store.load(run_id)
        rows = await fleet.ledger.store.tail(run_id, limit=1000)
        try:
            result: Any = await fleet.ledger.handle(run_id).result(timeout=DRAIN_S)
        except (TenureError, TimeoutError) as error:
            result = repr(error)
        own = [one for one in asked if one.change.run == run_id]
        about = [line for line in lines if line.get("run") == run_id]
        wrong = judge(run, rows, result, lines=about, asked=own, counts=counts)
        fleet.played.violations += [f"{run_id}: {line}" for line in wrong]
