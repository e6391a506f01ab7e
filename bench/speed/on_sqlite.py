"""The rows on SQLite: beside the same upsert in a thread, and 32 runs beside one."""

from __future__ import annotations

import asyncio
import sqlite3
from itertools import cycle

from speed.bars import RATE_PLOT, Bar, Found, Setting, adjacent, rates, ratio, step_of
from speed.holding import hold, sqlite_url
from tenure.core import canonical

RUNS = 32
_UPSERT = "INSERT INTO bare VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data"


async def checkpoint(setting: Setting) -> Found:
    """Compare one checkpoint with one upsert of the same bytes by `to_thread`, both flushed to disk."""
    held = await hold(setting, sqlite_url(setting))
    bare_file = sqlite3.connect(setting.folder / "bare.db", isolation_level=None, check_same_thread=False)
    setting.stack.callback(bare_file.close)
    bare_file.execute("PRAGMA journal_mode = wal")
    bare_file.execute("PRAGMA synchronous = full")
    bare_file.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, data BLOB)")

    # SQLite writes nothing for a row that is overwritten by itself, so no two in a row are the same.
    payloads = cycle([canonical.encode(step_of(number)) for number in range(8)])

    async def bare(times: int) -> None:
        for _ in range(times):
            await asyncio.to_thread(bare_file.execute, _UPSERT, (next(payloads),))

    return ratio(await adjacent(held.checkpoints, bare, setting.pairs))


async def many(setting: Setting) -> Found:
    """Compare steps of 32 runs at once with steps of one run on the same file."""
    held = await hold(setting, sqlite_url(setting), RUNS)
    found = ratio(await adjacent(held.at_once(RUNS), held.checkpoints, setting.pairs), ours_per=RUNS)
    found.lines["tenure, SQLite"] = await rates(held.at_once)
    return found


BARS = [
    Bar(
        name="sqlite-checkpoint",
        says="checkpoint of 3 KB, synchronous full, to an upsert of the same bytes by to_thread",
        measure=checkpoint,
        least=0.70,
    ),
    Bar(
        name="sqlite-32-runs",
        says="steps a second of 32 runs at once, to one run one by one",
        measure=many,
        least=4,
        plot=RATE_PLOT,
        at_once=True,
    ),
]
