"""What a command writes: tables for people, one JSON value or one line a value for machines; hints go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PIPE_WIDTH = 20_000
"""What is not a terminal has no edge: nothing is cut, and programs that split by columns see whole cells."""


class Shape(StrEnum):
    """How a command answers."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Shape, typer.Option("-o", "--output", help="How to answer.")]


def show(*parts: RenderableType) -> None:
    """Write tables and lines to stdout: in colours on a terminal, else plain and uncut."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else PIPE_WIDTH)
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str), markup=False)
    text = captured.get()
    if not terminal:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    write(text)


def show_lines(lines: list[Text]) -> None:
    """Write lines of styled text, none of them wrapped."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    write(captured.get())


def write(text: str) -> None:
    """Write text to stdout; what its encoding has no sign for stands as an escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def hint(text: str) -> None:
    """Tell people something beside the answer, on stderr."""
    sys.stderr.write(f"{text}\n")


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
