"""`python -m tenure.testing.chaos`: play histories with real faults, judge each, and say how to play a wrong one again.

With `--state FOLDER` a campaign that was stopped (Ctrl-C, SIGTERM) goes on when the same command is given again.
Exits 1 on a violation, 130 when it was stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tenure.testing.campaigns import STOPPED, Campaign, CampaignRefused, record
from tenure.testing.chaos.campaign import Lane, conduct, version
from tenure.testing.chaos.kinds import KINDS, SHARED, kind_of
from tenure.testing.servers import ServerMissing

PROGRESS_S = 5.0
SHOWN = 20


def main(arguments: list[str] | None = None) -> int:
    """Play what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tenure.testing.chaos", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of them, as many as said: kill,freeze=20")
    parser.add_argument("--stores", default=",".join(SHARED), help="where, of the stores that a kind is played on")
    parser.add_argument("--histories", type=int, help="how many of each kind, in place of its own number")
    parser.add_argument("--long", action="store_true", help="as many as the long form has")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first of each kind")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--state", type=Path, help="a folder of what was judged, to be stopped and to go on")
    parser.add_argument("--continue-across-versions", action="store_true", help="go on with what other code judged")
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked = parser.parse_args(arguments)
    wished = [word.partition("=")[::2] for word in asked.kinds.split(",") if word]
    if unknown := {name for name, _ in wished} - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if bad := [f"{name}={many}" for name, many in wished if many and not (many.isdecimal() and int(many))]:
        parser.error(f"{', '.join(bad)} says no number of histories; write it like kill=20")
    if unknown := set(asked.stores.split(",")) - set(SHARED):
        parser.error(f"no store {', '.join(sorted(unknown))}; there are {', '.join(SHARED)}")
    try:
        lanes = [_lane(name, many, asked) for name, many in wished]
    except CampaignRefused as refused:
        parser.error(str(refused))
    lanes = [lane for lane in lanes if lane.stores]
    if not lanes:
        parser.error(f"none of the kinds is played on {asked.stores}, so nothing would be judged")
    try:
        whole = _play(lanes, asked)
    except ServerMissing as missing:
        print(f"{missing}; or leave it out with --stores", file=sys.stderr)
        return 2
    if asked.record:
        for lane in lanes:
            _record(lane)
    return 1 if any(lane.campaign.violations for lane in lanes) else 0 if whole else STOPPED


def _lane(name: str, many: str, asked: argparse.Namespace) -> Lane:
    kind = kind_of(name)
    stores = tuple(store for store in kind.stores if store in asked.stores.split(","))
    histories = int(many or asked.histories or (kind.long if asked.long else kind.short))
    path = asked.state / f"{name}.jsonl" if asked.state else None
    if path is not None:
        asked.state.mkdir(parents=True, exist_ok=True)
    over = asked.continue_across_versions
    campaign = Campaign(path, bar=f"chaos: {name}", plan=",".join(stores), across_versions=over)
    return Lane(kind=kind, stores=stores, seeds=range(asked.seed, asked.seed + histories), campaign=campaign)


def _play(lanes: list[Lane], asked: argparse.Namespace) -> bool:
    begun_s = said_s = time.monotonic()

    def say(done: int, of: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s > PROGRESS_S:
            said_s = time.monotonic()
            wrong = sum(len(lane.campaign.violations) for lane in lanes)
            print(f"{done} of {of} histories, {wrong} violations, {said_s - begun_s:.0f} s", flush=True)

    whole = conduct(lanes, asked.processes, say)
    wrong = [line for lane in lanes for line in lane.campaign.violations]
    for line in wrong[:SHOWN]:
        print(f"VIOLATION {line}")
    for lane in lanes:
        print(f"{lane.kind.name}: {_counted(lane)}, {len(lane.campaign.violations)} violations")
    judged = sum(lane.campaign.histories for lane in lanes)
    print(
        f"{judged} histories, {len(wrong)} violations (seed {asked.seed}, {time.monotonic() - begun_s:.0f} s)"
        + ("" if whole else "; stopped" + ": the same command goes on" * bool(asked.state)),
        flush=True,
    )
    return whole


def _counted(lane: Lane) -> str:
    told = ", ".join(f"{what} {count}" for what, count in sorted(lane.campaign.counts.items()))
    return f"{lane.campaign.histories} histories" + f" ({told})" * bool(told)


def _record(lane: Lane) -> None:
    ran = ", ".join([lane.campaign.versions, *map(version, lane.stores)])
    wrong = len(lane.campaign.violations)
    name = f"chaos: {lane.kind.name}"
    record(bar=name, seed=lane.seeds.start, counts=_counted(lane), ran=ran, violations=wrong)


if __name__ == "__main__":
    sys.exit(main())
