"""The rows beside LangGraph's savers: one superstep for each agent step, and our checkpoint of the same messages.

A step of theirs writes the whole conversation, so what counts is how long it is: the pairs are of the steps around the
400th. SQLite moves its log into the file at every few of their steps, so a pair is of several steps and not of one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from speed.bars import LATE_PLOT, Bar, Found, Setting, adjacent, ratio
from speed.beside import beside
from speed.holding import curve, hold, redis_server, sqlite_url, step_costs

MIDDLE = 400
A_PAIR = 4
"""Steps of each side in a pair: some 20 ms and more of theirs."""


WhereOf = Callable[[Setting, str], Awaitable[str]]
"""Says where a peer keeps what it keeps, given the URL of our store."""


async def in_folder(setting: Setting, _: str) -> str:
    """Return the path of a file of its own."""
    return str(setting.folder / "langgraph.db")


async def on_server(_: Setting, url: str) -> str:
    """Return the URL of the same server."""
    return url


async def late_step(
    setting: Setting, peer: str, url_of: Callable[[Setting], str], where_of: WhereOf, name: str
) -> Found:
    """Compare steps around the 400th, pair by pair."""
    url = url_of(setting)
    held, theirs = await hold(setting, url), await beside(setting, peer, await where_of(setting, url))
    our_costs: list[float] = []
    their_costs: list[float] = []

    async def our_steps(times: int) -> None:
        our_costs.extend(await step_costs(held.leases[0], times, first=len(our_costs)))

    async def their_steps(times: int) -> None:
        their_costs.extend(await theirs.steps(times))

    before = MIDDLE - A_PAIR * setting.pairs // 2
    await their_steps(before)
    await our_steps(before)
    found = ratio(await adjacent(our_steps, their_steps, setting.pairs, times=A_PAIR))
    found.lines[f"LangGraph, {name}"] = curve(their_costs)
    found.lines[f"tenure, {name}"] = curve(our_costs)
    return found


def bar(name: str, words: str, measure: Any, *needs: str, least: float | None = None) -> Bar:
    """Return the row of one saver."""
    says = f"a step around the 400th, to LangGraph's with its saver on {words}"
    needed = ("langgraph", *needs)
    return Bar(name=name, says=says, measure=measure, least=least, plot=LATE_PLOT, needs=needed)


BARS = [
    bar(
        "sqlite-langgraph",
        "SQLite",
        partial(
            late_step,
            peer="langgraph-sqlite",
            url_of=sqlite_url,
            where_of=in_folder,
            name="SQLite",
        ),
        "langgraph.checkpoint.sqlite",
        least=15,
    ),
    bar(
        "redis-langgraph",
        "a plain Redis",
        partial(
            late_step,
            peer="langgraph-redis",
            url_of=lambda s: redis_server(s, "everysec").url,
            where_of=on_server,
            name="Redis",
        ),
        "langgraph_checkpoint_plainredis",
    ),
]
