"""What the evidence programs share: the stores that they run on, and the line that one leaves in docs/evidence.md."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.testing import campaigns
from tenure.testing.servers import REDIS_KINDS, ServerKind, ServerMissing, endpoint, find_program

ROOT = Path(__file__).parents[1]
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


def versions(found: Sequence[Place]) -> str:
    """Return what ran, as words."""
    stores = [f"{place.name} {place.version}".strip() for place in found]
    return ", ".join([campaigns.running(), *stores])


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
    campaigns.record(bar=bar, seed=seed, counts=counts, ran=ran, violations=violations)
    print(f"recorded in {campaigns.PAGE}")
