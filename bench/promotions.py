"""Promote replicas that lack what their primary acknowledged, and hold what everybody was told against what is stored.

    python bench/promotions.py [--seeds 100] [--promotions 0] [--record]

Each seed is played on every kind of server in three stories. *forgotten*: a grant and its commits are lost.
*shortened*: the last commits of a holder are lost. *resurrected*: the grant that took a run over is lost, and the one
before it looks live again. Then everybody who ever held the run, and a stranger, try what they can at times that the
seed draws, on the new primary; the old one is killed, frozen, or goes on cut off. Exits 1 if a stale write landed, a
stranger was let in while a holder could trust its lease, a token came twice or fell, a holder went on over a hole, or
fewer promotions were played than asked for. `--history off` plays without the defence: then it has to find something.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from evidence import programs, record, versions
from tenure.testing.chaos._promotion_pair import Pair, paired
from tenure.testing.chaos._promotion_story import STORIES, Story, begun, judge
from tenure.testing.servers import REDIS_KINDS, ServerKind

LANES = 2
"""How many pairs of each kind of server are played on at once."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen so far."""

    asked: int
    history: str = "on"
    played: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)

    def show(self) -> bool:
        """Print all that was seen; whether the bar holds."""
        kinds = [kind.name for kind in REDIS_KINDS]
        print(f"{'':12}" + "".join(f"{kind:>10}" for kind in kinds) + f"{'all':>10}")
        for story in STORIES:
            row = [self.played[story, kind] for kind in kinds]
            print(f"{story:12}" + "".join(f"{count:>10}" for count in row) + f"{sum(row):>10}")
        print(self.summary)
        for line in self.wrong[:50]:
            print(f"VIOLATION {line}")
        took_s = time.monotonic() - self.begun_s
        print(f"{self.played.total()} of {self.asked} promotions, {len(self.wrong)} violations ({took_s:.0f} s)")
        return not self.wrong and self.played.total() >= self.asked

    @property
    def summary(self) -> str:
        """Return the counts as words."""
        c = self.counts
        return (
            f"acknowledged commits that were lost: {c['lost']}; stale writes refused: {c['refused']}, landed: "
            f"{c['stale']}; holders who reattached: {c['reattached']}, who were told of the loss: {c['history lost']}; "
            f"claims of strangers that had to wait: {c['waited']}, that landed: {c['taken']}"
        )


async def lane(kind: ServerKind, stories: list[Story], tally: Tally) -> None:
    """Play stories on one pair of servers, which change places each time."""
    async with paired(kind) as pair:
        while stories:
            await _play(pair, kind, stories.pop(0), tally)


async def _play(pair: Pair, kind: ServerKind, story: Story, tally: Tally) -> None:
    story = await begun(story, pair)
    await pair.promote(story.how)
    await story.go_on(pair)
    verdict = await judge(story, pair)
    tally.counts.update(verdict.counts)
    tally.wrong += [f"{story.name} of seed {story.seed} on {kind.name}: {line}" for line in verdict.wrong]
    tally.played[story.name, kind.name] += 1
    await pair.change_places(story.how)


async def play(promotions: list[tuple[int, str, ServerKind]], tally: Tally) -> None:
    """Play all promotions, some pairs of servers at once."""
    async with asyncio.TaskGroup() as tasks:
        for kind in REDIS_KINDS:
            drawn = [(seed, name) for seed, name, on in promotions if on is kind]
            mine = [
                Story(name=name, seed=seed, kind=kind.name, ask=f"&history={tally.history}") for seed, name in drawn
            ]
            for _ in range(min(LANES, len(mine))):
                tasks.create_task(lane(kind, mine, tally))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--promotions", type=int, default=0, help="stop after so many, the first seeds first")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--history", choices=("on", "off"), default="on")
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    wanted = [(seed, name, kind) for seed in seeds for name in STORIES for kind in REDIS_KINDS]
    wanted = wanted[: asked.promotions or None]
    tally = Tally(asked=len(wanted), history=asked.history)
    ran = versions(programs(REDIS_KINDS))
    print(ran)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(play(wanted, tally))
    held = tally.show()
    if asked.record:
        counts = f"{tally.played.total()} lossy promotions; {tally.summary}"
        record(bar="promotions", seed=asked.first, counts=counts, ran=ran, violations=len(tally.wrong))
    return not held


if __name__ == "__main__":
    sys.exit(main())
