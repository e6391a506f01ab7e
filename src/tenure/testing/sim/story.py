"""A story: what one simulated history is made of, drawn from a seed or read back from what a violation printed."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One fault: at which second, what, on which worker (by number), for how many seconds or milliseconds."""

    at_s: float
    what: str
    whom: int = 0
    length: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One run: its kind, when it is submitted, and what is done to it from outside after how many seconds."""

    kind: str
    at_s: float
    then: str = ""
    after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """How bad the road is: shares of messages that are lost, doubled and late (by up to `late_s`); the usual delay."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_s: float = 2.0
    delay_s: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that is drawn before a history begins; what happens on the road is drawn from the same seed."""

    seed: int
    ttl_s: float
    workers: int
    wishes: tuple[Wish, ...]
    blows: tuple[Blow, ...] = ()
    road: Road = Road()
    drift: tuple[float, ...] = field(default=())

    def line(self) -> str:
        """Return the story as one line of JSON, for `--replay`."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, line: str, /) -> Story:
        """Return the story of a line."""
        found: dict[str, Any] = json.loads(line)
        found["wishes"] = tuple(Wish(**wish) for wish in found["wishes"])
        found["blows"] = tuple(Blow(**blow) for blow in found["blows"])
        found["road"] = Road(**found["road"])
        found["drift"] = tuple(found["drift"])
        return cls(**found)


KINDS = ("steps", "agent", "fails", "later")
BLOWS = ("kill", "kill", "kill", "stop", "stop", "cut", "restart", "failover", "step", "outage")
ROADS = (
    Road(),
    Road(lost=0.05),
    Road(late=0.05),
    Road(doubled=0.1, late=0.05),
    Road(lost=0.02, doubled=0.05, late=0.02),
)


def draw(seed: int, /) -> Story:
    """Return the story of a seed."""
    drawn = random.Random(seed)  # noqa: S311 - a seed, not a secret
    ttl_s = drawn.choice((1.0, 1.5, 2.5))
    workers = drawn.choice((2, 2, 3))
    wishes = tuple(_wish(drawn) for _ in range(drawn.randint(1, 3)))
    blows = tuple(sorted((_blow(drawn, workers, ttl_s) for _ in range(drawn.randint(0, 4))), key=lambda b: b.at_s))
    road = replace(
        drawn.choice(ROADS),
        delay_s=drawn.choice((0.0005, 0.005, 0.05)),
        late_s=drawn.choice((0.5, ttl_s, 2 * ttl_s)),
    )
    return Story(
        seed=seed,
        ttl_s=ttl_s,
        workers=workers,
        wishes=wishes,
        blows=blows,
        road=road,
        drift=tuple(drawn.choice((1.0, 1.0, drawn.uniform(0.99, 1.01))) for _ in range(workers)),
    )


def _wish(drawn: random.Random) -> Wish:
    then = drawn.choice(("", "", "", "", "cancel", "evict", "grace"))
    return Wish(
        kind=drawn.choice(KINDS),
        at_s=round(drawn.uniform(0.1, 2), 3),
        then=then,
        after_s=round(drawn.uniform(0.1, 3), 3) if then else 0.0,
    )


def _blow(drawn: random.Random, workers: int, ttl_s: float) -> Blow:
    what = drawn.choice(BLOWS)
    length = {
        "kill": drawn.uniform(0.1, ttl_s * 2),
        "stop": drawn.uniform(0.2, ttl_s * 2.5),
        "cut": drawn.uniform(0.2, ttl_s * 2.5),
        "restart": drawn.uniform(0.05, ttl_s),
        "failover": drawn.uniform(0.05, 1.0),
        "step": drawn.choice((-10_000.0, -2_000.0, 500.0, 10_000.0)),
        "outage": drawn.uniform(0.2, ttl_s * 2),
    }[what]
    at_s = round(drawn.uniform(0.3, 5), 3)
    return Blow(at_s=at_s, what=what, whom=drawn.randrange(workers), length=round(length, 3))
