"""`approvals` and `signal`: what runs ask people, and what people say to runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tenure.cli.ends import RunArgument, answer, who
from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import OutputOption, Shape, hint, show, write, write_values
from tenure.cli.place import Place, command
from tenure.cli.reading import read_input

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from tenure.approving import OpenRequest
    from tenure.handle import Handle
    from tenure.ledger import Ledger

DIGITS = 8
"""Of a digest at least so many are typed."""

RequestArgument = Annotated[
    str | None,
    typer.Argument(metavar="[REQUEST]", show_default=False, help="Id of the request; the only one if left out."),
]
ByOption = Annotated[str | None, typer.Option("--by", show_default=False, help="Who decides; your login if left out.")]
WhyOption = Annotated[
    str, typer.Option(help="Why; it stays with the decision, and a model is told.", show_default=False)
]
DigestOption = Annotated[
    str | None,
    typer.Option(
        show_default=False, help="What was shown, by its digest or the beginning of it; refused if that changed."
    ),
]


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What runs ask people, and the answers.")
    command(group, "list")(list_requests)
    command(group, "show")(show_requests)
    command(group)(approve)
    command(group)(reject)
    command(group)(revoke)
    app.add_typer(group, name="approvals")
    command(app)(signal)


async def list_requests(
    place: Place,
    *,
    kind: Annotated[str, typer.Option(show_default=False, help="Only runs of this kind.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = 100,
    output: OutputOption = Shape.TABLE,
) -> int:
    """List the open requests of all runs, those of the newest run first."""
    from tenure.approving import asking
    from tenure.store import Where
    from tenure.views.approvals import request_value, requests

    async with place.store() as store:
        found: list[OpenRequest] = []
        more = False
        async for request in asking(store, Where(kind=kind)):
            if limit and len(found) == limit:
                more = True
                break
            found.append(request)
        if output is not Shape.TABLE:
            await write_values(_each(request_value(request) for request in found), output)
        elif found:
            show(requests(found, now_ms=(await store.facts()).now_ms))
        else:
            hint("no run asks anything")
    if more:
        hint(f"these are {limit:,}; --limit 0 lists all")
    return Exit.OK


async def _each(values: Any) -> AsyncIterator[Any]:
    for value in values:
        yield value


async def show_requests(
    place: Place, run: RunArgument, request: RequestArgument = None, *, output: OutputOption = Shape.TABLE
) -> int:
    """Show what RUN asks, in full, with the difference from what it asked before."""
    from tenure.views.approvals import request_lines, request_value

    async with place.ledger() as ledger:
        found = await ledger.handle(run).requests()
        if request is not None:
            found = [await _one(ledger, ledger.handle(run), request)]
        if output is not Shape.TABLE:
            await write_values(_each(request_value(one) for one in found), output)
            return Exit.OK
        now_ms = (await ledger.store.facts()).now_ms
        for number, one in enumerate(found):
            write("\n" * (number > 0) + "\n".join(request_lines(one, now_ms=now_ms)) + "\n")
    if not found:
        hint(f"run {run} asks nothing")
    return Exit.OK


async def approve(
    place: Place,
    run: RunArgument,
    request: RequestArgument = None,
    *,
    by: ByOption = None,
    reason: WhyOption = "",
    digest: DigestOption = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Approve what RUN asks; exactly that is done, once.

    The first decision stands. The run goes on at once.
    """
    return await _decide(place, run, request, "approve", by=by, reason=reason, digest=digest, output=output)


async def reject(
    place: Place,
    run: RunArgument,
    request: RequestArgument = None,
    *,
    by: ByOption = None,
    reason: WhyOption = "",
    digest: DigestOption = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Reject what RUN asks; it goes on without it.

    The first decision stands. A model is told who rejected its call, and why.
    """
    return await _decide(place, run, request, "reject", by=by, reason=reason, digest=digest, output=output)


async def _decide(
    place: Place,
    run: str,
    request: str | None,
    how: Literal["approve", "reject"],
    *,
    by: str | None,
    reason: str,
    digest: str | None,
    output: Shape,
) -> int:
    async with place.ledger() as ledger:
        handle: Handle[Any] = ledger.handle(run)
        name, seen = request, digest
        if request is None or (digest is not None and len(digest) < 64):
            one = await _one(ledger, handle, request)
            name, seen = one.id, _whole(digest, one)
        assert name is not None  # noqa: S101 - it was given, or found
        after = await handle.decide(name, how, by=by or who(), reason=reason, digest=seen)
        done = "approved" if how == "approve" else "rejected"
        return await answer(ledger, after, f"has {name} {done} and is {after.status.value}", output)


async def _one(ledger: Ledger, handle: Handle[Any], request: str | None) -> OpenRequest:
    """The request that is meant; RequestClosed if it is not open, UsageError if several could be."""
    from tenure.approving import not_open, nothing_asked
    from tenure.core.approvals import RESOLVE, about

    found = await handle.requests()
    if request is not None:
        found = [one for one in found if one.id == request]
    elif len(found) > 1:
        found = [one for one in found if about(one.id)[0] != RESOLVE]
    if len(found) > 1:
        message = f"run {handle.id} asks {len(found)} things; name one: {', '.join(one.id for one in found)}"
        raise UsageError(message)
    if not found:
        run = await handle.load()
        raise await nothing_asked(ledger.store, run) if request is None else not_open(request, run.id, run)
    return found[0]


def _whole(digest: str | None, request: OpenRequest) -> str:
    if digest is None:
        return request.digest
    if len(digest) < DIGITS:
        message = f"{digest!r} is too short for a digest; type at least {DIGITS} digits of it"
        raise UsageError(message)
    return request.digest if request.digest.startswith(digest) else digest


async def revoke(
    place: Place,
    run: RunArgument,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Id of the request.")],
    *,
    by: ByOption = None,
    reason: WhyOption = "",
    output: OutputOption = Shape.TABLE,
) -> int:
    """Take a decision back that RUN has not taken note of yet.

    The run asks anew.
    """
    async with place.ledger() as ledger:
        after = await ledger.handle(run).revoke(request, by=by or who(), reason=reason)
        return await answer(ledger, after, f"has the decision about {request} revoked and asks anew", output)


async def signal(
    place: Place,
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal, as the handler waits for it.")],
    *,
    data: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", show_default=False, help="What it says; nothing if left out.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(show_default=False, help="The same id again is the same signal, and no error.")
    ] = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Send RUN a signal.

    It is kept until the run waits for it.
    """
    value = read_input(data, origin="what --data says") if data is not None else None
    async with place.ledger() as ledger:
        after = await ledger.handle(run).signal(name, value, id=id)
        waits = f", waiting for {', '.join(after.wants)}" if after.wants else ""
        return await answer(ledger, after, f"has the signal {name} and is {after.status.value}{waits}", output)
