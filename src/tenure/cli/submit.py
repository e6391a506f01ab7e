"""`submit`, `retry` and `fork`: queue a run, wait for it if asked."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, hint, progress, write, write_json
from tenure.cli.place import Place, command
from tenure.cli.reading import read_input, read_instant, read_tags

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tenure.handle import Handle
    from tenure.ledger import Ledger

LOOK_S = 0.5
QUIET_S = 6.0
"""How long who waits is not told that nobody serves its kind: a worker that was just started takes seconds."""
ANSWER_S = 5.0

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the end and print the result as JSON.")]
TimeoutOption = Annotated[
    float | None, typer.Option(min=0, show_default=False, help="With --wait: give up waiting after this many seconds.")
]


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(submit)
    command(app)(retry)
    command(app)(fork)


async def submit(
    place: Place,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Name of the registered handler.")],
    input: Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="Input: JSON text, @file, or - for stdin.")],
    *,
    id: Annotated[
        str | None, typer.Option(show_default=False, help="Run id; the same id and input again is the same run.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(show_default=False, help="Not before: an ISO 8601 instant (UTC without an offset), or +30s, +5m."),
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first among what is due.")] = 0,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", show_default=False, help="May be repeated.")
    ] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Queue a run of KIND and print its id."""
    value = read_input(input)
    due = read_instant(at) if at is not None else None
    tags = read_tags(tag or [])
    async with place.ledger(creates=True) as ledger:
        handle: Handle[Any] = await ledger.submit(kind, value, id=id, at=due, priority=priority, tags=tags)
        return await _answer(ledger, handle, wait=wait, timeout=timeout, output=output)


async def retry(
    place: Place,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    *,
    step: Annotated[
        int | None,
        typer.Option("--from", metavar="STEP", min=1, show_default=False, help="Keep the steps before this one."),
    ] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Queue RUN again from its input, as RUN-retry, or from a step.

    Prints the new id; asked again, it is the same run.
    """
    async with place.ledger() as ledger:
        handle = await ledger.retry(run, step=step)
        return await _answer(ledger, handle, wait=wait, timeout=timeout, output=output)


async def fork(
    place: Place,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    *,
    at: Annotated[
        str, typer.Option(metavar="STEP", help="After so many steps; or the address of an event, like 12.0.")
    ],
    id: Annotated[
        str | None, typer.Option(show_default=False, help="Id of the new run; the same again is the same run.")
    ] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Queue a new run that begins where RUN stood after STEP.

    Nothing is shared and RUN stays as it is. Prints the new id.
    """
    async with place.ledger() as ledger:
        handle = await ledger.fork(run, at=at, id=id)
        return await _answer(ledger, handle, wait=wait, timeout=timeout, output=output)


async def _answer(ledger: Ledger, handle: Handle[Any], *, wait: bool, timeout: float | None, output: Shape) -> int:
    if timeout is not None and not wait:
        hint("tenure: --timeout is for --wait, which was not given: nothing is waited for")
    if wait:
        return await _waited(ledger, handle, timeout)
    if output is Shape.TABLE:
        write(f"{handle.id}\n")
        if sys.stderr.isatty():  # a script may well queue runs before it starts a worker
            await _tell_unserved(ledger, handle)
        return Exit.OK
    from tenure.views.values import run_value

    facts = await ledger.store.facts()
    write_json(run_value(await handle.load(), now_ms=facts.now_ms), output)
    return Exit.OK


async def _waited(ledger: Ledger, handle: Handle[Any], timeout: float | None) -> int:
    """Print the result as JSON; a run that ended otherwise is an error of its own, with its exit code."""
    import anyio

    look = f"look with `tenure show {handle.id}`, or wait again with the same id"
    try:
        async with _told(ledger, handle):
            try:
                result = await handle.result(timeout=timeout)
            except TimeoutError:
                hint(f"tenure: run {handle.id} {await _so_far(ledger, handle, timeout or 0)}; {look}")
                return Exit.FAILED
    except anyio.get_cancelled_exc_class():  # Ctrl-C: nothing else has named the run yet
        hint(f"tenure: run {handle.id} goes on; {look}")
        raise
    write_json(result)
    return Exit.OK


async def _so_far(ledger: Ledger, handle: Handle[Any], waited_s: float) -> str:
    """What the run has come to for who waits no longer."""
    import anyio

    from tenure.core.run import Status
    from tenure.errors import StoreUnavailable

    with anyio.move_on_after(ANSWER_S):
        try:
            run = await handle.load()
            if run.status is not Status.QUEUED:
                return f"has not ended within {waited_s:g} s and goes on"
            alone = await _unserved(ledger, handle)
            return f"is still queued after {waited_s:g} s{f': {alone}' if alone else ''}"
        except StoreUnavailable:
            pass
    return f"has not ended within {waited_s:g} s, and the store does not answer"


async def _tell_unserved(ledger: Ledger, handle: Handle[Any]) -> None:
    import anyio

    from tenure.errors import StoreUnavailable

    with suppress(StoreUnavailable), anyio.move_on_after(ANSWER_S):  # the run is queued, whatever comes after
        if alone := await _unserved(ledger, handle):
            hint(f"tenure: {alone}")


async def _unserved(ledger: Ledger, handle: Handle[Any]) -> str:
    """Why a run that is due stays queued, as far as the rows of the workers tell; empty if one of them may claim it."""
    from tenure.cli.census import served
    from tenure.core.run import Status

    run, facts = await handle.load(), await ledger.store.facts()
    kinds = served(await ledger.store.beats(), facts)
    if run.status is not Status.QUEUED or (run.due_ms or 0) > facts.now_ms or run.kind in kinds:
        return ""
    nobody = f"there is no live worker at all on {ledger.store.url}"
    more = f" and {len(kinds) - 10} more" if len(kinds) > 10 else ""
    there = f"served are {', '.join(sorted(kinds)[:10])}{more}" if kinds else nobody
    return f"no live worker serves kind {run.kind} ({there}); start one with `tenure worker MODULE:APP`"


@asynccontextmanager
async def _told(ledger: Ledger, handle: Handle[Any]) -> AsyncIterator[None]:
    """Tell while the block waits for the run: on a terminal how far it is, elsewhere once that nobody serves it."""
    import anyio

    with progress(handle.id) as tell:
        async with anyio.create_task_group() as watching:
            if sys.stderr.isatty():
                watching.start_soon(_tell_how_far, ledger, handle, tell)
            else:
                watching.start_soon(_tell_once, ledger, handle)
            try:
                yield
            finally:
                watching.cancel_scope.cancel()


async def _tell_how_far(ledger: Ledger, handle: Handle[Any], tell: Callable[[str], None]) -> None:
    import anyio

    from tenure.cli.census import served
    from tenure.errors import StoreUnavailable
    from tenure.views.tables import note_on

    while True:
        try:
            run, facts = await handle.load(), await ledger.store.facts()
            kinds = served(await ledger.store.beats(), facts)
            note, _ = note_on(run, now_ms=facts.now_ms, served=kinds)
            tell(f"{run.id}: {run.status.value}, step {run.step}{f', {note}' if note else ''}")
        except StoreUnavailable:
            tell(f"{handle.id}: the store does not answer; waiting for it")
        await anyio.sleep(LOOK_S)


async def _tell_once(ledger: Ledger, handle: Handle[Any]) -> None:
    import anyio

    from tenure.errors import StoreUnavailable

    while True:
        await anyio.sleep(QUIET_S)
        try:
            alone = await _unserved(ledger, handle)
        except StoreUnavailable:
            continue
        if alone:
            hint(f"tenure: run {handle.id} waits: {alone}")
            return
