"""`journal export`: one run's journal as lines of JSON, to keep and to verify without a store."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import hint
from tenure.cli.paths import file_named, is_stream, streamed
from tenure.cli.place import Place, command
from tenure.core.text import count


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The journal of one run as a file.")
    command(group, "export")(export)
    app.add_typer(group, name="journal")


async def export(
    place: Place,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    *,
    file: Annotated[
        str,
        typer.Option("--file", metavar="FILE", help="Where to; an export goes on where it ended. - is stdout."),
    ] = "-",
) -> int:
    """Write the journal of RUN as lines of JSON.

    Commits with their bytes and digests, and the record last; `verify --file` checks it.
    """
    from tenure.core import ids
    from tenure.journal_file import export_lines, export_to, first_line
    from tenure.refusals import not_found

    run_id, file = ids.run_id(run), file_named(file)
    async with place.store() as store:
        if not is_stream(file):
            try:
                last = await export_to(store, run_id, file)
            except OSError as error:
                message = f"{file} cannot be written ({error.strerror}); name another, or make room"
                raise UsageError(message) from None
            hint(f"{file} holds {count(last, 'commit')} of {run_id}")
            return Exit.OK
        if await store.load(run_id) is None:
            raise not_found(run_id)
        with streamed(file) as out:
            out.write(first_line(run_id))
            async for _, line in export_lines(store, run_id):
                out.write(line)
    return Exit.OK
