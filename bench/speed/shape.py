"""The rows that say how a run grows: a late step beside an early one, and bytes beside the events."""

from __future__ import annotations

import statistics
from functools import partial

import bytes_per_step
from speed.bars import LATE_PLOT, Bar, Found, Setting, spread
from speed.holding import curve, hold, redis_server, sqlite_url, step_costs

STEPS = 420
EARLY = slice(9, 29)  # step 10 and the 19 after it
LATE = slice(399, 419)


async def late_step(setting: Setting, words: str, url: str = "") -> Found:
    """Compare step 400 with step 10, by the medians of 20 steps each, run by run."""
    numbers, costs = [], []
    url = url or (sqlite_url(setting) if words == "SQLite" else redis_server(setting, "everysec").url)
    for _ in range(setting.pairs):
        held = await hold(setting, url)
        costs = await step_costs(held.leases[0], STEPS)
        numbers.append(statistics.median(costs[LATE]) / statistics.median(costs[EARLY]))
        await held.leases[0].hand_back()
    found = spread(numbers)
    found.lines[f"tenure, {words}"] = curve(costs)
    return found


async def bytes_kept(_setting: Setting, store: str) -> Found:
    """Compare the bytes that stay of a run of 400 steps with its events."""
    with bytes_per_step.METERS[store]() as meter:
        await bytes_per_step.open_and_close(meter)
        empty = meter.kept_bytes()
        events_bytes, _written = await bytes_per_step.run_steps(meter, 400)
        kept = meter.kept_bytes() - empty
    number = kept / events_bytes
    return Found(number=number, low=number, high=number)  # bytes do not vary with the machine


BARS = [
    Bar(
        name=f"{store}-late-step",
        says=f"cost of step 400 to that of step 10, {words}",
        measure=partial(late_step, words=words),
        under=1.1,
        plot=LATE_PLOT,
    )
    for store, words in (("redis", "Redis"), ("sqlite", "SQLite"))
] + [
    Bar(
        name=f"{store}-bytes",
        says=f"{words} of a run of 400 steps to its events",
        measure=partial(bytes_kept, store=meter),
        under=under,
    )
    for store, meter, words, under in (
        ("redis", "redis7", "append-only file", 1.3),
        ("sqlite", "sqlite", "file after a checkpoint", 1.5),
    )
]
