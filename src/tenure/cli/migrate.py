"""`store migrate`: bring the schema of a store to the version that this program knows."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import hint, write
from tenure.cli.place import Place, command


def register(app: typer.Typer, /) -> None:
    """Add the command of this file to the group `store`."""
    group = next(found.typer_instance for found in app.registered_groups if found.name == "store")
    if group is not None:
        command(group, "migrate")(migrate)


async def migrate(
    place: Place,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is missing; exit code 8 if anything is.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Apply what is missing.")] = False,
) -> int:
    """Apply what the schema of the store is missing.

    Forward only; each migration is one transaction, so one that was broken off has left nothing. Two at once wait for
    each other.
    """
    from tenure.store import Migratable

    if check == apply:
        message = "say --check to see what is missing, or --apply to apply it"
        raise UsageError(message)
    store = place.store()
    if not isinstance(store, Migratable):
        hint(f"{store.url} lays itself out when it is opened; there is nothing to migrate")
        return Exit.OK
    steps = await (store.migrate() if apply else store.missing())
    for step in steps:
        write(f"{'applied' if apply else 'missing'} {step}\n")
    if not steps:
        hint(f"{store.url} has all that this version knows")
    return Exit.UNSAFE if check and steps else Exit.OK
