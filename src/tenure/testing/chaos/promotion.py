"""Promotions of a replica that lacks what its primary acknowledged: who may go on, who has to wait, who is told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from tenure.testing.chaos._promotion_pair import Link, paired
from tenure.testing.chaos._promotion_story import STORIES, Story, begun, judge
from tenure.testing.chaos.kinds import Kind, Place, Played
from tenure.testing.servers import REDIS_KINDS


class Promotion(Kind):
    """One story on a pair of servers of its own."""

    name = "promotion"
    stores = ("redis7", "postgres", "valkey9", "redis8")
    short, long = 12, 600
    batch, at_once = 4, 2
    ask = ""
    """What is added to the URL: `&history=off` does without the defence, and has to be found out."""

    async def play(self, seed: int, place: Place, /) -> Played:
        """Play one story; the seed says which, and what is drawn in it."""
        name = STORIES[seed // len(self.stores) % len(STORIES)]
        story = Story(name=name, seed=seed, kind=place.name, ask=self.ask)
        async with _pair(place) as pair:
            story = await begun(story, pair)
            await pair.promote(story.how)
            await story.go_on(pair)
            verdict = await judge(story, pair)
        return Played(violations=verdict.wrong, counts=verdict.counts, note=f"{name}, {story.how}")


@contextlib.asynccontextmanager
async def _pair(place: Place) -> AsyncIterator[Link]:
    if place.name == "postgres":
        from tenure.testing.chaos._postgres_pair import postgres_pair

        async with postgres_pair() as pair:
            yield pair
    else:
        async with paired(next(kind for kind in REDIS_KINDS if kind.name == place.name)) as pair:
            yield pair
