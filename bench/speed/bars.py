"""What a bar is, and how two things are timed so that a machine that slows down slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

PAIRS = 15
SLICE_S = 0.06
MOST = 400
STEPS = 4096

LATE_PLOT = "cost of a step"
RATE_PLOT = "steps a second of runs at once"

Repeat = Callable[[int], Awaitable[None]]
"""Does something so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured: a number with its quartiles, what our side and the other cost, and points to plot."""

    number: float
    low: float
    high: float
    ours_us: float | None = None
    theirs_us: float | None = None
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Curves of the plot that the bar belongs to, by name: (x, y)."""
    on_one: float | None = None
    """The number on one processor, of a row that is judged on all."""


@dataclass(slots=True, kw_only=True)
class Setting:
    """What one bar is measured in: how many pairs, a folder, and a stack on which it opens what it needs."""

    pairs: int
    folder: Path
    stack: AsyncExitStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row: a number that has to be at least, or under, a limit; without a limit it is only shown.

    `needs` are the modules that the row cannot do without; where one is missing the row is left out and named.
    `at_once` is a row in which client and server mean to work at the same time, or whose time the server tells: it has
    all processors. Every other row has one, on which the two take turns.
    """

    name: str
    says: str
    measure: Callable[[Setting], Awaitable[Found]]
    least: float | None = None
    under: float | None = None
    unit: str = "x"
    plot: str = ""
    needs: tuple[str, ...] = ()
    at_once: bool = False

    def held(self, found: Found) -> bool:
        """Return whether the number is on the right side of the limit."""
        return (self.least is None or found.number >= self.least) and (self.under is None or found.number < self.under)

    @property
    def limit(self) -> str:
        """Return the limit as words."""
        if self.least is not None:
            return f"at least {self.least:g}"
        return f"under {self.under:g}" if self.under is not None else ""


async def took_s(work: Repeat, times: int) -> float:
    """Return the seconds that one of so many repetitions took."""
    begun = time.perf_counter()
    await work(times)
    return (time.perf_counter() - begun) / times


async def _fitting(work: Repeat) -> int:
    """Return how many repetitions fill a slice, after some to warm up."""
    await work(2)
    once = min([await took_s(work, 2) for _ in range(3)])
    return max(1, min(MOST, round(SLICE_S / once)))


async def adjacent(ours: Repeat, theirs: Repeat, pairs: int, *, times: int = 0) -> list[tuple[float, float]]:
    """Return the seconds of one repetition of ours and of theirs, pair by pair, each first every other time.

    A pair is so many repetitions of each, 0: of each as many as fill a slice, found by some that warm up.
    """
    our_times, their_times = times or await _fitting(ours), times or await _fitting(theirs)
    found = []
    for number in range(pairs):
        if number % 2:
            their_s = await took_s(theirs, their_times)
            found.append((await took_s(ours, our_times), their_s))
        else:
            our_s = await took_s(ours, our_times)
            found.append((our_s, await took_s(theirs, their_times)))
    return found


def ratio(found: Sequence[tuple[float, float]], *, ours_per: float = 1, theirs_per: float = 1) -> Found:
    """Return how many times as fast ours is: the median over the pairs of theirs to ours.

    `ours_per` and `theirs_per` say how many steps one repetition made.
    """
    return _of([(ours / ours_per, theirs / theirs_per) for ours, theirs in found], faster=True)


def cost(found: Sequence[tuple[float, float]]) -> Found:
    """Return how many times as much ours costs: the median over the pairs of ours to theirs."""
    return _of(found, faster=False)


def _of(found: Sequence[tuple[float, float]], *, faster: bool) -> Found:
    ratios = [theirs / ours if faster else ours / theirs for ours, theirs in found]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Found(
        number=middle,
        low=low,
        high=high,
        ours_us=statistics.median(ours for ours, _ in found) * 1e6,
        theirs_us=statistics.median(theirs for _, theirs in found) * 1e6,
    )


async def rates(at_once: Callable[[int], Repeat]) -> list[tuple[float, float]]:
    """Return (runs, steps a second of all of them together) for one run up to 32 at once."""
    points: list[tuple[float, float]] = []
    for runs in (1, 2, 4, 8, 16, 32):
        work = at_once(runs)
        times = await _fitting(work)
        points.append((runs, runs / statistics.median([await took_s(work, times) for _ in range(5)])))
    return points


def spread(numbers: Sequence[float]) -> Found:
    """Return the median of numbers that are no ratios of pairs."""
    low, middle, high = statistics.quantiles(numbers, n=4)
    return Found(number=middle, low=low, high=high)


@cache
def prose() -> str:
    """Return 400 KB of English text: what `help()` shows of the language, its spaces and lines run together.

    A conversation does not repeat itself, and text made of a few words does: a server that packs its pages would pack
    400 such steps to almost nothing, where of this it keeps more than a quarter.
    """
    return " ".join(" ".join(topics.values()).split())


def text_at(place: int, length: int) -> str:
    """Return so many characters of that text, from a place on that may lie behind its end."""
    text = prose()
    place %= len(text)
    found = text[place : place + length]
    return found if len(found) == length else found + text[: length - len(found)]


@cache
def steps() -> list[dict[str, object]]:
    """Return steps, made before anything is timed."""
    return [_made(number) for number in range(STEPS)]


def step_of(number: int) -> dict[str, object]:
    """Return what a step of an agent adds, about 3 KB; no run is so long that a step comes twice."""
    return steps()[number % STEPS]


def _made(number: int) -> dict[str, object]:
    """Return a message and the call that it makes."""
    text = text_at(number * 2640, 2640)
    return {
        "role": "assistant",
        "content": f"{number:08d} {text}",
        "calls": [{"id": f"call-{number:08d}", "tool": "search", "arguments": {"query": text[:120]}}],
    }
