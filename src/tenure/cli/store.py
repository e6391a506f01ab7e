"""`tenure store`: what is done to a store as a whole: its runs to a file and back, another history."""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import Exit, UsageError
from tenure.cli.output import OutputOption, Shape, hint, progress, write, write_json
from tenure.cli.paths import file_named, is_stream, streamed
from tenure.cli.place import Place, command
from tenure.core.text import count

if TYPE_CHECKING:
    from tenure.core.run import Import
    from tenure.store import Store

BATCH_RUNS = 50
BATCH_BYTES = 4 * 1024 * 1024
NAMED = 10
"""How many ids of one kind of trouble are named."""


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file as a group."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="store", help="What is done to a store as a whole.")
    command(group, "export")(export_runs)
    command(group, "import")(import_runs)
    command(group, "new-history")(new_history)


async def export_runs(
    place: Place,
    to: Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="Where to; stdout if not given.")] = "-",
    *,
    file: Annotated[
        str, typer.Option("--file", metavar="FILE", show_default=False, help="The same, as an option.")
    ] = "-",
    run: Annotated[list[str] | None, typer.Option(show_default=False, help="Only this run; may be repeated.")] = None,
    status: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Only these; may be repeated, or split by commas.")
    ] = None,
    kind: Annotated[str, typer.Option(show_default=False, help="Only this kind.")] = "",
) -> int:
    """Write runs to FILE as lines of JSON.

    Each run as it was at one moment, with its journal, inbox and blobs. The file appears when it is whole; one that is
    there is left as it is.
    """
    from tenure import archive
    from tenure.cli.look import read_statuses
    from tenure.core import ids
    from tenure.errors import CorruptRecord
    from tenure.store import Where

    if "-" not in (to, file):
        message = f"two files are named, {to} and {file}; name one"
        raise UsageError(message)
    file = file_named(file if to == "-" else to)
    wanted = [ids.run_id(one) for one in run or []]
    where = Where(status=read_statuses(status or []), kind=kind)
    writer, said = archive.Writer(), Trouble()
    async with place.store() as store:
        with _written(file) as out, progress("exporting") as tell:
            facts = await store.facts()
            out.write(writer.head(namespace=store.namespace, at_ms=facts.now_ms))
            async for run_id in _named(wanted) if wanted else _found(store, where, said):
                try:
                    found = await archive.whole(store, run_id)
                except CorruptRecord as error:
                    said.add("damaged", run_id, error.message)
                    continue
                if found is None:
                    if wanted:
                        said.add("missing", run_id, place.without(run_id).message)
                    continue
                for line in writer.run(found):
                    out.write(line)
                tell(f"exported {count(writer.runs, 'run')}")
            out.write(writer.end())
    said.tell()
    hint(f"exported {count(writer.runs, 'run')} of {store.url}, namespace {store.namespace}")
    return Exit.NOT_VERIFIED if said.count["damaged"] else Exit.NOT_FOUND if said.count["missing"] else Exit.OK


async def import_runs(
    place: Place,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `tenure store export` wrote; - for stdin.")],
    *,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Bring the runs of FILE into the store.

    Each arrives whole or not at all, held by nobody. Asked again, runs that are there are left alone; another run under
    the same id is named, and the rest goes on.
    """
    from tenure import archive
    from tenure.carry import bring
    from tenure.errors import CorruptRecord, TenureError

    said, salt = Trouble(), secrets.token_hex(8)
    batch: list[Import] = []
    size, torn = 0, None
    # The store is opened for the first runs: what is no export makes none.
    async with AsyncExitStack() as opened:
        into = _Into(place, opened, said)
        with _read(file) as lines, progress("importing") as tell:
            try:
                async for found in archive.Reader().read(_lines(lines)):
                    if isinstance(found, CorruptRecord):
                        said.add("damaged", found.run_id or "", found.message)
                        continue
                    try:
                        batch.append(bring(found, salt=salt))
                    except TenureError as error:
                        said.add("damaged", found.record.id, error.message)
                        continue
                    size += sum(len(row.body) for row in found.rows) + sum(map(len, found.blobs.values()))
                    if len(batch) >= BATCH_RUNS or size > BATCH_BYTES:
                        await into.bring(batch)
                        batch, size = [], 0
                        tell(f"imported {count(said.count['imported'], 'run')}")
            except CorruptRecord as error:
                torn = error  # what came whole before it stays
            await into.bring(batch)
    said.tell()
    _tell_counts(said, output)
    if torn is not None:
        raise torn
    if said.count["damaged"]:
        return Exit.NOT_VERIFIED
    return Exit.CONFLICT if said.count["conflict"] else Exit.OK


@dataclass(slots=True)
class _Into:
    """The store that an import goes into, opened when the first run is there."""

    place: Place
    opened: AsyncExitStack
    said: Trouble
    store: Store | None = None

    async def bring(self, batch: list[Import]) -> None:
        """Bring in some runs, and count what became of each."""
        from tenure.core.run import Answer, Verdict, Why
        from tenure.errors import CorruptRecord

        if not batch:
            return
        if self.store is None:
            self.store = await self.opened.enter_async_context(self.place.lasting())
        store = self.store
        for change, answer in zip(batch, await store.commit_many(batch), strict=True):
            if not isinstance(answer, Answer):
                raise answer
            if answer.ok:
                self.said.count["imported" if answer.verdict is Verdict.LANDED else "already"] += 1
            elif answer.why is Why.CONFLICT:
                text = f"run {change.run} is in {store.url} with a history of its own, and stays: import elsewhere"
                self.said.add("conflict", change.run, text)
            else:
                message = f"run {change.run} was not taken in ({answer.why}); see `tenure show {change.run} --raw`"
                raise CorruptRecord(message, run_id=change.run)


def _tell_counts(said: Trouble, output: Shape) -> None:
    counts = {name: said.count[name] for name in ("imported", "already", "conflict", "damaged")}
    if output is not Shape.TABLE:
        write_json(counts, output)
        return
    already = f"{counts['already']:,} {'was' if counts['already'] == 1 else 'were'}"
    extra = "".join(f", {counts[name]:,} {name}" for name in ("conflict", "damaged") if counts[name])
    write(f"{count(counts['imported'], 'run')} imported, {already} there already{extra}\n")


async def new_history(place: Place) -> int:
    """Make every grant one of the past, after a backup was put back.

    A holder goes on only where the store still has what it was told.
    """
    from tenure.errors import NotAllowed
    from tenure.store import Restorable

    async with place.store() as store:
        if not isinstance(store, Restorable):
            message = f"{store.url} has no history of its own to change; see docs/backup.md"
            raise NotAllowed(message)
        await store.new_history()
        facts = await store.facts()
        write(f"{store.url} is in a new history, epoch {facts.epoch}\n")
    return Exit.OK


@dataclass(slots=True)
class Trouble:
    """What went otherwise: counted by a word, the first few named."""

    count: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)

    def add(self, word: str, run_id: str, text: str) -> None:
        """Count one, and keep what is to be said of it if there are few."""
        self.count[word] += 1
        if self.count[word] <= NAMED:
            self.texts.append(f"{word}: {text}" if run_id in text else f"{word}: {run_id}: {text}")

    def tell(self) -> None:
        """Say what is kept, on stderr."""
        from tenure.views.figures import clean

        for text in self.texts:
            hint(clean(text))
        for word, times in self.count.items():
            if word not in ("imported", "already") and times > NAMED:
                hint(f"{word}: and {times - NAMED:,} more")


async def _named(run_ids: list[str]) -> AsyncIterator[str]:
    for run_id in dict.fromkeys(run_ids):
        yield run_id


async def _found(store: Store, where: object, said: Trouble) -> AsyncIterator[str]:
    from tenure.cli.look import Found
    from tenure.store import Where

    found = Found(store, where if isinstance(where, Where) else Where(), 0)
    async for run in found.each():
        yield run.id
    for run_id in found.corrupt:
        said.add("damaged", run_id, f"the record of run {run_id} cannot be read")


@contextmanager
def _written(path: str) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is whole, and is forced to disk before."""
    if is_stream(path):
        with streamed(path) as out:
            yield out
        return
    if Path(path).is_file():
        message = f"{path} is there and stays as it is; name another file, or remove it first"
        raise UsageError(message)
    whole = Path(os.path.realpath(path))  # a link to where the file is to be stays one
    part = whole.with_name(f"{whole.name}.part")
    try:
        with part.open("wb") as file:
            part.chmod(0o600)  # it holds all that runs were given
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
    except OSError as error:
        _drop(part)
        message = f"{path} could not be written ({error.strerror}); name another, or make room"
        raise UsageError(message) from None
    except BaseException:
        _drop(part)
        raise


def _drop(part: Path) -> None:
    with suppress(OSError):
        part.unlink()


@contextmanager
def _read(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(file_named(path)).open("rb")  # noqa: SIM115 - closed below; only opening it is the user's mistake
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); name a file that `tenure store export` wrote"
        raise UsageError(message) from None
    with file:
        yield file


async def _lines(file: IO[bytes]) -> AsyncIterator[bytes]:
    for line in file:
        yield line
