"""`resolve`: a person says how a call in doubt ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenure.cli.ends import RunArgument, answer, who
from tenure.cli.exits import UsageError
from tenure.cli.output import OutputOption, Shape
from tenure.cli.place import Place, command
from tenure.cli.reading import read_input


def register(app: typer.Typer, /) -> None:
    """Add the command of this file."""
    command(app)(resolve)


async def resolve(
    place: Place,
    run: RunArgument,
    call: Annotated[str, typer.Argument(metavar="CALL", help="Id of the call; `show RUN` lists what is waited for.")],
    *,
    result: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE|-", show_default=False, help="It took effect, and this is its result."),
    ] = None,
    repeat: Annotated[bool, typer.Option("--repeat", help="It did not take effect: make it again.")] = False,
    fail: Annotated[bool, typer.Option("--fail", help="Give it up; the model is told that nobody knows.")] = False,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Say how CALL of RUN ended, which was started and has no result.

    The first one to say so wins. The run goes on at once.
    """
    if (result is not None) + repeat + fail != 1:
        message = "say exactly one of --result, --repeat and --fail"
        raise UsageError(message)
    said: dict[str, Any] = (
        {"result": read_input(result, origin="what --result says")}
        if result is not None
        else {"repeat": repeat, "fail": fail}
    )
    from tenure.agent.doubt import resolve as say

    async with place.ledger() as ledger:
        after = await say(ledger, run, call, by=who(), **said)
        return await answer(ledger, after, f"has its answer about {call} and is queued", output)
