"""Power losses under a SQLite file: what was written and flushed is recorded, and many images of it are opened anew."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio import to_process

from tenure.clock import Clock, SystemClock
from tenure.errors import TenureError
from tenure.store import Durability
from tenure.stores import sqlite
from tenure.stores._sqlite_host import Host
from tenure.testing._parent import die_with_parent
from tenure.testing.campaigns import MEMORY
from tenure.testing.chaos import _sqlite_tape as tapes
from tenure.testing.chaos._power_images import image
from tenure.testing.chaos._sqlite_tape import Event
from tenure.testing.chaos._tale import Held, Tale, Teller, stuck, unlike, unsound
from tenure.testing.chaos.kinds import Kind, Place, Played

CHANGES = 40
NAME = "t.db"


class _Rebooted(SystemClock):
    """The clocks after a power loss: boot time begins anew, and the wall clock may have lost the date."""

    def __init__(self, *, dated: bool) -> None:
        self._begun_ns = super().boot_ns()
        self._back_ms = 0 if dated else super().now_ms()

    def boot_ns(self) -> int:
        return super().boot_ns() - self._begun_ns

    def now_ms(self) -> int:
        return super().now_ms() - self._back_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What another process is to judge: a tape, and where on it the power is lost, with a seed for each time."""

    events: Sequence[Event]
    tale: Tale
    cuts: Sequence[tuple[int, int]]
    dated: bool
    """Whether the machine knows the date when it is started again."""


class Power(Kind):
    """One tape of a tale, and images of a power loss anywhere on it."""

    name = "power"
    stores = ("sqlite",)
    short, long, batch = 10, 250, 5
    images = 200
    """How many images are made of each tape."""
    level = Durability.DISK
    lies = False
    """Whether the disk says that it flushed and does not: nothing can be kept then, and much has to be found."""

    async def play(self, seed: int, place: Place, /) -> Played:
        """Record a tale, and judge what power losses leave of it in another process."""
        tale, events = await self.recorded(seed, place.folder / "disk")
        if self.lies:
            events = [event for event in events if event.what != "sync"]
        drawn = random.Random(f"{self.name}:{place.name}:{seed}")
        cuts = [(drawn.randrange(len(events) + 1), drawn.getrandbits(32)) for _ in range(self.images)]
        losses = Losses(events=events, tale=tale, cuts=cuts, dated=seed % 2 == 0)
        wrong, counts = await to_process.run_sync(judged, losses, cancellable=True)
        return Played(violations=wrong, counts=counts, note=f"{len(events)} events")

    async def recorded(self, seed: int, folder: Path) -> tuple[Tale, list[Event]]:
        """Play a tale on a new file, and return what was asked of the file system meanwhile."""
        folder.mkdir()  # noqa: ASYNC240 - nobody else waits for this loop
        tape = tapes.record(folder)
        try:
            async with _store(folder, SystemClock(), "boot-1", self.level) as store:
                # A log of a few pages: each tape has several of its ends, where pages move into the file.
                await store._written(lambda work: work.connection.execute("PRAGMA wal_autocheckpoint = 20"))  # noqa: SLF001

                async def look() -> Held:
                    return rows_of(folder / NAME)

                tale = await Teller(store=store, seed=seed, where=lambda: len(tape.events), look=look).play(CHANGES)
        finally:
            tapes.stop(tape)
        return tale, tape.events


def _store(folder: Path, clock: Clock, boot: str, level: Durability) -> sqlite.SqliteStore:
    return sqlite.open_url(
        f"sqlite:///{folder / NAME}", namespace="power", durability=level, allow=(), clock=clock, options={},
        host=Host(boot=boot, mounts=""),
    )  # fmt: skip


def judged(losses: Losses, /) -> tuple[list[str], Counter[str]]:
    """Open every image as a machine does that was started again, and return what is wrong, and counts."""
    die_with_parent()
    # By the name of what is removed where this is broken off.
    prefix = f"{Path(tempfile.gettempdir()).name}-power-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY if MEMORY.is_dir() else None) as base:
        return anyio.run(_judged, losses, Path(base))


async def _judged(losses: Losses, base: Path) -> tuple[list[str], Counter[str]]:
    wrong, counts, seen = list[str](), Counter[str](), set[bytes]()
    for number, (at, seed) in enumerate(losses.cuts):
        harm, files = image(losses.events[:at], random.Random(seed))
        known = _digest(files)
        counts["images"] += 1
        counts["images like another"] += known in seen
        seen.add(known)
        folder = base / str(number)
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        found = await _image(folder, losses, at, counts, wholly=number % 8 == 0)
        wrong += [f"power lost after event {at} (image {seed}, {harm} written): {one}" for one in found]
        shutil.rmtree(folder)
    return wrong, counts


def _digest(files: dict[str, bytes]) -> bytes:
    said = hashlib.sha256()
    for name, data in sorted(files.items()):
        said.update(f"{name} {len(data)} ".encode() + data)
    return said.digest()


async def _image(folder: Path, losses: Losses, at: int, counts: Counter[str], *, wholly: bool) -> list[str]:
    tale, clock = losses.tale, _Rebooted(dated=losses.dated)
    try:
        async with _store(folder, clock, "boot-2", Durability.LOCAL) as store:
            wrong = unlike(rows_of(folder / NAME), tale, at, counts)
            if wholly and not wrong:
                wrong += [*await unsound(store, tale), *await stuck(store, tale, at, counts)]
        with contextlib.closing(sqlite3.connect(folder / NAME)) as connection:
            said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except (TenureError, sqlite3.Error) as error:
        return [f"it cannot be read: {error}"]
    return wrong if said == ["ok"] else [*wrong, f"integrity_check: {said[:3]}"]


TABLES = ("space", "run", "journal", "inbox", "blob")


def rows_of(path: Path) -> Held:
    """Return every row of the tables that hold runs."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in TABLES}  # noqa: S608
