"""What the evidence programs share: the stores that they run on, and the line that one leaves in docs/evidence.md."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

import tenure
from tenure.testing.servers import REDIS_KINDS, ServerKind, ServerMissing, endpoint, find_program

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence.md"
STORES = ("sqlite", *(kind.name for kind in REDIS_KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store to run on: its name, URL, version, and a folder for call logs."""

    name: str
    url: str
    version: str
    folder: Path


@contextlib.contextmanager
def places(names: Sequence[str], keep: Path | None = None) -> Iterator[list[Place]]:
    """Bring up the stores of these names, or of one URL; gone at the end, but for call logs in the folder to `keep`."""
    with contextlib.ExitStack() as opened:
        if keep is not None:
            keep.mkdir(parents=True)
        folder = keep or Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tenure-bars-")))
        yield [_place(name, folder, opened) for name in names]


def _place(name: str, folder: Path, opened: contextlib.ExitStack) -> Place:
    logs = folder / str(len(list(folder.iterdir())))
    logs.mkdir()
    if "://" in name:
        return Place(name=name.partition(":")[0], url=name, version="", folder=logs)
    if name == "sqlite":
        import sqlite3

        return Place(name=name, url=f"sqlite:///{logs}/bars.db", version=sqlite3.sqlite_version, folder=logs)
    kind = next(kind for kind in REDIS_KINDS if kind.name == name)
    try:
        served = opened.enter_context(endpoint(kind))
    except ServerMissing as missing:
        sys.exit(f"{name}: {missing}")
    return Place(name=name, url=served.url, version=served.version, folder=logs)


def played(main: Callable[..., Awaitable[None]], *args: Any, show: Callable[[], object]) -> bool:
    """Play to the end, and return True; what was seen up to where it was broken off or failed is shown."""
    try:
        anyio.run(main, *args)
    except KeyboardInterrupt:
        print("broken off; up to here:")
        show()
        return False
    except Exception:
        show()
        raise
    return True


def versions(found: Sequence[Place]) -> str:
    """Return what ran, as words."""
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - whichever git is here
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    stores = [f"{place.name} {place.version}".strip() for place in found]
    return ", ".join([f"tenure {tenure.__version__} ({said})", f"Python {platform.python_version()}", *stores])


def programs(kinds: Sequence[ServerKind]) -> list[Place]:
    """Return the local programs of these kinds of servers, for `versions`."""
    found = []
    for kind in kinds:
        said = subprocess.run(
            [str(find_program(kind)), "--version"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        version = said.partition("v=")[2].partition(" ")[0]
        found.append(Place(name=kind.name, url="", version=version, folder=Path()))
    return found


def record(*, bar: str, seed: int, counts: str, ran: str, violations: int) -> None:
    """Append one line to the table that ends docs/evidence.md."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    with PAGE.open("a", encoding="utf-8") as page:
        page.write(f"| {when} | {bar} | {seed} | {counts} | {ran} | {violations} |\n")
    print(f"recorded in {PAGE.relative_to(ROOT)}")
