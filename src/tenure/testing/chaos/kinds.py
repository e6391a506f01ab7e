"""What a kind of fault is, where it is played, and which kinds there are."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from tenure.testing.chaos.stage import Stage

__all__ = ["KINDS", "SERVERS", "SHARED", "Kind", "Place", "Played", "kind_of"]

SERVERS = ("redis7", "redis8", "valkey9", "postgres")
SHARED = ("sqlite", *SERVERS)
"""The stores that processes share."""

KINDS: dict[str, str] = {
    "aof": "tenure.testing.chaos.aof:Aof",
    "clock": "tenure.testing.chaos.clock:StoreClock",
    "kill": "tenure.testing.chaos.kill:Kill",
    "freeze": "tenure.testing.chaos.freeze:Freeze",
    "stall": "tenure.testing.chaos.freeze:Stall",
    "road": "tenure.testing.chaos.road:Roads",
    "histories": "tenure.testing.chaos.fleet:Histories",
    "pgcrash": "tenure.testing.chaos.pgcrash:PostgresCrash",
    "power": "tenure.testing.chaos.power:Power",
    "promotion": "tenure.testing.chaos.promotion:Promotion",
    "sentinel": "tenure.testing.chaos.sentinel:SentinelPartition",
}
"""Each kind, by name: its module and its class, imported when it is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one history is played: a store of a name, and a namespace and a folder of its own.

    A server is shared by the histories of a process, a SQLite file is not. `stage` forks the processes of a history.
    """

    name: str
    url: str
    namespace: str
    folder: Path
    stage: Stage


@dataclass(slots=True, kw_only=True)
class Played:
    """What one history came to: what is wrong, what was counted, and a word on what was drawn."""

    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    note: str = ""


class Kind(Protocol):
    """One sort of fault, to derive from; a history of it is a seed, from which everything is drawn that is drawn.

    By `random.Random(f"{name}:{place.name}:{seed}")`, so that a seed can be played again by itself.
    """

    name: str
    stores: tuple[str, ...]
    short: int
    """How many histories make the short form."""
    long: int
    """How many make the long form."""
    batch: int
    """How many are played between two lines of the state file."""
    at_once: int = 1
    """How many of them are under way at a time in one process."""
    works_in: tuple[str, ...] = ()
    """The modules of what the stage forks; a function `warm` of theirs is called once, before.

    A kind that names none starts what it needs itself, in the folder of its place; it gets neither URL nor stage.
    """

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one history, and judge it; what it raises is a violation as well."""


def kind_of(name: str, /) -> Kind:
    """Return a kind by its name; KeyError if there is none."""
    module, _, attribute = KINDS[name].partition(":")
    return cast("Kind", getattr(importlib.import_module(module), attribute)())
