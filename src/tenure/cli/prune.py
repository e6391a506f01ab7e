"""`runs prune`: delete settled runs that nobody needs any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import OutputOption, Shape, hint, write, write_json, write_values
from tenure.cli.place import Place, command
from tenure.core.text import count

if TYPE_CHECKING:
    from tenure.core.run import Run, Status
    from tenure.store import Store


def register(group: typer.Typer, /) -> None:
    """Add the command of this file to `runs`."""
    command(group)(prune)


async def prune(
    place: Place,
    *,
    status: Annotated[
        list[str], typer.Option(help="completed, failed or cancelled; may be repeated, or split by commas.")
    ],
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Settled for longer than this: 30s, 5m, 2h, 7d.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")] = False,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Delete settled runs, whole and for good.

    An id that was deleted can be submitted anew, as another run.
    """
    from tenure import retention
    from tenure.cli.look import read_statuses
    from tenure.cli.reading import read_age

    statuses = read_statuses(status, settled=True)
    if not statuses:
        message = "name at least one --status: completed, failed or cancelled"
        raise UsageError(message)
    kept = retention.retention(dict.fromkeys(statuses, read_age(older_than)))
    async with place.store() as store:
        if dry_run:
            return await _list(store, kept, output)
        deleted = await retention.prune(store, kept, breath_s=0)
    if output is Shape.TABLE:
        write(f"{count(deleted, 'run')} deleted\n")
    else:
        write_json({"deleted": deleted}, output)
    return Exit.OK


async def _list(store: Store, kept: dict[Status, int], output: Shape) -> int:
    from tenure import retention
    from tenure.views.figures import ago
    from tenure.views.values import run_value

    now_ms = (await store.facts()).now_ms
    if output is not Shape.TABLE:
        await write_values((run_value(run, now_ms=now_ms) async for run in _each(store, kept)), output)
        return Exit.OK
    found = 0
    async for run in _each(store, kept):
        write(f"{run.id}  {run.status.value}  {ago(retention.settled_ms(run), now_ms)}\n")
        found += 1
    hint(f"{count(found, 'run')} would be deleted")
    return Exit.OK


async def _each(store: Store, kept: dict[Status, int]) -> AsyncIterator[Run]:
    from tenure import retention

    async for runs in retention.outlived(store, kept):
        for run in runs:
            yield run
