"""Dying at a boundary: before or after the n-th thing that a run asks of its store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from tenure.core.run import Answer, Change, Renew, Repair
from tenure.errors import TenureError
from tenure.store import Store
from tenure.testing.faults import FaultStore


class Side(StrEnum):
    """Whether the request was not sent yet, or was answered already."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One place to die: on a side of the `at`-th change of a run, counted from 1, renewals left out."""

    at: int
    side: Side

    def __str__(self) -> str:
        """Return the boundary as one word, which `parse` reads."""
        return f"{self.side.value}:{self.at}"

    @classmethod
    def parse(cls, text: str, /) -> Self:
        """Return the boundary of a word."""
        side, at = text.split(":")
        return cls(at=int(at), side=Side(side))


class Died(BaseException):
    """The process would be dead from here on. No `except Exception` of a handler catches it."""


def die() -> None:
    """Raise Died: a death that a test can go on from."""
    raise Died


class BoundaryStore(FaultStore):
    """A store that ends its user at a boundary and answers nothing afterwards; without one it only counts.

    Counted are the changes of the run (of any run, if none is named) and of its children, as `seen`, in order.
    `blow` is what happens: raise Died, or `os._exit` in a process of its own.
    """

    def __init__(
        self, store: Store, boundary: Boundary | None = None, *, run_id: str = "", blow: Callable[[], None] = die
    ) -> None:
        super().__init__(store)
        self.boundary = boundary
        self.seen: list[str] = []
        self._run_id = run_id
        self._blow = blow

    @property
    def blown(self) -> bool:
        """Return whether the boundary was met."""
        return self.down

    @contextmanager
    def dies(self) -> Iterator[None]:
        """Expect that the block dies at the boundary; AssertionError if it does not get there."""
        try:
            yield
        except Died:
            return
        except BaseExceptionGroup as group:
            _, others = group.split(Died)
            if others is not None and not self.blown:
                raise
        if not self.blown:
            message = f"nothing died: the block made {len(self.seen)} changes, and {self.boundary} was not met"
            raise AssertionError(message)

    async def _one(self, change: Change) -> Answer | TenureError:
        if self.down or isinstance(change, Renew | Repair) or not self._counts(change.run):
            return await super()._one(change)
        self.seen.append(f"{type(change).__name__.lower()} {change.run}")
        here = self.boundary is not None and self.boundary.at == len(self.seen)
        if here and self.boundary is not None and self.boundary.side is Side.BEFORE:
            self._end()
        answer = await super()._one(change)
        if here:
            self._end()
        return answer

    def _counts(self, run_id: str) -> bool:
        if run_id.startswith("_"):
            return False
        return not self._run_id or run_id == self._run_id or run_id.startswith(f"{self._run_id}.")

    def _end(self) -> None:
        self.down = True
        self._blow()
