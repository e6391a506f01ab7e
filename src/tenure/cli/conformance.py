"""`conformance`: whether a live deployment keeps what the store promises, shown in a scratch namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, hint, show, write_json
from tenure.cli.place import DEFAULT_URL, Place, command
from tenure.errors import MissingExtra

if TYPE_CHECKING:
    from tenure.testing.verdicts import Verdict


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(conformance)


def conformance(
    place: Place,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="The store; else the one that --store or TENURE_STORE names.")
    ] = None,
    *,
    chaos: Annotated[bool, typer.Option("--chaos/--no-chaos", help="Also kill and freeze workers of its own.")] = True,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Play the contract of a store and a short chaos on a live deployment.

    Everything takes place in scratch namespaces, which are removed. Exit code 6 if anything does not hold.
    """
    try:
        from tenure.testing.verdicts import judge
    except ImportError as error:
        message = f"conformance needs the package {error.name!r}; install tenure with the extra `testing`"
        raise MissingExtra(message) from None
    place = place if url is None else replace(place, url=url)
    if place.url == DEFAULT_URL:
        hint(f"no store was named: this is about {DEFAULT_URL}")
    # Opened once by itself: what is wrong with the URL or the deployment is said as by any command.
    _check(place)
    found = judge(place.url, chaos=chaos)
    _write(found, output)
    return Exit.OK if all(one.ok for one in found) else Exit.NOT_VERIFIED


def _check(place: Place) -> None:
    import anyio

    async def look() -> None:
        async with place.store(creates=True) as store:
            await store.facts()

    anyio.run(look)


def _write(found: list[Verdict], output: Shape) -> None:
    from tenure.views import verdicts as view

    if output is Shape.TABLE:
        show(view.table(found), *view.lines(found))
    elif output is Shape.JSON:
        write_json([view.value(one) for one in found])
    else:
        for one in found:
            write_json(view.value(one), output)
