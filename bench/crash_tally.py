"""What the crash points have shown so far, and how it is told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evidence import STORES
from tenure.testing.crashing import Point

MEMORY = "memory"


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen so far."""

    asked: int
    seed: int
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_recovery: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    missed: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    told_s: float = field(default_factory=time.monotonic)

    def hit(self, store: str, point: Point, *, recovering: bool) -> None:
        """Count a point at which a process ended."""
        self.hits[store, point.sort] += 1
        self.in_recovery[store] += recovering

    def progress(self) -> None:
        """Say how far it is, now and then."""
        if (now_s := time.monotonic()) - self.told_s > 5:
            self.told_s = now_s
            print(f"{self.hits.total()} of {self.asked} points, {len(self.violations)} violations", flush=True)

    def show(self) -> bool:
        """Print all that was seen; whether the bar holds."""
        stores = sorted({store for store, _ in self.hits}, key=[*STORES, MEMORY].index)
        print(f"{'':24}" + "".join(f"{store:>10}" for store in stores) + f"{'all':>10}")
        for sort in sorted({sort for _, sort in self.hits}):
            self._row(sort, [self.hits[store, sort] for store in stores])
        by_store = {store: sum(n for (name, _), n in self.hits.items() if name == store) for store in stores}
        self._row("points", list(by_store.values()))
        self._row("of these in a recovery", [self.in_recovery[store] for store in stores])
        self._row("runs", [self.runs[store] for store in stores])
        dead = sum(n for store, n in by_store.items() if store != MEMORY)
        print(f"{dead} points by os._exit in a process, {self.hits.total() - dead} by a fuse on memory")
        print(
            f"model calls landed and sent again: {self.calls['model again']}; "
            f"recorded tools run again: {self.calls['tool again']}; "
            f"in flight at a death and repeated: {self.calls['repeated']}; calls in all: {self.calls['made']}"
        )
        if self.missed:
            print(f"{self.missed} runs lost their lease before their point and were drawn anew")
        for line in self.violations[:50]:
            print(f"VIOLATION {line}")
        took_s = time.monotonic() - self.begun_s
        print(
            f"{self.hits.total()} of {self.asked} points hit, {len(self.violations)} violations "
            f"(seed {self.seed}, {took_s:.0f} s)",
            flush=True,
        )
        return not self.violations and self.hits.total() >= self.asked

    def _row(self, name: str, counts: Sequence[int]) -> None:
        print(f"{name:24}" + "".join(f"{count:>10}" for count in counts) + f"{sum(counts):>10}")
