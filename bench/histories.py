"""Let workers die and sleep while they work on shared runs, and hold what they were told against what is stored.

    python bench/histories.py [--histories 200] [--seed 1] [--store all|sqlite,valkey9|URL] [--record]

A history is two or three runs of a fleet of three or four worker processes (ttl 1 s), and what befalls the workers that
hold them: kill -9, SIGSTOP until the lease is over and SIGCONT, or both, each at a call that the seed draws. Several
histories share one fleet, so a blow may hit runs of others too. Exits 1 if a stale write landed, a run was lost, a
result is not the one that was first told of, or fewer histories were played than asked for.
"""

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from evidence import STORES, Place, places, played, record, versions
from history_fleet import Blow, Fleet, Kind, fleet
from history_verdict import CALLS, judge
from tenure import Ledger, TenureError, open_store

AT_ONCE = 4
FLEET_HISTORIES = 25
LANES = 2
PATIENCE_S = 120.0
MODES = {"kill": (Kind.KILL,), "freeze": (Kind.FREEZE,), "both": (Kind.KILL, Kind.FREEZE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Some runs, by kind, and the blows that fall while they are worked on."""

    name: str
    mode: str
    runs: dict[str, str]
    blows: tuple[Blow, ...]


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen so far."""

    asked: int
    seed: int
    played: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)

    def progress(self) -> None:
        """Say how far it is."""
        took_s = time.monotonic() - self.begun_s
        print(
            f"{self.played.total()} of {self.asked} histories, {len(self.wrong)} violations, {took_s:.0f} s", flush=True
        )

    def show(self) -> bool:
        """Print all that was seen; whether the bar holds."""
        stores = sorted({store for store, _ in self.played})
        print(f"{'':10}" + "".join(f"{store:>10}" for store in stores) + f"{'all':>10}")
        for mode in MODES:
            row = [self.played[store, mode] for store in stores]
            print(f"{mode:10}" + "".join(f"{count:>10}" for count in row) + f"{sum(row):>10}")
        print(self.summary)
        for line in self.wrong[:50]:
            print(f"VIOLATION {line}")
        took_s = time.monotonic() - self.begun_s
        print(
            f"{self.played.total()} of {self.asked} histories, {len(self.wrong)} violations "
            f"(seed {self.seed}, {took_s:.0f} s)",
            flush=True,
        )
        return not self.wrong and self.played.total() >= self.asked

    @property
    def summary(self) -> str:
        """Return the counts as words."""
        c = self.counts
        return (
            f"stale writes landed: {c['stale landed']}, refused: {c['stale refused']}; runs lost: {c['lost']} of "
            f"{c['runs']}; results in the journals: {c['results']}, of which workers told of {c['told']}; "
            f"kill -9: {c['kill']}; frozen past the lease: {c['freeze']}; "
            f"fell on a worker that another had hit: {c['missed']}; takeovers: {c['takeovers']}"
        )


def draw(drawn: random.Random, name: str) -> History:
    """Return one history."""
    mode = drawn.choice(list(MODES))
    runs = {f"{name}-{n}": drawn.choice(list(CALLS)) for n in range(drawn.choice((2, 2, 3)))}
    spots = [(run, call, mark) for run, kind in runs.items() for call in CALLS[kind] for mark in ("called", "returned")]
    blows = tuple(
        Blow(
            run=run,
            name=call,
            mark=mark,
            kind=kind,
            late_s=None if drawn.random() < 0.6 else drawn.uniform(0, 0.04),
        )
        for kind, (run, call, mark) in zip(MODES[mode], drawn.sample(spots, len(MODES[mode])), strict=True)
    )
    return History(name=name, mode=mode, runs=runs, blows=blows)


async def play(history: History, found: Fleet, ledger: Ledger, freezing: anyio.Semaphore, tally: Tally) -> None:
    """Play one history and judge its runs."""
    for blow in history.blows:
        blow.file(found.folder).touch()
    for run, kind in history.runs.items():
        await ledger.submit(kind, run, id=run)

    async def strike(blow: Blow) -> None:
        hit = await found.strike(blow, freezing)
        tally.counts[blow.kind if hit else "missed"] += 1

    with anyio.move_on_after(PATIENCE_S) as patience:
        async with anyio.create_task_group() as tasks:
            for blow in history.blows:
                tasks.start_soon(strike, blow)
        for run in history.runs:
            with contextlib.suppress(TenureError):  # how it ended is judged below
                await ledger.handle(run).result()
    if patience.cancelled_caught:
        tally.wrong.append(f"{history.name} ({history.mode}) did not end within {PATIENCE_S:.0f} s")
    for run in history.runs:
        if not await found.quiet(run):
            tally.wrong.append(f"{run}: a worker that was granted it neither left it nor died")
        await _judge(run, found, ledger, tally)
    tally.counts["runs"] += len(history.runs)
    tally.played[found.place.name, history.mode] += 1


async def _judge(run_id: str, found: Fleet, ledger: Ledger, tally: Tally) -> None:
    run = await ledger.store.load(run_id)
    rows = await ledger.store.tail(run_id, limit=1000)
    try:
        result: Any = await ledger.handle(run_id).result(timeout=1)
    except (TenureError, TimeoutError) as error:
        result = repr(error)
    verdict = judge(run, rows, result, sorted(found.lines[run_id], key=lambda line: line["at_ns"]))
    tally.counts.update(verdict.counts)
    tally.counts["stale landed"] += verdict.stale_landed
    tally.counts["lost"] += verdict.lost
    tally.wrong += [f"{run_id} on {found.place.name}: {line}" for line in verdict.wrong]


async def lane(place: Place, asked: int, tally: Tally, turn: anyio.Semaphore) -> None:
    """Play histories on one store, with a new fleet every 25."""
    drawn = random.Random(f"{tally.seed}:{place.name}")
    for begin in range(0, asked, FLEET_HISTORIES):
        histories = [draw(drawn, f"h{n}") for n in range(begin, min(begin + FLEET_HISTORIES, asked))]
        namespace = f"histories-{tally.seed}-{begin}-{drawn.getrandbits(32):08x}"
        async with (
            turn,
            open_store(place.url, namespace=namespace) as store,
            Ledger(store) as ledger,
            fleet(place, namespace, drawn) as found,
        ):
            await _play_all(histories, found, ledger, tally)
        tally.wrong += [f"{place.name}: {line}" for line in found.hurt]


async def _play_all(histories: list[History], found: Fleet, ledger: Ledger, tally: Tally) -> None:
    freezing, room = anyio.Semaphore(found.size - 2), anyio.Semaphore(AT_ONCE)

    async def one(history: History) -> None:
        async with room:
            await play(history, found, ledger, freezing, tally)
            if tally.played.total() % 5 == 0:
                tally.progress()

    async with anyio.create_task_group() as tasks:
        for history in histories:
            tasks.start_soon(one, history)


async def play_on_all(found: list[Place], tally: Tally) -> None:
    """Share the histories among the stores; two fleets at a time."""
    turn = anyio.Semaphore(LANES)
    async with anyio.create_task_group() as tasks:
        for number, place in enumerate(found):
            share = tally.asked // len(found) + (number < tally.asked % len(found))
            tasks.start_soon(lane, place, share, tally, turn)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", default="all", help=f"all, some of {','.join(STORES)}, or a URL")
    parser.add_argument("--keep", type=Path, help="a new folder, in which the call logs stay")
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked = parser.parse_args()
    tally = Tally(asked=asked.histories, seed=asked.seed)
    names = STORES if asked.store == "all" else asked.store.split(",")
    with places(names, asked.keep) as found:
        ran = versions(found)
        print(ran)
        if not played(play_on_all, found, tally, show=tally.show):
            return 130
    held = tally.show()
    if asked.record:
        by_store = Counter[str]()
        for (store, _), count in tally.played.items():
            by_store[store] += count
        counts = f"{tally.played.total()} histories: " + ", ".join(f"{name} {n}" for name, n in by_store.items())
        record(
            bar="histories", seed=asked.seed, counts=f"{counts}; {tally.summary}", ran=ran, violations=len(tally.wrong)
        )
    return not held


if __name__ == "__main__":
    sys.exit(main())
