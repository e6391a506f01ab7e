"""Run tenure beside its peers on private servers, and print ratios: the medians of adjacent pairs.

    python bench/compare.py [--bar NAME ...] [--pairs 15] [--json FILE] [--plots FOLDER] [--page]

Without a name every bar is measured. Exits 1 if one is missed. The peers come with the extra `bench`; a row whose peer
or server is not installed is left out and named.

What one request costs is measured with client and servers on one processor: on two, a ping-pong between them costs
what the kernel makes of it and not what they do. How many steps a second many runs get is measured on all processors,
because client and server mean to work at the same time there, and so is what a server tells of its own time, which runs
on while the client has its processor. Rows of the second kind are measured on one as well, and both numbers shown.
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio

from speed import drawing, on_durable, on_langgraph, on_postgres, on_redis, on_sqlite, shape
from speed.bars import LATE_PLOT, PAIRS, RATE_PLOT, Bar, Found, Setting
from tenure.testing.servers import ServerMissing

BARS: list[Bar] = [
    *on_redis.BARS,
    *on_sqlite.BARS,
    *shape.BARS,
    *on_langgraph.BARS,
    *on_postgres.BARS,
    *on_durable.BARS,
]
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: bench/compare.py --page -->\n", "<!-- end of the table -->\n"
NAMED = ("redis", "hiredis", "psycopg", "langgraph", "dbos", "absurd-sdk", "langgraph-checkpoint-plainredis")
AXES = {LATE_PLOT: ("step of the run", "ms a step", False), RATE_PLOT: ("runs at once", "steps a second", True)}


async def measure(bar: Bar, pairs: int) -> Found:
    """Return what one bar finds, in a setting of its own."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-", ignore_cleanup_errors=True) as folder:
        async with AsyncExitStack() as stack:
            return await bar.measure(Setting(pairs=pairs, folder=Path(folder), stack=stack))


def lacking(bar: Bar) -> str:
    """Return the first module that the row needs and that is not there."""
    for name in bar.needs:
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ModuleNotFoundError:  # of the package that it is in
            return name
    return ""


def line_of(bar: Bar, found: Found) -> str:
    """Return one row as words."""
    costs = ""
    if found.ours_us is not None and found.theirs_us is not None:
        costs = f"; {found.ours_us:.0f} and {found.theirs_us:.0f} us"
    said = "held" if bar.held(found) else "MISSED"
    judged = f" (bar: {bar.limit}, {said})" if bar.limit else ""
    number = f"{found.number:.2f} {bar.unit}"
    one = "" if found.on_one is None else f"; {found.on_one:.2f} {bar.unit} on one processor"
    return f"{bar.name}: {number}{judged}, quartiles {found.low:.2f}..{found.high:.2f}{costs}{one}\n    {bar.says}"


def rows_of(found: Sequence[tuple[Bar, Found]]) -> list[str]:
    """Return the rows of the table of docs/benchmarks.md."""
    rows = ["| bar | what | measured | quartiles | on one processor | limit | |", "|---|---|---|---|---|---|---|"]
    for bar, one in found:
        said = ("held" if bar.held(one) else "**missed**") if bar.limit else "shown"
        on_one = "" if one.on_one is None else f"{one.on_one:.2f} {bar.unit}"
        rows.append(
            f"| `{bar.name}` | {bar.says} | {one.number:.2f} {bar.unit} | {one.low:.2f}..{one.high:.2f} "
            f"| {on_one} | {bar.limit} | {said} |"
        )
    return rows


def machine() -> str:
    """Return what it ran on, without names."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"
    return f"{os.cpu_count()} processors, {memory_gb:.0f} GB, {system}, Python {platform.python_version()}"


def versions() -> str:
    """Return which versions of clients and peers ran."""
    found = []
    for name in NAMED:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def as_json(found: Sequence[tuple[Bar, Found]]) -> str:
    """Return all of it as JSON."""
    rows = [
        {
            "bar": bar.name,
            "says": bar.says,
            "number": one.number,
            "unit": bar.unit,
            "quartiles": [one.low, one.high],
            "at_once": bar.at_once,
            "on_one_processor": one.on_one,
            "least": bar.least,
            "under": bar.under,
            "held": bar.held(one),
            "ours_us": one.ours_us,
            "theirs_us": one.theirs_us,
            "lines": one.lines,
        }
        for bar, one in found
    ]
    return json.dumps({"machine": machine(), "versions": versions(), "rows": rows}, indent=1)


def plot(found: Sequence[tuple[Bar, Found]], folder: Path) -> None:
    """Write one SVG for each plot that rows brought curves for."""
    folder.mkdir(parents=True, exist_ok=True)
    plots: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    for bar, one in found:
        plots[bar.plot].update(one.lines)
    for name, lines in plots.items():
        if lines:
            across, up, log_x = AXES[name]
            text = drawing.draw(lines, title=name.capitalize(), across=across, up=up, log_x=log_x)
            (folder / f"bench-{name.replace(' ', '-')}.svg").write_text(text, encoding="utf-8")


def put_on_page(found: Sequence[tuple[Bar, Found]], load: str) -> None:
    """Put the table into docs/benchmarks.md, in place of the last one."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    ran = f"{time.strftime('%Y-%m-%d', time.gmtime())}; {machine()}; {load}; {versions()}."
    drawn = [f"\n![{at.stem.removeprefix('bench-')}]({at.name})" for at in sorted(PAGE.parent.glob("bench-*.svg"))]
    table = "\n".join([ran, "", *rows_of(found), *drawn])
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n\n{END}{after}", encoding="utf-8")


def measured(bar: Bar, pairs: int) -> Found:
    """Return what one bar finds on the processors that it is to have."""
    every = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(every) < 2:
        return anyio.run(measure, bar, pairs)
    found = anyio.run(measure, bar, pairs) if bar.at_once else None
    os.sched_setaffinity(0, {max(every)})  # what is started later inherits it
    try:
        alone = anyio.run(measure, bar, pairs)
    finally:
        os.sched_setaffinity(0, every)
    return alone if found is None else replace(found, on_one=alone.number)


def measure_all(bars: Sequence[Bar], pairs: int) -> tuple[list[tuple[Bar, Found]], int]:
    """Return what the rows find, printed as it comes, and how many of them failed."""
    found: list[tuple[Bar, Found]] = []
    failed = 0
    for bar in bars:
        if missing := lacking(bar):
            print(f"{bar.name}: left out, {missing} is not installed (pip install 'tenure[bench]')", flush=True)
            continue
        try:
            found.append((bar, measured(bar, pairs)))
        except ServerMissing as error:
            print(f"{bar.name}: left out, {error}", flush=True)
        except Exception as error:  # noqa: BLE001 - the rows after it are measured all the same
            failed += 1
            print(f"{bar.name}: FAILED, {error!r}", flush=True)
        else:
            print(line_of(*found[-1]), flush=True)
    return found, failed


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bar", action="append", choices=[bar.name for bar in BARS], help="only this one; repeatable")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--plots", type=Path, help="also draw the curves into this folder")
    parser.add_argument("--page", action="store_true", help="put the table into docs/benchmarks.md")
    asked = parser.parse_args()
    if asked.pairs < PAIRS:
        parser.error(f"fewer than {PAIRS} pairs say nothing")
    logging.disable(logging.WARNING)
    load = f"load {os.getloadavg()[0]:.1f} when it began"
    found, failed = measure_all([bar for bar in BARS if not asked.bar or bar.name in asked.bar], asked.pairs)
    if asked.json:
        asked.json.write_text(as_json(found), encoding="utf-8")
    if asked.plots:
        plot(found, asked.plots)
    if asked.page:
        put_on_page(found, load)
    return 0 if found and not failed and all(bar.held(one) for bar, one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
