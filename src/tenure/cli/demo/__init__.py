"""`demo`: real worker processes on a real store; one is killed, one is frozen, and every run ends once."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import OutputOption, Shape, show, write, write_json
from tenure.cli.paths import file_named
from tenure.cli.place import DEFAULT_URL, Place, command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenure.cli.demo.stage import Play
    from tenure.cli.demo.verdict import Claim, Told
    from tenure.store import Refused, Store
    from tenure.views.timeline import Chart


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(demo)


async def demo(
    place: Place,
    *,
    seed: Annotated[int, typer.Option(help="Where the blows fall.")] = 1,
    no_fence: Annotated[
        bool, typer.Option("--no-fence", help="The same on check-then-write snapshots: see the lost update.")
    ] = False,
    svg: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help="Write the picture.")] = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Kill one worker, freeze another, and watch every run finish once.

    Three real processes on one store, six runs, no network and no keys. Without --store the store is a SQLite file in a
    temporary folder. What is claimed at the end is recomputed from the store and from the workers' own logs; exit 1 if
    a line of it is not true.
    """
    from tenure.cli.demo import stage, verdict
    from tenure.cli.demo.book import read

    table, svg = output is Shape.TABLE, file_named(svg) if svg is not None else None
    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as room:
        folder = Path(room)
        url, store = _store(place, folder, no_fence=no_fence)
        async with _opened(store) as store:
            play = stage.Play(
                store=store,
                url=url,
                folder=folder,
                seed=seed,
                fence=not no_fence,
                say=(lambda at, text: write(f"  {at}  {text}\n")) if table else lambda *_: None,
            )
            try:
                told = await stage.perform(play)
            except TimeoutError:
                return await _unfinished(play)
            lines = read(folder)
            refused = await store.refused(limit=100)
            claims = verdict.claims(told, lines)
            chart = _chart(told, refused, play, (await store.facts()).now_ms)
    if svg is not None:
        import anyio

        from tenure.views import chart_svg

        await anyio.Path(svg).write_text(chart_svg.draw(chart), encoding="utf-8")
    if table:
        _show(claims, chart, no_fence=no_fence)
    else:
        write_json([asdict(claim) for claim in claims], output)
    if no_fence:
        # Here the demonstration is that work is lost: it has failed if nothing was.
        return Exit.OK if any(not claim.ok for claim in claims) else Exit.FAILED
    return Exit.OK if all(claim.ok for claim in claims) else Exit.FAILED


def _store(place: Place, folder: Path, *, no_fence: bool) -> tuple[str, Store]:
    from tenure.stores import open_store

    if no_fence:
        from tenure.cli.demo.snapshot import SnapshotStore

        snapshots: Any = SnapshotStore(folder)
        return "snapshots", snapshots
    if place.url.startswith("memory:"):
        message = (
            "the demo runs three processes, and memory:// is one process's own; leave --store out or name a server"
        )
        raise UsageError(message)
    url = f"sqlite:///{folder}/demo.db" if place.url == DEFAULT_URL else place.url
    return url, open_store(url, namespace=f"demo-{secrets.token_hex(4)}")


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Store]:
    """Open the store, and leave nothing of the demo in it."""
    from tenure.core.run import Delete, End, How
    from tenure.errors import TenureError

    async with store as opened:
        try:
            yield opened
        finally:
            page = await opened.find(limit=100)
            for run in page.runs:
                for change in (End(run=run.id, how=How.CANCEL), Delete(run=run.id)):
                    try:
                        await opened.commit(change)
                    except TenureError:
                        continue


def _chart(told: list[Told], refused: list[Refused], play: Play, now_ms: int) -> Chart:
    from tenure.views import timeline as view

    lanes = []
    told_off = [replace(line, owner=_name(line.owner)) for line in refused]
    for t in told:
        landed = [view.Landed(at_ms=row.at_ms, token=row.token, seq=row.seq) for row in t.rows]
        seen = [
            view.Dot(mark=mark, at_ms=at_ms, owner=worker) for run, worker, mark, at_ms in play.blows if run == t.run.id
        ]
        # One worker of each name: people need no instance id here.
        grants = tuple(replace(line, owner=_name(line.owner)) for line in t.run.grants)
        lanes.append(
            view.lane(replace(t.run, grants=grants), landed=landed, refused=told_off, seen=seen, now_ms=now_ms)
        )
    return view.chart(lanes)


def _name(owner: str) -> str:
    return owner.partition("/")[0]


def _show(claims: list[Claim], chart: Chart, *, no_fence: bool) -> None:
    from tenure.views import chart_text

    write("\n")
    show(*chart_text.draw(chart, width=100))
    write("\n")
    for claim in claims:
        mark = "ok" if claim.ok else ("LOST" if no_fence else "NOT TRUE")
        write(f"  {claim.text:<40}{claim.found:<8}{mark:<10}{claim.note}".rstrip() + "\n")
    write("\n")
    write(
        "  this is what a check before the write is worth; now with the fence: tenure demo\n"
        if no_fence
        else "  see what happens without fencing: tenure demo --no-fence\n"
    )


async def _unfinished(play: Play) -> int:
    from tenure.cli.demo.book import read
    from tenure.cli.output import hint

    folder = play.folder
    hint(f"the runs did not end in time (killed in {play.killed or 'none'}, frozen in {play.frozen or 'none'}):")
    for run_id in play.runs:
        run = await play.store.load(run_id)
        hint(f"{run_id}: {run.status.value + ', grants ' + str(run.ordinal) if run is not None else 'not there'}")
    for told in read(folder)[-15:]:
        hint(f"{told.worker}: {told.what} {told.run} {told.said}")
    for file in sorted(folder.glob("*.err")):
        for line in file.read_text(errors="replace").splitlines()[-10:]:
            hint(f"{file.stem}: {line}")
    return Exit.FAILED
