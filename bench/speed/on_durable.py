"""The rows beside DBOS and Absurd: their steps and ours on one PostgreSQL, one run and 32 at once.

Their workflow stays open and makes steps when it is asked to, so that no row pays for starting workflows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from speed.bars import RATE_PLOT, Bar, Found, Repeat, Setting, adjacent, rates, ratio, step_of
from speed.holding import hold
from speed.on_postgres import NEEDS, RUNS, postgres_url

Step = Callable[[int], Awaitable[Any]]


@dataclass(slots=True)
class Pump:
    """One open workflow: how many steps it is asked for, and that they are made."""

    asked: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    made: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    step: int = 0

    async def work(self, step: Step) -> None:
        """Be the body of the workflow, until it is asked for no steps."""
        while times := await self.asked.get():
            for _ in range(times):
                self.step += 1
                await step(self.step)
            await self.made.put(times)

    async def steps(self, times: int) -> None:
        """Have so many steps made."""
        await self.asked.put(times)
        await self.made.get()


def _all(pumps: list[Pump]) -> Repeat:
    async def work(times: int) -> None:
        await asyncio.gather(*(pump.steps(times) for pump in pumps))

    return work


async def beside_absurd(setting: Setting, runs: int) -> Found:
    """Compare steps with Absurd's, a connection for each of its tasks."""
    import absurdctl
    import psycopg
    from absurd_sdk import AsyncAbsurd

    url = postgres_url(setting)
    bare_url = url.partition("?")[0]
    async with await psycopg.AsyncConnection.connect(bare_url, autocommit=True) as first:
        await first.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    pumps = [Pump() for _ in range(runs)]
    workers = []
    for number, pump in enumerate(pumps):
        app = AsyncAbsurd(bare_url, queue_name=f"bench{number}")
        await app.create_queue()

        async def bench(_: Any, context: Any, pump: Pump = pump) -> None:
            async def step(n: int) -> None:
                async def added() -> dict[str, object]:
                    return step_of(n)

                await context.step(f"step-{n}", added)

            await pump.work(step)

        app.register_task(name="bench")(bench)
        await app.spawn("bench", {})
        workers.append(asyncio.create_task(app.work_batch(claim_timeout=3600)))
        setting.stack.push_async_callback(app.close)
    found = await _compared(setting, url, pumps, "Absurd")
    await _ended(pumps, workers)
    return found


async def beside_dbos(setting: Setting, runs: int) -> Found:
    """Compare steps with those of DBOS, async workflows as it comes."""
    from dbos import DBOS

    url = postgres_url(setting)
    config: Any = {"name": "bench", "system_database_url": url.partition("?")[0], "log_level": "ERROR"}
    config["run_admin_server"] = False
    DBOS(config=config)
    pumps = [Pump() for _ in range(runs)]

    async def added(n: int) -> dict[str, object]:
        return step_of(n)

    step: Any = DBOS.step()(added)

    async def bench(number: int) -> None:
        await pumps[number].work(step)

    workflow: Any = DBOS.workflow()(bench)
    DBOS.launch()
    try:
        handles = [await DBOS.start_workflow_async(workflow, number) for number in range(runs)]
        found = await _compared(setting, url, pumps, "DBOS")
        await _ended(pumps, [asyncio.ensure_future(handle.get_result()) for handle in handles])
    finally:
        await asyncio.to_thread(DBOS.destroy)
    return found


async def _compared(setting: Setting, url: str, pumps: list[Pump], name: str) -> Found:
    runs = len(pumps)
    held = await hold(setting, url, runs)
    pairs = await adjacent(held.at_once(runs), _all(pumps), setting.pairs)
    found = ratio(pairs, ours_per=runs, theirs_per=runs)
    if runs > 1:
        found.lines[name] = await rates(lambda some: _all(pumps[:some]))
    return found


async def _ended(pumps: list[Pump], tasks: list[Any]) -> None:
    for pump in pumps:
        await pump.asked.put(0)
    await asyncio.gather(*tasks)


BARS = [
    Bar(
        name=f"postgres-{peer}{'' if runs == 1 else f'-{runs}'}",
        says=f"steps a second of {'one run' if runs == 1 else f'{runs} runs at once'}, to {words}",
        measure=partial(measure, runs=runs),
        least=least,
        plot=RATE_PLOT,
        at_once=runs > 1,
        needs=(*NEEDS, *needs),
    )
    for peer, words, measure, needs, limits in (
        ("absurd", "Absurd's", beside_absurd, ("absurd_sdk", "absurdctl"), (1.5, 10)),
        ("dbos", "those of DBOS", beside_dbos, ("dbos",), (5, 30)),
    )
    for runs, least in zip((1, RUNS), limits, strict=True)
]
