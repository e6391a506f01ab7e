"""Kill a run at points drawn from a seed, on every store, and hold what its recovery did against what is promised.

    python bench/crash_points.py [--points 1000] [--seed 1] [--record]

A point is before, after or inside a write, a model call or a tool call of a run of three turns and three calls; for a
write also with its reply lost, and with its reply lost and asked again. On the stores that processes share, a process
dies by `os._exit` and another recovers; memory dies by a fuse in this process and is counted apart. Exits 1 on a
violation, or if fewer points were hit than asked for.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

import anyio

from crash_lane import Shot, memory_lane, server_lane
from crash_tally import MEMORY, Tally
from evidence import STORES, Place, places, played, record, versions
from tenure.testing.crashing import UNITS, Point, points

MEMORY_SHARE = 10
RECOVERY_TOO = 0.15
EXPIRES = 0.05
SWEPT = 0.3


def draw(seed: int, asked: int) -> dict[str, list[Shot]]:
    """Return the runs to kill, by store: every point comes up before one comes up again."""
    found: dict[str, list[Shot]] = {}
    in_memory = asked // MEMORY_SHARE
    shares = dict.fromkeys(STORES, (asked - in_memory) // len(STORES))
    shares[STORES[0]] += asked - in_memory - sum(shares.values())
    for store, share in {**shares, MEMORY: in_memory}.items():
        drawn = random.Random(f"{seed}:{store}")
        shots = found[store] = []
        deck: list[Point] = []
        left = share
        while left > 0:
            if not deck:
                deck = points(inside_writes=store != MEMORY)
                drawn.shuffle(deck)
            point = deck.pop()
            later = [p for p in points() if _turn(p) > max(_turn(point), 1)]
            again = drawn.choice(later) if later and left > 1 and drawn.random() < RECOVERY_TOO else None
            if store == MEMORY:
                again = None
            shots.append(
                Shot(
                    run=f"{store}-{len(shots)}",
                    point=point,
                    again=again,
                    inside=drawn.random(),
                    expires=again is None and store != MEMORY and drawn.random() < EXPIRES,
                    swept=again is None and drawn.random() < SWEPT,
                )
            )
            left -= 1 + (again is not None)
    return found


def _turn(point: Point) -> int:
    # The second and the third call are made side by side: neither is surely still to come after the other.
    unit = "tool:c1" if point.unit == "tool:c2" else point.unit
    return UNITS.index(unit)


async def play(tally: Tally, found: list[Place], shots: dict[str, list[Shot]]) -> None:
    """Kill and recover on all stores at once."""
    async with anyio.create_task_group() as tasks:
        for place in found:
            tasks.start_soon(server_lane, place, shots[place.name], tally, str(tally.seed))
        tasks.start_soon(memory_lane, found[0].folder, shots[MEMORY], tally, str(tally.seed))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder, in which the call logs stay")
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked = parser.parse_args()
    tally = Tally(asked=asked.points, seed=asked.seed)
    with places(STORES, asked.keep) as found:
        ran = versions(found)
        print(ran)
        if not played(play, tally, found, draw(asked.seed, asked.points), show=tally.show):
            return 130
    held = tally.show()
    if asked.record:
        by_store = Counter[str]()
        for (store, _), count in tally.hits.items():
            by_store[store] += count
        counts = f"{tally.hits.total()} points: " + ", ".join(f"{store} {count}" for store, count in by_store.items())
        counts += f"; landed model calls sent again {tally.calls['model again']}"
        counts += f"; recorded tools run again {tally.calls['tool again']}"
        record(bar="crash points", seed=asked.seed, counts=counts, ran=ran, violations=len(tally.violations))
    return not held


if __name__ == "__main__":
    sys.exit(main())
