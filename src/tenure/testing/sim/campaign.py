"""Stories by the hundred, and the least of a story that goes wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tenure.testing.campaigns import Batch
from tenure.testing.sim.judge import judge
from tenure.testing.sim.playing import collected_after, play
from tenure.testing.sim.story import Story, draw

PART = 25


def one(story: Story, /) -> tuple[list[str], Counter[str]]:
    """Play and judge one story; return what is wrong and what happened."""
    played = play(story)
    seen: Counter[str] = Counter()
    seen.update(f"blow {blow.what}" for blow in played.fell)
    seen.update(f"run {run.status.value}" for run, _ in played.ends.values() if run is not None)
    seen.update(f"{type(d.change).__name__.lower()} {d.answer.verdict.value}" for d in played.decided)
    seen["calls"] += len(played.effects)
    seen["takeovers"] += sum(run.attempt - 1 for run, _ in played.ends.values() if run is not None)
    return judge(played), seen


def part(seeds: range, /) -> Batch:
    """Play the stories of some seeds."""
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    with collected_after():
        for seed in seeds:
            found, counted = one(draw(seed))
            seen.update(counted)
            # The first is what went wrong, the others mostly what came of it.
            wrong += [f"seed {seed}: {line}" for line in found[:5]]
    return Batch(first=seeds.start, histories=len(seeds), counts=dict(seen), violations=wrong)


def smaller(story: Story, /) -> Story:
    """Return a story with less in it that still goes wrong, by leaving one thing out at a time."""
    again = True
    while again:
        again = False
        for less in _less(story):
            if one(less)[0]:
                story, again = less, True
                break
    return story


def _less(story: Story) -> list[Story]:
    found = [replace(story, blows=tuple(b for b in story.blows if b is not blow)) for blow in story.blows]
    if len(story.wishes) > 1:
        found += [
            replace(story, wishes=(*story.wishes[:index], *story.wishes[index + 1 :]))
            for index in range(len(story.wishes))
        ]
    road = story.road
    better = (replace(road, lost=0.0), replace(road, doubled=0.0), replace(road, late=0.0))
    found += [replace(story, road=less) for less in better if less != road]
    if any(rate != 1.0 for rate in story.drift):
        found.append(replace(story, drift=tuple(1.0 for _ in story.drift)))
    return found
