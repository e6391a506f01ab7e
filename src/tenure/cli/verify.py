"""`verify`: does a journal say what its digests, its record and its own events say? Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import Exit, UsageError, report
from tenure.cli.output import OutputOption, Shape, hint_none, write, write_values
from tenure.cli.paths import file_named
from tenure.cli.place import Place, command
from tenure.core.text import count

if TYPE_CHECKING:
    from tenure.core.journal import Finding
    from tenure.core.verify import Verification
    from tenure.errors import RunNotFound
    from tenure.store import Store


def register(app: typer.Typer, /) -> None:
    """Add the command of this file."""
    command(app)(verify)


async def verify(
    place: Place,
    run: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", show_default=False, help="Ids of the runs.")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every run of the namespace.")] = False,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", show_default=False, help="An export, without any store.")
    ] = None,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Check the journal of RUN: its chain, its record, and that it explains all that its models were shown.

    Exits 6 if something contradicts it.
    """
    if bool(run) + every + (file is not None) != 1:
        message = "name one of these: runs, --all, --file FILE"
        raise UsageError(message)
    tally = _Tally(output)
    if file is not None:
        await tally.write(_one(_of_file(file_named(file))))
    else:
        async with place.store() as store:
            await tally.write(_each(store, run or [], tally.missing, place))
        if not tally.runs and not tally.missing:
            hint_none(store, narrowed=False)
    return tally.end()


def _of_file(file: str) -> Verification:
    from tenure.journal_file import verify_file

    try:
        return verify_file(file)
    except OSError as error:
        message = f"{file} cannot be read ({error.strerror}); name an export"
        raise UsageError(message) from None


async def _one(found: Verification) -> AsyncIterator[Verification]:
    yield found


async def _each(
    store: Store, wanted: list[str], missing: list[RunNotFound], place: Place
) -> AsyncIterator[Verification]:
    from tenure.cli.look import Found
    from tenure.core import ids
    from tenure.errors import RunNotFound
    from tenure.store import ALL
    from tenure.verifying import verified

    for run_id in [ids.run_id(text) for text in wanted]:
        try:
            one = await _verified(store, run_id)
        except RunNotFound:
            missing.append(place.without(run_id))
        else:
            yield one
    if wanted:
        return
    found = Found(store, ALL, 0)
    async for record in found.each():
        yield await verified(store, record.id)
    for run_id in found.corrupt:
        yield await _verified(store, run_id)


async def _verified(store: Store, run_id: str) -> Verification:
    """A record that cannot be read is a failure of that run, and hides no other."""
    from tenure.core.journal import Finding
    from tenure.core.verify import Verification
    from tenure.errors import CorruptRecord, StoreTooNew
    from tenure.verifying import verified

    try:
        return await verified(store, run_id)
    except CorruptRecord as error:
        return Verification(run=run_id, failures=(Finding(code="RECORD", seq=0, detail=error.message),))
    except StoreTooNew as error:
        return Verification(run=run_id, inconclusive=(Finding(code="NEWER", seq=0, detail=error.message),))


class _Tally:
    """Writes verifications as they come, and knows how many failed."""

    def __init__(self, output: Shape) -> None:
        self._output = output
        self.runs, self._failed = 0, 0
        self.missing: list[RunNotFound] = []

    async def write(self, found: AsyncIterator[Verification]) -> None:
        if self._output is not Shape.TABLE:
            await write_values(self._values(found), self._output)
            return
        async for one in self._counted(found):
            _show(one)

    def end(self) -> int:
        if self._output is Shape.TABLE and self.runs > 1:
            write(f"{count(self.runs, 'run')}, {self._failed:,} not verified\n")
        for error in self.missing:
            report(error)
        return Exit.NOT_VERIFIED if self._failed else Exit.NOT_FOUND if self.missing else Exit.OK

    async def _counted(self, found: AsyncIterator[Verification]) -> AsyncIterator[Verification]:
        async for one in found:
            self.runs += 1
            self._failed += not one.ok
            yield one

    async def _values(self, found: AsyncIterator[Verification]) -> AsyncIterator[dict[str, Any]]:
        from tenure.views.values import verification_value

        async for one in self._counted(found):
            yield verification_value(one)


def _show(found: Verification) -> None:
    stats = found.stats
    said = "verified" if found.ok else "NOT VERIFIED"
    counts = {"commit": stats.commits, "event": stats.events, "model request": stats.requests, "block": stats.blocks}
    looked = ", ".join(count(number, noun) for noun, number in counts.items())
    write(f"{found.run} {said} ({looked})\n")
    for label, findings in (("failure", found.failures), ("inconclusive", found.inconclusive)):
        for one in findings:
            write(f"  {label} {_line(one)}\n")


def _line(found: Finding) -> str:
    from tenure.views.figures import clean

    return clean(f"{found.code} at {found.at}" + (f": {found.detail}" if found.detail else ""))
