"""`runs` and `show`: what is in the store, and all of one run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, hint, hint_none, show_table_page, write, write_json, write_values
from tenure.cli.place import Place, command
from tenure.cli.reading import read_tags

if TYPE_CHECKING:
    from tenure.core.run import Run, Status
    from tenure.store import Store, Where

PAGE = 100


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    from tenure.cli import prune

    listing = typer.Typer(rich_markup_mode=None)
    command(listing, of_group=True)(runs)
    prune.register(listing)
    app.add_typer(listing, name="runs")
    command(app, "show")(show_run)


async def runs(
    place: Place,
    *,
    status: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Only these; may be repeated, or split by commas.")
    ] = None,
    kind: Annotated[str, typer.Option(show_default=False, help="Only this kind.")] = "",
    owner: Annotated[str, typer.Option(show_default=False, help="Only what this owner holds.")] = "",
    parent: Annotated[str, typer.Option(show_default=False, help="Only children of this run.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", show_default=False, help="May be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many, the newest first; 0 for all.")] = 50,
    output: OutputOption = Shape.TABLE,
) -> int:
    """List runs, the newest first."""
    from tenure.cli.census import served
    from tenure.store import ALL, Where
    from tenure.views.values import run_value

    where = Where(status=read_statuses(status or []), kind=kind, owner=owner, parent=parent, tags=read_tags(tag or []))
    async with place.store() as store:
        facts = await store.facts()
        serves = served(await store.beats(), facts)
        found = Found(store, where, limit)
        if output is Shape.TABLE:
            await _print_runs(found, facts.now_ms, serves)
            if not found.count and not found.corrupt:
                hint_none(store, narrowed=where != ALL)
        else:
            values = (run_value(run, now_ms=facts.now_ms, served=serves) async for run in found.each())
            await write_values(values, output)
    if found.more:
        hint(f"these are the newest {limit:,}; --limit 0 lists all")
    for run_id in found.corrupt:
        hint(f"the record of run {run_id} cannot be read; tenure show {run_id} --raw prints what is stored")
    return Exit.NOT_VERIFIED if found.corrupt else Exit.OK


class Found:
    """The runs that a listing finds, read page by page; afterwards whether there were more, and which are damaged."""

    def __init__(self, store: Store, where: Where, limit: int) -> None:
        self._store, self._where, self._limit = store, where, limit
        self.more = False
        self.corrupt: list[str] = []
        self.count = 0

    async def pages(self) -> AsyncIterator[tuple[Run, ...]]:
        """Yield the pages that have runs."""
        cursor: str | None = None
        while True:
            left = self._limit - self.count if self._limit else PAGE
            page = await self._store.find(self._where, cursor=cursor, limit=min(PAGE, left))
            self.corrupt += page.corrupt
            self.count += len(page.runs)
            if page.runs:
                yield page.runs
            cursor = page.cursor
            if cursor is None or (self._limit and self.count >= self._limit):
                self.more = cursor is not None
                return

    async def each(self) -> AsyncIterator[Run]:
        """Yield the runs one by one."""
        async for page in self.pages():
            for run in page:
                yield run


async def _print_runs(found: Found, now_ms: int, served: frozenset[str]) -> None:
    from tenure.views import tables

    widths: list[int] = []
    async for page in found.pages():
        table = tables.runs(page, now_ms=now_ms, served=served)
        show_table_page(table, widths=widths, show_head=not widths)
        widths = widths or tables.widths_of(table)


def read_statuses(given: list[str], /, *, settled: bool = False) -> tuple[Status, ...]:
    """Return statuses from words that may be split by commas; `settled` takes those of settled runs only."""
    from tenure.cli.exits import UsageError
    from tenure.core.rules import TERMINAL
    from tenure.core.run import Status

    words = [word.strip() for part in given for word in part.split(",") if word.strip()]
    known = {status.value: status for status in Status if not settled or status in TERMINAL}
    for word in words:
        if word not in known:
            what = "no status of a settled run" if settled else "no status"
            message = f"{word[:40]!r} is {what}; use {', '.join(known)}"
            raise UsageError(message)
    return tuple(dict.fromkeys(known[word] for word in words))


async def show_run(
    place: Place,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    *,
    events: Annotated[bool, typer.Option("--events", help="Also every event of its journal.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="What is stored, unread: for damage.")] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", show_default=False, help="As it was: after so many steps, or at an event like 12.0."
        ),
    ] = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Show all of RUN.

    Its record, grants, refused writes, open requests and inbox.
    """
    from tenure.cli import sheet
    from tenure.core import ids
    from tenure.refusals import not_found

    run_id = ids.run_id(run)
    async with place.store() as store:
        if raw:
            return await sheet.show_raw(store, run_id, output)
        record = await store.load(run_id)
        if record is None:
            raise not_found(run_id)
        if at is not None:
            await _show_moment(store, record, at, output)
            return Exit.OK
        await sheet.show_record(store, record, events=events, output=output)
    return Exit.OK


async def _show_moment(store: Store, record: Run, at: str, output: Shape) -> None:
    from tenure.forking import moment
    from tenure.views.moment import moment_lines, moment_value

    found = await moment(store, record, at)
    if output is Shape.TABLE:
        for line in moment_lines(found):
            write(f"{line}\n")
    else:
        write_json(moment_value(found), output)
