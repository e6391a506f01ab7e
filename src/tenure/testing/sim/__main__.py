"""`python -m tenure.testing.sim --histories N --seed S`: play, judge, and print a small repro of what is wrong.

A history is one seed; `--replay` plays a story that a violation printed. With `--state FILE` a long campaign can be
stopped (Ctrl-C, SIGTERM) and is continued by the same command; `--record` appends the totals to docs/evidence.md.
Exits 1 on a violation, 130 when it was stopped before its end.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

from tenure.testing.campaigns import PAGE, STOPPED, Batch, Campaign, CampaignRefused, players, record
from tenure.testing.sim.campaign import PART, one, part, smaller
from tenure.testing.sim.story import Story, draw


def main(arguments: list[str] | None = None) -> int:
    """Play what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tenure.testing.sim", description=__doc__)
    parser.add_argument("--histories", type=int, default=200, help="how many to play")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", metavar="JSON", help="play this one story, and say what is wrong with it")
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep what was judged here, and go on from it")
    parser.add_argument("--continue-across-versions", action="store_true", help="go on from a file of other code")
    parser.add_argument("--record", action="store_true", help="append the totals to docs/evidence.md")
    asked = parser.parse_args(arguments)
    if asked.histories < 1 or asked.processes < 1:
        parser.error("at least one history, by at least one process")
    if asked.replay:
        try:
            story = Story.of(asked.replay)
        except (ValueError, TypeError, KeyError) as error:
            parser.error(f"--replay takes the line that a violation printed ({error})")
        found, _ = one(story)
        print("\n".join(found) or "nothing is wrong")
        return bool(found)
    try:
        campaign = Campaign(asked.state, bar="simulated histories", across_versions=asked.continue_across_versions)
    except CampaignRefused as refused:
        parser.error(str(refused))
    seeds = range(asked.seed, asked.seed + asked.histories)
    _play(campaign, seeds, asked.processes)
    return _tell(campaign, seeds, recorded=asked.record)


def _play(campaign: Campaign, seeds: range, processes: int) -> None:
    """Judge what is missing of the seeds, until somebody asks to stop."""
    begun_s = said_s = time.monotonic()
    parts = campaign.missing(seeds, size=PART)
    with players(processes) as (pool, stopped):
        for batch in _judged(pool, parts, processes, stopped):
            campaign.add(batch)
            if time.monotonic() - said_s > 5:
                said_s = time.monotonic()
                done, wrong = campaign.histories, len(campaign.violations)
                print(f"{done} of {len(seeds)} histories, {wrong} violations, {said_s - begun_s:.0f} s", flush=True)


def _judged(
    pool: ProcessPoolExecutor, parts: Iterator[range], processes: int, stopped: threading.Event
) -> Iterator[Batch]:
    # A few at a time: what was given to the pool is played to its end.
    flying: set[Future[Batch]] = {pool.submit(part, seeds) for seeds in islice(parts, 2 * processes)}
    while flying:
        done, flying = wait(flying, return_when=FIRST_COMPLETED)
        if not stopped.is_set():
            flying |= {pool.submit(part, seeds) for seeds in islice(parts, len(done))}
        for future in done:
            yield future.result()


def _tell(campaign: Campaign, seeds: range, *, recorded: bool) -> int:
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(campaign.counts.items()))
    print(counts)
    wrong = campaign.violations
    print("\n".join(f"VIOLATION {line}" for line in wrong[:10]), end="\n" if wrong else "")
    if wrong:
        seed = int(wrong[0].split()[1].rstrip(":"))
        story = smaller(draw(seed))
        print(f"the least that still goes wrong, of seed {seed}:")
        print("\n".join(f"  {line}" for line in one(story)[0][:5]))
        print(f"  python -m tenure.testing.sim --replay '{story.line()}'")
    done = f"{campaign.histories} of {len(seeds)} histories"
    print(f"{done}, {len(wrong)} violations (seed {seeds.start})", flush=True)
    if recorded:
        record(
            bar="simulated histories",
            seed=seeds.start,
            counts=f"{done}; {counts}",
            ran=campaign.versions,
            violations=len(wrong),
        )
        print(f"recorded in {PAGE}")
    if wrong:
        return 1
    return STOPPED if any(campaign.missing(seeds, size=PART)) else 0


if __name__ == "__main__":
    sys.exit(main())
