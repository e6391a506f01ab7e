"""`timeline`: who could write which run, and when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import OutputOption, Shape, hint, hint_none, progress, show, write, write_json
from tenure.cli.paths import file_named
from tenure.cli.place import Place, command

if TYPE_CHECKING:
    from tenure.core.run import Run
    from tenure.store import Refused, Store
    from tenure.views.timeline import Chart, Landed, Lane

DOTS = 4_000
"""Commits closer than the chart's length divided by this are one dot, so that a long journal needs little memory."""


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(timeline)


async def timeline(
    place: Place,
    run: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", show_default=False, help="Ids; the newest runs if none.")
    ] = None,
    *,
    svg: Annotated[
        str | None, typer.Option(metavar="FILE", show_default=False, help="Write an SVG; - for stdout.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=50, max=10_000, show_default=False, help="In characters, in pixels with --svg.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(show_default=False, help="Only what happened in the last 30s, 15m, 2h, 1d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many runs.")] = 20,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Draw who held which run, and when.

    Leases, commits, refused writes, deaths and how each run ended.
    """
    from tenure.cli.reading import read_seconds
    from tenure.views import timeline as view

    since_ms = round(read_seconds(since) * 1000) if since is not None else None
    svg = file_named(svg) if svg is not None else None
    async with place.store() as store:
        now_ms = (await store.facts()).now_ms
        from_ms = now_ms - since_ms if since_ms is not None else None
        found = await _runs(store, run or [], limit, from_ms)
        refused = await store.refused(limit=1_000)
        lanes: list[Lane] = []
        with progress("reading journals") as tell:
            for one in found:
                tell(f"reading the journal of {one.id} ({len(lanes) + 1} of {len(found)})")
                lanes.append(await _lane(store, one, refused, now_ms, from_ms))
    if not lanes:
        hint_none(store, narrowed=since is not None)
    _write(view.chart(lanes, from_ms=from_ms), svg=svg, width=width, output=output)
    return Exit.OK


def _write(chart: Chart, /, *, svg: str | None, width: int | None, output: Shape) -> None:
    from tenure.views import chart_svg, chart_text
    from tenure.views.timeline import chart_value

    if svg is not None:
        drawn = chart_svg.draw(chart, width=width or chart_svg.WIDTH)
        if svg == "-":
            write(drawn)
            return
        try:
            Path(svg).write_text(drawn, encoding="utf-8")
        except OSError as error:
            message = f"{svg} cannot be written ({error.strerror}); name another file"
            raise UsageError(message) from None
        hint(f"wrote {svg}")
    elif output is not Shape.TABLE:
        write_json(chart_value(chart), output)
    elif chart.lanes:
        show(*chart_text.draw(chart, width=width or _terminal_width()))


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


async def _runs(store: Store, wanted: list[str], limit: int, from_ms: int | None) -> list[Run]:
    """The runs that were named, or the newest ones, the oldest first."""
    from tenure.cli.look import Found
    from tenure.core import ids
    from tenure.refusals import not_found
    from tenure.store import ALL

    if not wanted:
        runs = [run async for run in Found(store, ALL, limit).each() if from_ms is None or _reaches(run, from_ms)]
        return runs[::-1]
    found = []
    for run_id in dict.fromkeys(ids.run_id(text) for text in wanted):
        record = await store.load(run_id)
        if record is None:
            raise not_found(run_id)
        found.append(record)
    return found


def _reaches(run: Run, from_ms: int) -> bool:
    from tenure.core.rules import TERMINAL

    return run.status not in TERMINAL or run.updated_ms >= from_ms


async def _lane(store: Store, run: Run, refused: list[Refused], now_ms: int, from_ms: int | None) -> Lane:
    from tenure.views import timeline as view

    begin_ms = run.created_ms if from_ms is None else max(run.created_ms, from_ms)
    apart_ms = max(1, (max(now_ms, run.updated_ms) - begin_ms) // DOTS)
    return view.lane(run, landed=await _landed(store, run, apart_ms), refused=refused, now_ms=now_ms)


async def _landed(store: Store, run: Run, apart_ms: int) -> list[Landed]:
    from tenure.cli.sheet import rows_of
    from tenure.views.timeline import Landed

    kept: list[Landed] = []
    last: Any = None
    async for row in rows_of(store, run.id):
        one = Landed(at_ms=row.at_ms, token=row.token, seq=row.seq)
        if last is None or one.token != last.token or one.at_ms - kept[-1].at_ms >= apart_ms:
            if last is not None and kept[-1] is not last:
                kept.append(last)  # the last commit of a grant tells how long its holder was heard of
            kept.append(one)
        last = one
    if last is not None and kept[-1] is not last:
        kept.append(last)
    return kept
