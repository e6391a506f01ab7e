"""Kill a run of an agent at each of its store calls, recover it in a new process, and hold it against what is promised.

    python bench/agent_deaths.py [--points 0] [--seed 1] [--record]

The run has three calls side by side, an approval, a context that is replaced, a sleep and a budget of one question more
than it needs; it sleeps before its agent begins, or after it has answered. It dies by `os._exit` before or after each
change that it asks of its store, the decision of the person included. `--points N` kills at N of these places, drawn
from the seed; 0 at all. Exits 1 on a violation, or if a place was not met.
"""

import argparse
import gc
import importlib
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

import agent_story
from agent_verdict import BAR, Played, lacking, violations
from evidence import places, record, versions
from tenure import open_store
from tenure.testing._everywhere_stage import RUN, Subject, play
from tenure.testing.boundary import Boundary, Side
from tenure.testing.everywhere import DIED

TRIES = 4
"""Records that end together share a change, so a run may have one or two fewer than another."""

KINDS = {kind.name: kind for kind in (agent_story.tide_first, agent_story.tide_last)}


class Killing:
    """The runs of one kind, each in a file of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir()
        self.kind = kind
        self.deaths = 0
        self._subject = Subject(app=agent_story.app, kind=KINDS[kind], input="home", folder=folder, approve=True)
        self._told: dict[str, Mapping[str, Any]] = {}
        self.changes: list[str] = self._play("clean", "")["seen"]

    def points(self) -> list[Boundary]:
        """Return every place to die."""
        return [Boundary(at=at, side=side) for at in range(1, len(self.changes) + 1) for side in Side]

    def die(self, point: Boundary) -> bool:
        """Play one run that dies there and is recovered; return whether it came there."""
        for again in range(TRIES):
            if self._play(f"{point}-{again}".replace(":", "-"), str(point))["code"] == DIED:
                self.deaths += 1
                return True
        return False

    async def played(self) -> list[Played]:
        """Return what came of the runs, the one without a death first."""
        return [await self._read(name, told) for name, told in self._told.items()]

    def _play(self, name: str, boundary: str) -> Mapping[str, Any]:
        found = play(self._subject, name, boundary)
        if "status" not in found:
            sys.exit(f"{self.kind} {name}: the run could not be played ({found}); it said why above")
        self._told[name] = found
        return found

    async def _read(self, name: str, told: Mapping[str, Any]) -> Played:
        async with open_store(f"sqlite:////{str(self._subject.folder / name).lstrip('/')}.db") as store:
            run = await store.load(RUN)
            if run is None:
                sys.exit(f"{self.kind} {name}: there is no run; look at it with --keep")
            return Played(
                name=f"{self.kind}, {name}",
                outcome=told["outcome"],
                run=run,
                rows=await store.tail(RUN, limit=10_000),
                inbox=await store.inbox(RUN),
                lines=told["lines"],
                landed=told["landed"],
            )


def kill(folder: Path, asked: int, seed: int) -> list[Killing]:
    """Play the runs; nothing of a store is open in this process, which forks."""
    for name in ("anyio._backends._asyncio", "tenure.stores.sqlite", "tenure.testing._noted_agent"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    killings = [Killing(kind, folder / kind) for kind in KINDS]
    deck = [(killing, point) for killing in killings for point in killing.points()]
    if asked:
        random.Random(seed).shuffle(deck)
    wanted, met = asked or len(deck), 0
    while deck and met < wanted:
        killing, point = deck.pop(0)
        met += killing.die(point)
    print(f"{met} of {wanted} places met, ", end="")
    print(", ".join(f"{killing.kind}: {killing.deaths} of {len(killing.points())}" for killing in killings))
    return killings


async def judge(killings: list[Killing]) -> Counter[str]:
    """Print what is below the bar, and return how often each line of it was missed."""
    missed = Counter[str](dict.fromkeys(BAR, 0))
    for killing in killings:
        clean, *others = await killing.played()
        if lacks := lacking(clean):
            sys.exit(f"{killing.kind}: the run without a death lacks {', '.join(lacks)}")
        for played in (clean, *others):
            for line, found in violations(played, clean):
                missed[line] += 1
                print(f"VIOLATION {played.name}: {line}: {found}")
    for line, count in missed.items():
        print(f"{line}: {count}")
    return missed


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder, in which the files and call logs stay")
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked = parser.parse_args()
    with places(("sqlite",), asked.keep) as found:
        ran = versions(found)
        print(f"{ran}, seed {asked.seed}", flush=True)
        killings = kill(found[0].folder, asked.points, asked.seed)
        missed = anyio.run(judge, killings)
    deaths = sum(killing.deaths for killing in killings)
    wanted = asked.points or sum(len(killing.points()) for killing in killings)
    if asked.record:
        counts = f"{deaths} deaths; " + ", ".join(f"{line} {count}" for line, count in missed.items())
        record(bar="agent deaths", seed=asked.seed, counts=counts, ran=ran, violations=missed.total())
    return int(missed.total() > 0 or deaths < wanted)


if __name__ == "__main__":
    sys.exit(main())
