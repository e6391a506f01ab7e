"""A thread of the SQLite store with one connection, at which tasks ask, and which can watch the file for others."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio

from tenure.stores._group import LIMIT, Line, Slot, give

LOOK_SECONDS = 0.02
"""How often the file is watched while somebody waits for a wake-up."""
QUIET_SECONDS = 0.1
"""After a wake-up from the file, how long until the next: a busy file must not turn waiting into spinning."""

HALF = 8
"""How many items a half has at least. Of twice as many that come at once the thread takes one half first, and flushes
it while the loop is with the other."""
STEP_SECONDS = 0.0001
"""What the loop does for one answer, about; where a flush takes longer than that for all, one for all is better."""

Tell = Callable[[], None]
"""Tells who was answered before; to be called before a disk or another process is waited for."""
Perform = Callable[[sqlite3.Connection, Sequence[Any], Tell], list[Any]]


class Desk:
    """A thread with one connection, which it opens, uses and closes alone."""

    def __init__(
        self,
        name: str,
        *,
        connect: Callable[[], sqlite3.Connection],
        perform: Perform,
        limit: int = LIMIT,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self._line: Line[Any, Any] = Line(limit=limit)
        self._connect = connect
        self._perform = perform
        self._changed = changed
        self._guard = threading.Lock()  # of the count: several loops may watch
        self._watchers = 0
        self._untold: tuple[Sequence[Slot[Any, Any]], Sequence[Any]] | None = None
        self._halved_from = 2 * HALF
        self._next_look = 0.0
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    async def start(self) -> None:
        """Open the connection; what opening raises is raised here, and the thread has ended."""
        self._thread.start()
        try:
            (answer,) = await self._line.ask([None])
        except BaseException:
            self._line.close()
            raise
        if answer is not None:
            raise answer

    async def ask(self, items: Sequence[Any], /) -> list[Any]:
        """Return the answer to each item, which may be an exception; see `Line.ask`."""
        return await self._line.ask(items)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While entered, `changed` is called soon after another connection has changed the file, this one never."""
        with self._guard:
            self._watchers += 1
        self._line.look_up()
        try:
            yield
        finally:
            with self._guard:
                self._watchers -= 1

    async def stop(self) -> None:
        """Serve what waits, close the connection and end the thread; not cut short by a cancellation."""
        self._line.close()
        with anyio.CancelScope(shield=True):
            # The thread needs the loop for nothing, so a look now and then is enough; it ends within milliseconds.
            while self._thread.is_alive():  # noqa: ASYNC110 - a thread has no event to await
                await anyio.sleep(0.001)

    def _serve(self) -> None:
        # The connection stays in this frame alone: after a fork the child must not close it.
        opening = self._line.take()
        if not opening:
            return
        try:
            connection = self._connect()
            version = _version(connection)
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._line.close()
            give(opening, [error])
            return
        give(opening, [None])
        with contextlib.closing(connection):
            while self._untold or not self._line.ended:
                if slots := self._take():
                    answers = self._answers(connection, [slot.item for slot in slots])
                    self._tell()
                    self._untold = slots, answers
                else:
                    self._tell()
                version = self._look(connection, version)

    def _take(self) -> list[Slot[Any, Any]]:
        if self._untold:
            # There is one interpreter lock: beside a busy loop the thread waits for it after each statement. So who was
            # answered is told when the statements of what waits next are done, and the loop works beside their flush.
            return self._line.take_now()
        return self._line.take(self._patience(), halved_from=self._halved_from)

    def _answers(self, connection: sqlite3.Connection, items: Sequence[Any]) -> list[Any]:
        waits = 0.0

        def tell() -> None:
            nonlocal waits
            self._tell()
            waits = time.monotonic()

        try:
            return self._perform(connection, items, tell)
        except Exception as error:  # noqa: BLE001 - a fault of one batch must not leave the next without a thread
            return [error] * len(items)
        finally:
            if waits:
                self._halved_from = max(2 * HALF, round((time.monotonic() - waits) / STEP_SECONDS))

    def _tell(self) -> None:
        if self._untold:
            untold, self._untold = self._untold, None
            give(*untold)

    def _patience(self) -> float | None:
        return max(0.0, self._next_look - time.monotonic()) if self._watchers else None

    def _look(self, connection: sqlite3.Connection, seen: int) -> int:
        now = time.monotonic()
        if self._changed is None or not self._watchers or now < self._next_look:
            return seen
        self._next_look = now + LOOK_SECONDS
        try:
            version = _version(connection)
        except sqlite3.Error:  # waking is best effort, and the next look may succeed
            return seen
        if version != seen:
            self._next_look = now + QUIET_SECONDS
            self._changed()
        return version


def _version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection, in whichever process, has changed the file."""
    found: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return found
