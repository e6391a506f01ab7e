"""A peer of tenure in a process of its own: makes steps when it is asked to. `bench/compare.py` starts it.

    python bench/peer.py PEER WHERE RUNS

Writes `ready`, then reads lines of two numbers, how many steps and of how many of its runs at once, and answers each
with the seconds of the steps of its first run, as JSON. Ends when its input does. Its workflows stay open all the time,
so that nobody pays for starting one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypedDict

from speed.bars import step_of


@dataclass(slots=True)
class Pump:
    """One open workflow: its body takes a turn for each step that it is asked for."""

    asked: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    made: asyncio.Queue[list[float]] = field(default_factory=asyncio.Queue)
    step: int = 0
    over: bool = False
    _left: int = 0
    _begun: float = 0.0
    _costs: list[float] = field(default_factory=list)

    async def turn(self) -> bool:
        """End the step before and wait until another is asked for; False when there will be none."""
        if self._begun:
            self._costs.append(time.perf_counter() - self._begun)
        if not self._left:
            if self._begun:
                await self.made.put(self._costs)
            self._costs, self._left = [], await self.asked.get()
        self.over = not self._left
        self._left -= 1
        self.step += 1
        self._begun = time.perf_counter()
        return not self.over

    async def steps(self, times: int) -> list[float]:
        """Have so many steps made, and return the seconds of each."""
        await self.asked.put(times)
        return await self.made.get()


Ended = Awaitable[Any]
"""Comes to its end when the workflow has."""
Start = Callable[[AsyncExitStack, str, list[Pump]], Awaitable[list[Ended]]]
"""Starts a workflow for each pump, on a stack that closes what it opens."""


async def absurd(stack: AsyncExitStack, url: str, pumps: list[Pump]) -> list[Ended]:
    """Start tasks of Absurd, a connection for each."""
    import absurdctl
    import psycopg
    from absurd_sdk import AsyncAbsurd

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as first:
        await first.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    workers: list[Ended] = []
    for number, pump in enumerate(pumps):
        app = AsyncAbsurd(url, queue_name=f"bench{number}")
        await app.create_queue()

        async def bench(_: Any, context: Any, pump: Pump = pump) -> None:
            async def added() -> dict[str, object]:
                return step_of(pump.step)

            while await pump.turn():
                await context.step(f"step-{pump.step}", added)

        app.register_task(name="bench")(bench)
        await app.spawn("bench", {})
        stack.push_async_callback(app.close)
        workers.append(asyncio.create_task(app.work_batch(claim_timeout=3600)))
    return workers


async def dbos(stack: AsyncExitStack, url: str, pumps: list[Pump]) -> list[Ended]:
    """Start async workflows of DBOS as it comes."""
    from dbos import DBOS

    config: Any = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False}
    DBOS(config=config)

    async def added(n: int) -> dict[str, object]:
        return step_of(n)

    step: Any = DBOS.step()(added)

    async def bench(number: int) -> None:
        pump = pumps[number]
        while await pump.turn():
            await step(pump.step)

    workflow: Any = DBOS.workflow()(bench)
    DBOS.launch()
    stack.push_async_callback(asyncio.to_thread, DBOS.destroy)
    handles = [await DBOS.start_workflow_async(workflow, number) for number in range(len(pumps))]
    return [asyncio.ensure_future(handle.get_result()) for handle in handles]


class Conversation(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[dict[str, Any]], operator.add]


Saver = Callable[[str], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def sqlite_saver(path: str) -> AsyncIterator[Any]:
    """Open LangGraph's saver on SQLite as it comes."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        yield saver


@asynccontextmanager
async def redis_saver(url: str) -> AsyncIterator[Any]:
    """Open the saver for a plain Redis as it comes."""
    import redis.asyncio
    from langgraph_checkpoint_plainredis import AsyncRedisSaver

    client = redis.asyncio.Redis.from_url(url)
    try:
        yield AsyncRedisSaver(client)
    finally:
        await client.aclose()


@asynccontextmanager
async def postgres_saver(url: str) -> AsyncIterator[Any]:
    """Open LangGraph's saver on PostgreSQL as it comes."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        yield saver


async def langgraph(stack: AsyncExitStack, where: str, pumps: list[Pump], *, saver: Saver) -> list[Ended]:
    """Start a graph whose state is the conversation and whose node adds a message: one superstep a step.

    With `durability="sync"`; by default a write trails the next step.
    """
    from langgraph.graph import END, START, StateGraph

    (pump,) = pumps

    async def agent(_: Conversation) -> dict[str, list[dict[str, Any]]]:
        return {"messages": [step_of(pump.step)] if await pump.turn() else []}

    graph: Any = StateGraph(Conversation)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", lambda _: END if pump.over else "agent")
    app = graph.compile(checkpointer=await stack.enter_async_context(saver(where)))
    config = {"configurable": {"thread_id": "bench"}, "recursion_limit": 1_000_000}
    return [asyncio.ensure_future(app.ainvoke({"messages": []}, config, durability="sync"))]


PEERS: dict[str, Start] = {
    "absurd": absurd,
    "dbos": dbos,
    "langgraph-sqlite": partial(langgraph, saver=sqlite_saver),
    "langgraph-redis": partial(langgraph, saver=redis_saver),
    "langgraph-postgres": partial(langgraph, saver=postgres_saver),
}


async def main(peer: str, where: str, runs: int) -> None:
    """Run the program."""
    logging.disable(logging.WARNING)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the peer prints is no answer
    asks = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asks), sys.stdin)
    pumps = [Pump() for _ in range(runs)]
    async with AsyncExitStack() as stack:
        ended = await PEERS[peer](stack, where, pumps)
        print("ready", file=answers)
        async for line in asks:
            times, at_once = map(int, line.split())
            costs = await asyncio.gather(*(pump.steps(times) for pump in pumps[:at_once]))
            print(json.dumps(costs[0]), file=answers)
        for pump in pumps:
            await pump.asked.put(0)
        await asyncio.gather(*ended)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
