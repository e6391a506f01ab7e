"""What was shown of a deployment, as a table and the tests that failed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from tenure.core.text import count
from tenure.views.tables import Cell, Table


class Shown(Protocol):
    """The verdict on one part."""

    @property
    def part(self) -> str:
        """Return its name."""
        ...

    @property
    def held(self) -> int:
        """Return how many tests held."""
        ...

    @property
    def failed(self) -> Mapping[str, str]:
        """Return which failed, and why."""
        ...

    @property
    def not_shown(self) -> Mapping[str, str]:
        """Return which could not be shown, and why."""
        ...


def table(found: Sequence[Shown], /) -> Table:
    """Return a line for each part."""
    return Table(
        head=("PART", "HELD", "FAILED", "NOT SHOWN", "VERDICT"),
        rows=tuple(
            (
                Cell(one.part),
                Cell(str(one.held)),
                Cell(str(len(one.failed)), "red" if one.failed else ""),
                Cell(str(len(one.not_shown))),
                Cell("fails", "bold red") if one.failed else Cell("holds", "green"),
            )
            for one in found
        ),
        right=frozenset({"HELD", "FAILED", "NOT SHOWN"}),
    )


def lines(found: Sequence[Shown], /) -> list[str]:
    """Return what failed, why some could not be shown, and the sum."""
    failed = [f"{name}: {why}" for one in found for name, why in one.failed.items()]
    reasons = sorted({why for one in found for why in one.not_shown.values()})
    held = sum(one.held for one in found)
    ending = f"{count(len(failed), 'test')} failed (exit 6)" if failed else "nothing failed"
    return [*failed, *(f"not shown: {why}" for why in reasons), f"{count(held, 'test')} held, {ending}"]


def value(one: Shown, /) -> dict[str, Any]:
    """Return the verdict on a part as JSON."""
    kept: dict[str, Collection[str] | int | str] = {"part": one.part, "held": one.held}
    return {**kept, "failed": dict(one.failed), "not_shown": dict(one.not_shown), "ok": not one.failed}
