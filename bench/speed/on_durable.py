"""The rows beside DBOS and Absurd: their steps and ours on one PostgreSQL, one run and 32 at once.

Their workflow stays open and makes steps when it is asked to, so that no row pays for starting workflows.
"""

from __future__ import annotations

from functools import partial

from speed.bars import RATE_PLOT, Bar, Found, Setting, adjacent, rates, ratio
from speed.beside import beside
from speed.holding import hold
from speed.on_postgres import NEEDS, RUNS, peer_url, postgres_url


async def steps(setting: Setting, peer: str, name: str, runs: int) -> Found:
    """Compare steps of runs at once with those of a peer."""
    url = postgres_url(setting)
    theirs = await beside(setting, peer, await peer_url(setting, url), runs)
    held = await hold(setting, url, runs)
    pairs = await adjacent(held.at_once(runs), theirs.at_once(runs), setting.pairs)
    found = ratio(pairs, ours_per=runs, theirs_per=runs)
    if runs > 1:
        found.lines[name] = await rates(theirs.at_once)
    return found


BARS = [
    Bar(
        name=f"postgres-{peer}{'' if runs == 1 else f'-{runs}'}",
        says=f"steps a second of {'one run' if runs == 1 else f'{runs} runs at once'}, to those of {name}",
        measure=partial(steps, peer=peer, name=name, runs=runs),
        least=least,
        plot=RATE_PLOT,
        at_once=runs > 1,
        needs=(*NEEDS, *needs),
    )
    for peer, name, needs, limits in (
        ("absurd", "Absurd", ("absurd_sdk", "absurdctl"), (1.5, 10)),
        ("dbos", "DBOS", ("dbos",), (5, 30)),
    )
    for runs, least in zip((1, RUNS), limits, strict=True)
]
