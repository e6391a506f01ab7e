"""What a command writes: tables for people, one JSON value or one line a value for machines; hints go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from tenure.store import Store
    from tenure.views.tables import Table

PIPE_WIDTH = 20_000
"""What is not a terminal has no edge: nothing is cut, and programs that split by columns see whole cells."""


class Shape(StrEnum):
    """How a command answers."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Shape, typer.Option("-o", "--output", help="How to answer.")]


def show(*parts: str | Text | Table) -> None:
    """Write lines and tables to stdout: in colours and fitted on a terminal, else plain and uncut."""
    show_table_page(*parts)


def show_table_page(*parts: str | Text | Table, widths: Sequence[int] = (), show_head: bool = True) -> None:
    """Write one page of a listing; where nothing has to fit, its columns are as wide as `widths`."""
    from rich.console import Console

    from tenure.views.tables import Table, fitted, rich_table

    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else PIPE_WIDTH)
    with console.capture() as captured:
        for part in parts:
            if not isinstance(part, Table):
                console.print(part, soft_wrap=True, markup=False)
            elif terminal:
                console.print(rich_table(fitted(part, console.width), room=console.width, show_head=show_head))
            else:
                console.print(rich_table(part, widths=widths, show_head=show_head))
    text = captured.get()
    write(text if terminal else "".join(line.rstrip() + "\n" for line in text.splitlines()))


def write(text: str) -> None:
    """Write text to stdout; what its encoding has no sign for stands as an escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def hint(text: str) -> None:
    """Tell people something beside the answer, on stderr."""
    sys.stderr.write(f"{text}\n")


def hint_none(store: Store, /, *, narrowed: bool) -> None:
    """Tell people that nothing was found, and where there is nothing at all."""
    hint("no such run is in the store" if narrowed else f"no runs in namespace {store.namespace} of {store.url}")


def write_json(value: Any, shape: Shape = Shape.JSON) -> None:
    """Write one value: indented for json, on one line for jsonl."""
    write(_json(value, shape) + "\n")


def _json(value: Any, shape: Shape) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2 if shape is Shape.JSON else None)


async def write_values(values: AsyncIterator[Any], shape: Shape) -> int:
    """Write values as they come, an array for json and a line each for jsonl, and return how many; none is kept."""
    count = 0
    async for value in values:
        if shape is Shape.JSON:
            write(("[\n" if count == 0 else ",\n") + _json(value, shape))
        else:
            write(_json(value, shape) + "\n")
        count += 1
    if shape is Shape.JSON:
        write("[]\n" if count == 0 else "\n]\n")
    return count


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a line that moves on stderr while something takes long; nothing if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(text) as status:
        yield status.update
