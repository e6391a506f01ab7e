"""Death at a point: before, inside or after a write or a call, with its reply lost, and in a recovery as well."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

from tenure.testing.chaos.kinds import SHARED, Kind, Place, Played
from tenure.testing.chaos.run import WALK, Walk, walking
from tenure.testing.crashing import DIED, UNITS, Point, points

RECOVERY_TOO = 0.15
EXPIRES = 0.05
SWEPT = 0.3
SHORT_TTL_S = 2.0
ENDS = {"exit": DIED, "kill": -signal.SIGKILL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Where and how a process dies; `expires`: nobody forfeits the grant of the dead, the lease runs out."""

    point: Point
    again: Point | None
    blow: str
    inside: float
    expires: bool
    swept: bool

    def __str__(self) -> str:
        """Return it as words."""
        then = f", then {self.again}" if self.again else ""
        return f"{self.blow} at {self.point}{then}, inside {self.inside:.2f}" + ", expires" * self.expires


def draw(drawn: random.Random) -> Death:
    """Return a death."""
    point = drawn.choice(points())
    later = [p for p in points() if _turn(p) > max(_turn(point), 1)]
    again = drawn.choice(later) if later and drawn.random() < RECOVERY_TOO else None
    return Death(
        point=point,
        again=again,
        blow=drawn.choice(list(ENDS)),
        inside=drawn.random(),
        expires=again is None and drawn.random() < EXPIRES,
        swept=drawn.random() < SWEPT,
    )


def _turn(point: Point) -> int:
    # The second and the third call are made side by side: neither is surely still to come after the other.
    return UNITS.index("tool:c1" if point.unit == "tool:c2" else point.unit)


class Kill(Kind):
    """A run whose process dies at a point; another process recovers it, and may die in turn."""

    name = "kill"
    stores = SHARED
    short, long = 300, 10_000
    batch, at_once = 50, 4
    works_in = (WALK,)

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one history."""
        words = f"{self.name}:{place.name}:{seed}"
        death = draw(random.Random(words))
        async with walking(place, words) as walk:
            walk.played.note = str(death)
            died = [death.point]
            code = await self._die(walk, death, death.point, ttl=SHORT_TTL_S if death.expires else 30)
            if code != ENDS[death.blow] and death.expires:
                # On a machine this busy a lease of two seconds can be over before the point is reached.
                walk.played.counts["lost the lease before its point"] += 1
                await walk.recover()
                await walk.judge(None)
                return walk.played
            self._hit(walk, death, death.point, code)
            if not death.expires:
                await walk.bury()
            if death.again is not None:
                died.append(death.again)
                self._hit(walk, death, death.again, await self._die(walk, death, death.again))
                await walk.bury()
            await walk.recover(sweeps=death.swept)
            await walk.judge(died)
            return walk.played

    async def _die(self, walk: Walk, death: Death, point: Point, ttl: float = 30) -> int:
        return await (await walk.fork(point=str(point), blow=death.blow, inside=death.inside, ttl=ttl)).ended()

    def _hit(self, walk: Walk, death: Death, point: Point, code: int) -> None:
        # Inside a write the process ends by itself, whatever the blow.
        if code in (ENDS[death.blow], DIED):
            walk.played.counts["points hit"] += 1
            walk.played.counts[point.sort] += 1
        else:
            walk.played.violations.append(f"{point} was not hit, the process ended with {code}")
