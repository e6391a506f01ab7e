"""How runs are killed and recovered on one store: by processes, and on memory by a fuse."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import anyio

from crash_tally import MEMORY, Tally
from evidence import Place
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.core import build
from tenure.core.run import How, Status
from tenure.errors import RunNotFound, TenureError
from tenure.ledger import Ledger
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.crash_stage import Order, Stage
from tenure.testing.crashing import DIED, PROMPT, DyingStore, Fuse, Point, account, crash, violations, walker
from tenure.testing.models import CallLog

BATCH = 16
WIDTH = 2
SHORT_TTL_S = 2.0
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One run and where its processes die: first at `point`, then at `again` where the recovery dies as well.

    `expires`: nobody forfeits the grant of the dead, the lease runs out. `swept`: recovered with others by a sweep.
    """

    run: str
    point: Point
    again: Point | None
    inside: float
    expires: bool
    swept: bool

    @property
    def died(self) -> list[Point]:
        """Return the points."""
        return [self.point] if self.again is None else [self.point, self.again]


async def server_lane(place: Place, shots: Sequence[Shot], tally: Tally, seed: str) -> None:
    """Kill and recover these runs in processes of their own."""
    namespace = f"crash-{seed}"
    async with AsyncExitStack() as opened:
        stage = await opened.enter_async_context(Stage())
        store = await opened.enter_async_context(open_store(place.url, namespace=namespace))
        ledger = await opened.enter_async_context(Ledger(store))
        for batch in _batches(shots):
            log = place.folder / f"{batch[0].run}.log"
            order = Order(url=place.url, namespace=namespace, log=str(log), seed=seed)
            found = _Batch(store=place.name, shots=batch, order=order, stage=stage, ledger=ledger, tally=tally)
            await found.play()
            tally.progress()


def _batches(shots: Sequence[Shot]) -> Iterator[list[Shot]]:
    for begin in range(0, len(shots), BATCH):
        yield list(shots[begin : begin + BATCH])


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A few runs on their way through their deaths; `order` says where, and is told who."""

    store: str
    shots: list[Shot]
    order: Order
    stage: Stage
    ledger: Ledger
    tally: Tally

    async def play(self) -> None:
        await self._kill()
        await self._kill_again()
        await self._recover()
        await check(self.ledger, self.store, self.shots, CallLog(self.order.log), self.tally)

    async def _kill(self) -> None:
        codes = await self.stage.play([self._crash(shot, shot.point) for shot in self.shots], width=WIDTH)
        late = [n for n, shot in enumerate(self.shots) if shot.expires and codes[n] != DIED]
        for n in late:
            # On a machine this busy a lease of two seconds can be over before the point is reached.
            self.tally.missed += 1
            self.shots[n] = replace(self.shots[n], run=f"{self.shots[n].run}b", expires=False)
        if late:
            anew = [self._crash(self.shots[n], self.shots[n].point) for n in late]
            for n, code in zip(late, await self.stage.play(anew, width=WIDTH), strict=True):
                codes[n] = code
        for shot, code in zip(self.shots, codes, strict=True):
            self._judge(shot, shot.point, code, recovering=False)
        await bury(self.ledger, [shot for shot in self.shots if not shot.expires])

    async def _kill_again(self) -> None:
        shots = [shot for shot in self.shots if shot.again is not None]
        codes = await self.stage.play([self._crash(shot, shot.again) for shot in shots], width=WIDTH)
        for shot, code in zip(shots, codes, strict=True):
            if shot.again is not None:
                self._judge(shot, shot.again, code, recovering=True)
        await bury(self.ledger, shots)

    async def _recover(self) -> None:
        # A sweep takes what is due of everybody's, and the others find those runs held or ended: the claim decides.
        orders = [self.order] if any(shot.swept for shot in self.shots) else []
        alone = [shot for shot in self.shots if not shot.swept or shot.expires]
        orders += [replace(self.order, run=shot.run) for shot in alone]
        codes = await self.stage.play(orders, width=WIDTH + 1)
        for order, code in zip(orders, codes, strict=True):
            if code:
                self.tally.violations.append(f"{order.run or 'the sweep'} of {self.store}: recovery ended with {code}")
        # What the sweep could not see, because it died before it was there.
        unseen = [shot for shot in self.shots if shot not in alone and not await _ended(self.ledger, shot.run)]
        for shot, code in zip(
            unseen, await self.stage.play([replace(self.order, run=shot.run) for shot in unseen]), strict=True
        ):
            if code:
                self.tally.violations.append(f"{shot.run}: recovery ended with {code}")

    def _crash(self, shot: Shot, point: Point | None) -> Order:
        ttl = SHORT_TTL_S if shot.expires else 30.0
        return replace(self.order, run=shot.run, point=str(point), inside=shot.inside, ttl=ttl)

    def _judge(self, shot: Shot, point: Point, code: int, *, recovering: bool) -> None:
        if code == DIED:
            self.tally.hit(self.store, point, recovering=recovering)
        else:
            self.tally.violations.append(f"{shot.run}: {point} was not hit, the process ended with {code}")


async def _ended(ledger: Ledger, run_id: str) -> bool:
    try:
        return (await ledger.load(run_id)).status is Status.COMPLETED
    except RunNotFound:
        return False


async def bury(ledger: Ledger, shots: Sequence[Shot]) -> None:
    """Forfeit the grants of the dead, as a supervisor does that saw them die."""
    for shot in shots:
        run = await ledger.store.load(shot.run)
        if run is not None and run.status is Status.RUNNING:
            await ledger.ask(build.end(run=run.id, how=How.FORFEIT, token=run.token, nonce=run.nonce))


async def check(ledger: Ledger, store: str, shots: Sequence[Shot], log: CallLog, tally: Tally) -> None:
    """Hold the journal of each run against its call log."""
    lines = log.read()
    for shot in shots:
        try:
            run = await ledger.load(shot.run)
            rows = await ledger.store.tail(run.id, limit=1000)
            result: Any = await ledger.handle(run.id).result(timeout=PATIENCE_S)
            calls = account(rows, [line for line in lines if line["run"] == shot.run])
        except (TenureError, TimeoutError) as error:
            tally.violations.append(f"{shot.run} after {' and '.join(map(str, shot.died))}: {error!r}")
            continue
        found = violations(run, rows, result, calls, shot.died)
        tally.violations += [f"{shot.run} after {' and '.join(map(str, shot.died))}: {line}" for line in found]
        tally.runs[store] += 1
        tally.calls["made"] += len(calls.made)
        tally.calls["repeated"] += len(calls.repeated)
        for name in calls.again:
            tally.calls[f"{name.partition(':')[0]} again"] += 1


async def memory_lane(folder: Path, shots: Sequence[Shot], tally: Tally, seed: str) -> None:
    """Cut these runs off from a memory store at their points, and recover them by a new ledger on the same store."""
    logging.getLogger("tenure").setLevel(logging.ERROR)  # a ledger that is cut off says so, each time
    log = CallLog(folder / "memory.log")
    async with open_store(f"memory://crash-{seed}") as store:
        for shot in shots:
            with anyio.fail_after(PATIENCE_S):
                await _burn(store, log, shot, seed)
            tally.hit(MEMORY, shot.point, recovering=False)
            async with open_store(f"memory://crash-{seed}") as later, Ledger(later) as ledger:
                await bury(ledger, [shot])
                agent = CheckpointedAgent(walker(log, seed=seed), ledger)
                try:
                    if shot.swept:
                        await agent.recover_all()
                    await agent.run(PROMPT, id=shot.run)
                except TenureError as error:
                    tally.violations.append(f"{shot.run} after {shot.point}: recovery ended with {error!r}")
            tally.progress()
        async with Ledger(store) as ledger:
            await check(ledger, MEMORY, shots, log, tally)


async def _burn(store: Store, log: CallLog, shot: Shot, seed: str) -> None:
    burnt = anyio.Event()

    async def blow(code: int) -> NoReturn:
        if code == DIED:
            dying.down = True  # from here on nothing of this ledger reaches the store, its heartbeat included
            burnt.set()
        await anyio.sleep_forever()
        raise AssertionError

    dying = DyingStore(store, Fuse(run_id=shot.run, point=shot.point, blow=blow))

    async def begin() -> None:
        await crash(dying, log, seed=seed)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin)
        await burnt.wait()
        tasks.cancel_scope.cancel()
