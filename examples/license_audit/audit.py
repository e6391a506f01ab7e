"""The audit: a run per distribution, done here or by worker processes, and the call logs held against the journals."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from examples.license_audit.agents import KIND, Settings, make_agent, prompt
from examples.license_audit.calls import read_calls
from examples.license_audit.fleet import ROOT, Chaos, Fleet
from examples.license_audit.records import Finding
from examples.license_audit.replay import Journals, Numbers, count
from examples.license_audit.report import Findings, report
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.core.run import Row, Status
from tenure.errors import RunCancelled, RunFailed, RunQuarantined
from tenure.handle import Handle
from tenure.ledger import Ledger
from tenure.store import Store, Where
from tenure.stores import open_store

SIDE_BY_SIDE = 8
FROZEN_BEYOND_S = 0.25
"""Past the lease, so that others take over; a child that is silent for much longer is killed by its supervisor."""
OPEN = (Status.QUEUED, Status.RUNNING, Status.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to audit and how: `workers` 0 is this process alone, `chaos` the seed of what is done to the workers."""

    dists: tuple[str, ...]
    url: str
    folder: Path
    workers: int = 0
    chaos: int | None = None
    every_s: float = 1.0
    strikes: int | None = None
    calls: Path | None = None
    ttl_s: float = 30.0
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What came of it; `fresh` says that no run stood before, so that the logs hold every call."""

    findings: Findings
    numbers: Numbers
    fresh: bool
    kills: int = 0
    freezes: int = 0
    refused: int = 0

    @property
    def report(self) -> bytes:
        """Return the report as bytes."""
        return report(self.findings)


async def audit(plan: Plan, tell: Callable[[str], None], /) -> Audit:
    """Bring every run to its end and return what came of it; runs that ended before are read, not run again."""
    calls = plan.calls or plan.folder / "calls"
    await anyio.to_thread.run_sync(lambda: calls.mkdir(parents=True, exist_ok=True))
    settings = replace(plan.settings, calls=calls)
    agent = make_agent(settings)
    async with open_store(plan.url) as store, Ledger(store, ttl=plan.ttl_s) as ledger:
        fresh = not (await store.find(Where(kind=KIND), limit=1)).runs
        handles = await _submitted(plan, agent, ledger)
        chaos = Chaos(
            seed=plan.chaos or 0, every_s=plan.every_s, frozen_s=plan.ttl_s + FROZEN_BEYOND_S, strikes=plan.strikes
        )
        if plan.workers:
            await _by_fleet(plan, settings, store, chaos, tell)
        else:
            await _here(plan, agent, ledger)
        findings = {dist: await _outcome(handle) for dist, handle in handles.items()}
        numbers = await _numbers(store, plan.dists, calls)
        refused = len(await store.refused(limit=1000))
    return Audit(
        findings=findings,
        numbers=numbers,
        fresh=fresh,
        kills=chaos.kills,
        freezes=chaos.freezes,
        refused=refused,
    )


async def _submitted(plan: Plan, agent: Agent[Finding], ledger: Ledger) -> dict[str, Handle[Finding]]:
    handles: dict[str, Handle[Finding]] = {}

    async def one(dist: str) -> None:
        handles[dist] = await ledger.submit(agent, prompt(dist), id=dist)

    async with anyio.create_task_group() as tasks:
        for dist in plan.dists:
            tasks.start_soon(one, dist)
    return handles


async def _here(plan: Plan, agent: Agent[Finding], ledger: Ledger) -> None:
    slots = anyio.CapacityLimiter(SIDE_BY_SIDE)
    checkpointed = CheckpointedAgent(agent, ledger)

    async def one(dist: str) -> None:
        async with slots:
            # How it ended is read from the store, like that of every other run.
            with suppress(RunFailed, RunCancelled, RunQuarantined):
                await checkpointed.run(prompt(dist), id=dist)

    async with anyio.create_task_group() as tasks:
        for dist in plan.dists:
            tasks.start_soon(one, dist)


async def _by_fleet(plan: Plan, settings: Settings, store: Store, chaos: Chaos, tell: Callable[[str], None]) -> None:
    fleet = Fleet(plan.url, plan.workers, ttl_s=plan.ttl_s, environment=settings.environment(), folder=plan.folder)
    async with AsyncExitStack() as stack:
        stack.enter_context(fleet)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        if plan.chaos is not None:
            tasks.start_soon(chaos.rage, fleet, lambda: bool(read_calls(settings.calls or plan.folder)), tell)
        while (await store.find(Where(kind=KIND, status=OPEN), limit=1)).runs:
            if fleet.ended:
                message = f"the workers have stopped; they said:\n{fleet.output[-4000:]}"
                raise RuntimeError(message)
            await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()


async def _outcome(handle: Handle[Finding]) -> Finding | str:
    try:
        return await handle.result(timeout=5)
    except RunFailed as error:
        return error.failure
    except (RunCancelled, RunQuarantined) as error:
        return error.code.value


async def _numbers(store: Store, dists: Sequence[str], calls: Path) -> Numbers:
    found = Journals()
    for dist in dists:
        run = await store.load(dist)
        if run is None:
            continue
        rows: list[Row] = []
        while page := await store.tail(dist, after=rows[-1].seq if rows else 0):
            rows.extend(page)
        found.add(run, rows)
    boot_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    offset_ms = (await store.facts()).now_ms - boot_ms
    return count(found, read_calls(calls), boot_ms_of_store=offset_ms)


def undisturbed(dists: Sequence[str], folder: Path, /) -> bytes:
    """Return the report that one process makes alone of the same distributions, with a store of its own."""
    out = folder / "undisturbed.json"
    command = [sys.executable, "-m", "examples.license_audit", *dists, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return out.read_bytes()
