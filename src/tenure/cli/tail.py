"""`tail`: the events of a run, those to come as well."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, hint, show_table_page, write_json
from tenure.cli.place import Place, command

WIDTHS = (8, 12, 18, 5, 24, 7)
"""Of the columns: what comes is not known when the first line is printed."""


def register(app: typer.Typer, /) -> None:
    """Add the command of this file."""
    command(app)(tail)


async def tail(
    place: Place,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    after: Annotated[str, typer.Option(metavar="ADDRESS", help="Begin after this event, like 12.0.")] = "0",
    output: OutputOption = Shape.TABLE,
) -> int:
    """Print the events of RUN as they land.

    Goes on where it was when the store comes back. Ctrl-C ends it.
    """
    from tenure.core import ids
    from tenure.following import followed, rows_after
    from tenure.views.values import event_value

    run_id = ids.run_id(run)
    async with place.store() as store:
        printed = _Printed(output)
        found = followed(store, run_id, after) if follow else rows_after(store, run_id, after)
        async for row, index, event in found:
            printed.add(event_value(row, index, event))
        if follow and (ended := await store.load(run_id)) is not None:
            hint(f"run {run_id} is {ended.status.value}")
    return Exit.OK


class _Printed:
    """Writes events one by one, each at once: who reads a pipe sees it when it lands."""

    def __init__(self, output: Shape) -> None:
        self._output = output
        self._begun = False

    def add(self, value: dict[str, Any]) -> None:
        if self._output is Shape.TABLE:
            from tenure.views import tables

            show_table_page(tables.events([value]), widths=WIDTHS, show_head=not self._begun)
            self._begun = True
        else:
            write_json(value, Shape.JSONL)
        sys.stdout.flush()
