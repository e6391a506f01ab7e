"""`python -m tenure.testing.sim --histories N --seed S`: play, judge, and print a small repro of what is wrong.

A history is one seed; `--replay` plays a story that a violation printed. Exits 1 on a violation.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tenure.testing.sim.campaign import PART, one, part, smaller
from tenure.testing.sim.story import Story, draw


def main(arguments: list[str] | None = None) -> int:
    """Play what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tenure.testing.sim", description=__doc__)
    parser.add_argument("--histories", type=int, default=200, help="how many to play")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", metavar="JSON", help="play this one story, and say what is wrong with it")
    asked = parser.parse_args(arguments)
    if asked.histories < 1 or asked.processes < 1:
        parser.error("at least one history, by at least one process")
    if asked.replay:
        found, _ = one(Story.of(asked.replay))
        print("\n".join(found) or "nothing is wrong")
        return bool(found)
    return _campaign(asked.histories, asked.seed, asked.processes)


def _campaign(histories: int, first: int, processes: int) -> int:
    begun_s = said_s = time.monotonic()
    done, wrong, seen = 0, [], Counter[str]()
    parts = [range(at, min(at + PART, first + histories)) for at in range(first, first + histories, PART)]
    # Not forked: a process that has played a history holds its loops.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for count, found, counted in pool.map(part, parts):
            done, seen = done + count, seen + counted
            wrong += found
            if time.monotonic() - said_s > 5:
                said_s = time.monotonic()
                print(f"{done} of {histories} histories, {len(wrong)} violations, {said_s - begun_s:.0f} s", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in sorted(seen.items())))
    for seed, lines in wrong[:10]:
        print(f"VIOLATION seed {seed}")
        print("\n".join(f"  {line}" for line in lines[:5]))
    if wrong:
        story = smaller(draw(wrong[0][0]))
        print(f"the least that still goes wrong, of seed {wrong[0][0]}:")
        print("\n".join(f"  {line}" for line in one(story)[0][:5]))
        print(f"  python -m tenure.testing.sim --replay '{story.line()}'")
    took_s = time.monotonic() - begun_s
    print(f"{done} of {histories} histories, {len(wrong)} violations (seed {first}, {took_s:.0f} s)", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
