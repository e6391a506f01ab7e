"""The store of `--no-fence`: snapshots in files, checked first and written afterwards, as many programs do it.

It exists to show what happens without a fence and serves nothing but the demo. A commit reads a run's file, decides by
the same rules as every store, and then writes the whole run; between the two, anything may happen. All else is done
under a file lock, so that the one hole is the one that is shown.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import anyio

from tenure.cli.demo.book import Book
from tenure.codec import pack_item, pack_row, pack_run, unpack_item, unpack_row, unpack_run
from tenure.core.run import Answer, Change, Commit
from tenure.errors import TenureError
from tenure.store import Durability
from tenure.stores.memory import MemoryStore, Shelf, place

PATIENCE_S = 0.3
WINDOW_S = 0.06
"""How long a commit stands between its check and its write."""


class SnapshotStore:
    """One JSON file a run; see above for what it is not."""

    level = Durability.LOCAL
    namespace = "demo"

    def __init__(self, folder: Path, book: Book | None = None) -> None:
        self.url = "snapshots"
        self._folder = folder / "snapshots"
        self._folder.mkdir(exist_ok=True)
        self._book = book
        self._inner = MemoryStore()

    def beside(self) -> Any:
        """Return another store object over the same folder."""
        return SnapshotStore(self._folder.parent)

    async def __aenter__(self) -> Self:
        """Open; there is nothing to connect to."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close."""
        await self._inner.__aexit__(*exc)

    def __getattr__(self, name: str) -> Any:
        """Return a read of the memory store, over what the files hold now."""
        method = getattr(self._inner, name)

        async def read(*args: Any, **named: Any) -> Any:
            with self._turn(write=False):
                pass  # what is read now is what the files hold now; the lock is never held over an await
            return await method(*args, **named)

        return read

    async def commit(self, change: Change, /) -> Answer:
        """Check, then write: a commit that was checked is written whatever has happened since."""
        if not isinstance(change, Commit):
            with self._turn(write=True):
                return self._inner.decide(change)
        with self._turn(write=False):
            answer = self._inner.decide(change)
            snapshot = self._packed(change.run)
        if answer.ok:
            if self._book is not None:
                self._book.write("checked", change.run, seq=change.row.seq, token=change.grant.token)
            time.sleep(WINDOW_S)  # noqa: ASYNC251 - the hole, on a thread that nothing interrupts
            with self._turn(write=False):
                self._write(change.run, snapshot)
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide changes one by one."""
        return [await self.commit(change) for change in changes]

    async def wake(self, topic: str, /) -> None:
        """Wake nobody: files ring no bells."""

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:  # noqa: ARG002 - part of the port
        """Wait a little."""
        await anyio.sleep(min(timeout, 0.1))
        return True

    @contextmanager
    def _turn(self, *, write: bool) -> Iterator[None]:
        with (self._folder / ".turn").open("w") as turn:
            _take(turn)
            space = self._inner.space
            space.shelves.clear()
            space.due.clear()
            for file in self._folder.glob("*.json"):
                shelf = _unpacked(json.loads(file.read_text()))
                space.shelves[shelf.run.id] = shelf
                place(space.due, shelf.run)
            before = {run_id: shelf.run for run_id, shelf in space.shelves.items()}
            yield
            if write:
                for run_id, shelf in space.shelves.items():
                    if before.get(run_id) != shelf.run:
                        self._write(run_id, self._packed(run_id))

    def _packed(self, run_id: str) -> str:
        shelf = self._inner.space.shelves[run_id]
        return json.dumps(
            {
                "run": pack_run(shelf.run),
                "rows": [_text(pack_row(row, row.at_ms)) for row in shelf.rows],
                "items": {item_id: _text(pack_item(item)) for item_id, item in shelf.items.items()},
                "blobs": {digest: _text(data) for digest, data in shelf.blobs.items()},
            },
        )

    def _write(self, run_id: str, snapshot: str) -> None:
        fresh = self._folder / f"{run_id}.{os.getpid()}.tmp"
        fresh.write_text(snapshot)
        fresh.replace(self._folder / f"{run_id}.json")


def _take(turn: IO[str]) -> None:
    """Wait for the turn, but not for one who was frozen with it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.002)


def _unpacked(found: dict[str, Any]) -> Shelf:
    return Shelf(
        run=unpack_run(found["run"]),
        rows=[unpack_row(seq, base64.b64decode(text)) for seq, text in enumerate(found["rows"], 1)],
        items={item_id: unpack_item(item_id, base64.b64decode(text)) for item_id, text in found["items"].items()},
        blobs={digest: base64.b64decode(text) for digest, text in found["blobs"].items()},
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
