"""What each process was told by the store, written down outside of it, in a form that a kill cannot spoil."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import anyio

from tenure.clock import SystemClock
from tenure.core.run import Answer, Change, Claim, Reattach, Renew, Run
from tenure.errors import StoreUnavailable, TenureError
from tenure.store import Store
from tenure.testing.register import Asked

PATIENCE_S = (0.2, 1.0, 3.0)


class NotedStore:
    """A store that writes down each change when it is sent, and its answer when it was told.

    Renewals are left out: a heartbeat sends nothing else beside, unless the history of the store turns.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.granted: list[Run] = []
        """The runs as they were granted to this process, in order."""
        self._store = store
        self._clock = SystemClock()
        self._numbers = itertools.count()
        self._file = os.open(folder / f"{os.getpid()}.asked", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __getattr__(self, name: str) -> Any:
        """Return the inner store's attribute."""
        return getattr(self._store, name)

    async def __aenter__(self) -> Self:
        """Open the inner store, in patience: on a machine this busy a connection may take long."""
        for wait_s in PATIENCE_S:
            try:
                await self._store.__aenter__()
            except StoreUnavailable:
                await anyio.sleep(wait_s)
            else:
                return self
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the inner store."""
        await self._store.__aexit__(*exc)
        os.close(self._file)

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change, and note it."""
        numbers = self._sent([change])
        answer = await self._store.commit(change)
        self._told([change], numbers, [answer])
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide changes, and note them."""
        numbers = self._sent(changes)
        answers = await self._store.commit_many(changes)
        self._told(changes, numbers, answers)
        return answers

    def _sent(self, changes: Sequence[Change]) -> list[int]:
        numbers = [-1 if isinstance(change, Renew) else next(self._numbers) for change in changes]
        self._write(zip(numbers, changes, strict=True))
        return numbers

    def _told(self, changes: Sequence[Change], numbers: Sequence[int], answers: Sequence[Answer | TenureError]) -> None:
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(change, Claim | Reattach) and isinstance(answer, Answer) and answer.ok and answer.run:
                self.granted += [answer.run] * (answer.run.nonce == change.nonce)
        self._write((n, a) for n, a in zip(numbers, answers, strict=True) if isinstance(a, Answer))

    def _write(self, said: Any) -> None:
        now_s = self._clock.boot_ns() / 1e9
        lines = b"".join(pickle.dumps((number, now_s, what)) for number, what in said if number >= 0)
        if lines:
            os.write(self._file, lines)


def read(folder: Path) -> list[Asked]:
    """Return what all processes of a folder noted."""
    return [asked for path in sorted(folder.glob("*.asked")) for asked in _of(path)]


def _of(path: Path) -> Iterator[Asked]:
    found: dict[int, Asked] = {}
    with path.open("rb") as file:
        while True:
            try:
                number, at_s, what = pickle.load(file)  # noqa: S301 - the processes of this history wrote it
            except (EOFError, pickle.UnpicklingError):  # the end, or where a kill cut it off
                break
            if isinstance(what, Answer):
                found[number].told_s, found[number].answer = at_s, what
            else:
                found[number] = Asked(sent_s=at_s, process=path.stem, change=what)
    yield from found.values()
