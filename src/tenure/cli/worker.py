"""`worker` and `sweep`: execute an app's runs, or look once what is due."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, hint, write, write_json
from tenure.cli.place import Place, command

if TYPE_CHECKING:
    from tenure.store import Store
    from tenure.sweep import SweepReport
    from tenure.worker import Worker

log = logging.getLogger("tenure.worker")

READY_S = 0.05

AppArgument = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App object, for example fleet:app.")]


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(worker)
    command(app)(sweep)


async def worker(
    place: Place,
    app: AppArgument,
    *,
    processes: Annotated[
        int, typer.Option(min=0, help="Child processes under a supervisor; 0 works in this process.")
    ] = 2,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at a time in each process.")] = 10,
    kinds: Annotated[
        str | None, typer.Option(metavar="A,B", show_default=False, help="Only these kinds of the app.")
    ] = None,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that a step in hand gets when the worker stops.")] = 25,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", show_default=False, help="Answer /live and /ready here.")
    ] = None,
    retain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS=TIME",
            show_default=False,
            help="Delete settled runs after, as completed=7d; may be repeated.",
        ),
    ] = None,
) -> int:
    """Execute the runs of an app until SIGTERM or SIGINT.

    The first signal drains: steps in hand end, runs are handed back. The second stops at once.
    """
    from tenure import health as answers
    from tenure.core import ids
    from tenure.loading import find_app

    find_app(app)
    wanted = [ids.kind_name(name) for name in kinds.split(",")] if kinds is not None else None
    at = answers.address(health) if health is not None else None
    kept = read_retention(retain or [])
    if processes == 0:
        await _here(place, app, at=at, concurrency=concurrency, kinds=wanted, drain=drain, retention=kept)
        return Exit.OK
    from tenure.supervisor import Supervisor

    settings = {
        "app": app,
        "url": place.url,
        "namespace": place.namespace,
        "ttl": place.ttl_s,
        "concurrency": concurrency,
        "kinds": wanted,
        "drain": drain,
        "retention": kept,
        "log": logging.getLevelName(logging.getLogger("tenure").getEffectiveLevel()),
    }
    spawned = (sys.executable, "-m", "tenure.cli.child")
    store = place.store(creates=True)
    supervisor = Supervisor(store, spawned, settings, processes=processes, drain=drain, ttl=place.ttl_s)
    async with store:
        greeting = _greeting(app, store, f"with {processes} process{'es' * (processes > 1)}")
        await _beside(supervisor.run, at, greeting, live=lambda: supervisor.live, ready=lambda: supervisor.ready)
    return Exit.OK


def read_retention(given: list[str], /) -> dict[str, float]:
    """Return how long settled runs are kept, in seconds by status; UsageError for what is none."""
    from tenure.cli.exits import UsageError
    from tenure.cli.reading import read_age
    from tenure.errors import NotAllowed
    from tenure.retention import retention

    kept = {}
    for text in given:
        status, mark, time = text.partition("=")
        if not mark:
            message = f"{text[:40]!r} says no length of time; write STATUS=TIME, for example completed=7d"
            raise UsageError(message)
        kept[status] = read_age(time)
    try:
        retention({**kept})
    except NotAllowed as error:
        raise UsageError(error.message) from None
    return kept


async def _here(place: Place, path: str, *, at: tuple[str, int] | None, **settings: Any) -> None:
    from tenure.loading import load_app
    from tenure.worker import Worker

    app = load_app(path)
    async with place.store(creates=True) as store:
        made = Worker(app, store, ttl=place.ttl_s, **settings)

        async def run() -> None:
            async with made:
                await _until_signalled(made)

        greeting = _greeting(path, store, "in this process")
        await _beside(run, at, greeting, live=lambda: live(made), ready=lambda: made.ready)


def _greeting(app: str, store: Store, how: str) -> str:
    way_out = "; Ctrl-C stops it" if sys.stderr.isatty() else ""
    return f"tenure: ready: {app} waits for runs on {store.url}, namespace {store.namespace}, {how}{way_out}"


async def _greet(greeting: str, ready: Callable[[], bool]) -> None:
    """Say once that runs are taken, to who looks at a terminal and to who reads a log."""
    import anyio

    while not ready():  # noqa: ASYNC110 - what children tell is looked at by everybody in the same way
        await anyio.sleep(READY_S)
    with suppress(OSError, ValueError):  # a stderr that is gone is no reason to stop
        hint(greeting)


async def _until_signalled(made: Worker) -> None:
    import anyio

    async def obey() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            grace: float | None = None
            async for number in signals:
                log.warning("%s: draining", signal.Signals(number).name)
                tasks.start_soon(_drain, made, grace)
                grace = 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(obey)
        await made.ended()
        tasks.cancel_scope.cancel()


async def _drain(made: Worker, grace: float | None) -> None:
    await made.drain(grace=grace)


def live(made: Worker, /) -> bool:
    """Return whether the heartbeat answers; that anybody is told says that the loop does.

    It may wait ttl/6 for a store that is away, which is no reason to end the worker.
    """
    ledger = made.ledger
    return (ledger.clock.boot_ns() - ledger.pulse.turned_ns) / 1e6 < ledger.ttl_ms


async def _beside(
    run: Callable[[], Awaitable[None]],
    at: tuple[str, int] | None,
    greeting: str,
    *,
    live: Callable[[], bool],
    ready: Callable[[], bool],
) -> None:
    """Run, and say when runs are taken; with the health answers beside it where they are asked for."""
    import anyio

    from tenure import health

    async with anyio.create_task_group() as tasks:
        if at is not None:
            await tasks.start(partial(health.serve, *at, live=live, ready=ready))
        tasks.start_soon(_greet, greeting, ready)
        await run()
        tasks.cancel_scope.cancel()


async def sweep(
    place: Place,
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Recover what is due with this app.", show_default=False),
    ] = None,
    *,
    limit: Annotated[
        int | None, typer.Option(min=1, show_default=False, help="With an app: recover at most this many.")
    ] = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Put the due index right and list the runs that are due and in nobody's hands.

    With an app, each of them is claimed and recovered here, once.
    """
    from tenure.loading import load_app
    from tenure.sweep import Sweeper

    found = load_app(app) if app is not None else None
    async with place.ledger() as ledger:
        if found is None:
            report = await Sweeper(ledger).sweep()
        else:
            async with found.running() as deps:
                report = await Sweeper(ledger, found, deps=deps).recover_all(limit=limit)
    _write_report(report, output)
    return Exit.OK if report.complete else Exit.UNREACHABLE


def _write_report(report: SweepReport, output: Shape) -> None:
    if output is not Shape.TABLE:
        entries = [{"run": e.run, "code": e.code, "message": e.message} for e in report.entries]
        whole = {"entries": entries, "complete": report.complete, "next_due_ms": report.next_due_ms}
        write_json(whole, output)
        return
    for entry in report.entries:
        write(f"{entry.run}  {entry.code}{'  ' + entry.message if entry.message else ''}\n")
    write(f"{len(report.entries)} due, {report.recovered} recovered{'' if report.complete else ', not complete'}\n")
