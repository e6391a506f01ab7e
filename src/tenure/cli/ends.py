"""`cancel`, `evict`, `release`: what an operator may do to a run from outside."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, write, write_json
from tenure.cli.place import Place, command

if TYPE_CHECKING:
    from tenure.core.run import Run
    from tenure.ledger import Ledger

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
ReasonOption = Annotated[
    str | None,
    typer.Option(help="Why; it stays with the run as evidence, with who asked.", show_default=False),
]


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(cancel)
    command(app)(evict)
    command(app)(release)


async def cancel(
    place: Place,
    run: RunArgument,
    *,
    reason: ReasonOption = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, show_default=False, help="Seconds that the run gets to clean up; at once without it."),
    ] = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """End RUN and its children for good."""
    from tenure.errors import RunQuarantined

    async with place.ledger() as ledger:
        try:
            after = await ledger.cancel(run, reason=reason or "", by=who(), grace=grace)
        except RunQuarantined as error:
            message = f"nothing of run {run} runs while it is quarantined: cancel it without a time of grace"
            raise RunQuarantined(message, run=error.run) from None
        said = (
            f"is asked to end and is cancelled after {grace:g} s at the latest" if grace is not None else "is cancelled"
        )
        return await answer(ledger, after, said, output)


async def evict(
    place: Place, run: RunArgument, *, reason: ReasonOption = None, output: OutputOption = Shape.TABLE
) -> int:
    """End the live lease of RUN and queue it.

    Its holder is refused from then on.
    """
    async with place.ledger() as ledger:
        before = await ledger.load(run)
        after = await ledger.evict(run, reason=reason or "", by=who())
        ended = after.token != before.token
        said = "has lost its lease and is queued" if ended else "is queued, nobody held it: nothing was changed"
        return await answer(ledger, after, said, output)


async def release(
    place: Place, run: RunArgument, *, reason: ReasonOption = None, output: OutputOption = Shape.TABLE
) -> int:
    """Queue RUN again that was quarantined.

    Its crashes are forgotten.
    """
    from tenure.core.run import Status
    from tenure.errors import RunConflict

    async with place.ledger() as ledger:
        before = await ledger.load(run)
        if before.status in (Status.RUNNING, Status.SUSPENDED):
            message = f"run {run} is {before.status.value}; only a quarantined run is released"
            raise RunConflict(message, run=before)
        after = await ledger.release(run, reason=reason or "", by=who())
        released = after.token != before.token
        said = "is queued again" if released else "is queued, it was not quarantined: nothing was changed"
        return await answer(ledger, after, said, output)


async def answer(ledger: Ledger, run: Run, said: str, output: Shape) -> int:
    """Print what became of the run, in the shape asked for."""
    if output is Shape.TABLE:
        write(f"{run.id} {said}\n")
        return Exit.OK
    from tenure.views.values import run_value

    facts = await ledger.store.facts()
    write_json(run_value(run, now_ms=facts.now_ms), output)
    return Exit.OK


def who() -> str:
    """Return who asks, as far as this machine knows: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry
        user = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"
