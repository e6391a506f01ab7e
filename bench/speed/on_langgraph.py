"""The rows beside LangGraph's savers: one superstep for each agent step, and next to it our checkpoint of that step.

A graph whose state is the conversation, `durability="sync"` (by default a write trails the next step). Its node ends
the step: it adds the message, and makes our checkpoint of it while the clock of theirs stands still. Ours is made of
several runs in turn, all as long as theirs: the first finds the caches of the machine full of their conversation, which
it would not in a process of its own; the median of them counts.
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypedDict

import redis.asyncio

from speed.bars import LATE_PLOT, Bar, Found, Setting, ratio, step_of
from speed.holding import curve, hold, redis_server, sqlite_url
from tenure.lease import Lease

STEPS = 420
RUNS = 5
LATE = slice(399, 419)


class Conversation(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[dict[str, Any]], operator.add]


Saver = Callable[[Setting, str], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def sqlite_saver(setting: Setting, _: str) -> AsyncIterator[Any]:
    """Open the saver on SQLite as it comes."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(setting.folder / "langgraph.db")) as saver:
        yield saver


@asynccontextmanager
async def redis_saver(_: Setting, url: str) -> AsyncIterator[Any]:
    """Open the saver for a plain Redis as it comes."""
    from langgraph_checkpoint_plainredis import AsyncRedisSaver

    client = redis.asyncio.Redis.from_url(url)
    try:
        yield AsyncRedisSaver(client)
    finally:
        await client.aclose()


@asynccontextmanager
async def postgres_saver(_: Setting, url: str) -> AsyncIterator[Any]:
    """Open the saver on PostgreSQL as it comes."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(url.partition("?")[0]) as saver:
        await saver.setup()
        yield saver


async def checkpoint_s(lease: Lease, message: dict[str, Any]) -> float:
    """Return the seconds that our checkpoint of a message takes."""
    begun = time.perf_counter()
    await lease.checkpoint(message)
    return time.perf_counter() - begun


async def late_step(setting: Setting, saver: Saver, url_of: Callable[[Setting], str], name: str) -> Found:
    """Compare steps from 400 on, pair by pair: the saver's, and ours of the same message."""
    from langgraph.graph import END, START, StateGraph

    url = url_of(setting)
    held = await hold(setting, url, RUNS)
    ours: list[float] = []
    theirs: list[float] = []
    left = [time.perf_counter()]

    async def agent(state: Conversation) -> dict[str, list[dict[str, Any]]]:
        theirs.append(time.perf_counter() - left[0])
        message = step_of(len(state["messages"]))
        ours.append(statistics.median([await checkpoint_s(lease, message) for lease in held.leases]))
        left[0] = time.perf_counter()
        return {"messages": [message]}

    graph: Any = StateGraph(Conversation)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", lambda state: "agent" if len(state["messages"]) < STEPS else END)
    async with saver(setting, url) as opened:
        app = graph.compile(checkpointer=opened)
        config = {"configurable": {"thread_id": "bench"}, "recursion_limit": STEPS + 10}
        await app.ainvoke({"messages": []}, config, durability="sync")
    # What stands before a node was called is the write of the step before it.
    pairs = list(zip(ours, theirs[1:], strict=False))
    found = ratio(pairs[LATE])
    found.lines[f"LangGraph, {name}"] = curve([their for _, their in pairs])
    found.lines[f"tenure, {name}"] = curve([our for our, _ in pairs])
    return found


def _bar(name: str, words: str, measure: Any, *needs: str, least: float | None = None) -> Bar:
    says = f"a step from 400 on, to LangGraph's with its saver on {words}"
    needed = ("langgraph", *needs)
    return Bar(name=name, says=says, measure=measure, least=least, plot=LATE_PLOT, needs=needed)


BARS = [
    _bar(
        "sqlite-langgraph",
        "SQLite",
        partial(late_step, saver=sqlite_saver, url_of=sqlite_url, name="SQLite"),
        "langgraph.checkpoint.sqlite",
        least=15,
    ),
    _bar(
        "redis-langgraph",
        "a plain Redis",
        partial(late_step, saver=redis_saver, url_of=lambda s: redis_server(s, "everysec").url, name="Redis"),
        "langgraph_checkpoint_plainredis",
    ),
]
