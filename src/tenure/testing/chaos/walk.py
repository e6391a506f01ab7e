"""What a process of a history does: bring one run to its end, and at its point die, freeze or stand still.

Whoever has lost its lease writes all the same, as a program without a deadline of its own would.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from tenure.agent.checkpointed import CheckpointedAgent
from tenure.core import build, journal
from tenure.core.run import Grant, Run
from tenure.errors import HistoryLost, LeaseLost, OutcomeUnknown, StoreUnavailable, TenureError
from tenure.ledger import Ledger
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos.gate import Stand, stand
from tenure.testing.chaos.noted import NotedStore
from tenure.testing.crashing import DIED, EXPECTED, PROMPT, DyingStore, Fuse, Point, exit_process, walker
from tenure.testing.models import CallLog

DONE = 0
WRONG = 11
LOST = 13
"""It lost its lease, and what it wrote all the same was noted."""
AWAY = 14
"""It did not get through to the store."""


def warm() -> None:
    """Import and build what every process needs; nothing that a fork must not inherit."""
    for name in ("redis", "sqlite", "postgres"):
        with suppress(ImportError):  # an extra that is not installed
            importlib.import_module(f"tenure.stores.{name}")
    agent = walker(CallLog(os.devnull))
    _ = agent.shape
    agent.tools["look"].check({"at": 1})


async def walk(order: Mapping[str, Any]) -> int:
    """Begin the run of an order, or go on with it, and before that with all that are due if it `sweeps`."""
    folder = Path(order["folder"])
    log = CallLog(folder / "calls.log")
    store = NotedStore(open_store(order["url"], namespace=order["namespace"]), folder)
    fuse = None
    if order.get("point"):
        blow = partial(_blow, order["blow"], folder)
        fuse = Fuse(run_id=order["run"], point=Point.parse(order["point"]), inside=order["inside"], blow=blow)
    try:
        async with store:
            port = cast("Store", store if fuse is None else DyingStore(cast("Store", store), fuse))
            async with Ledger(port, ttl=order["ttl"], max_stall=order.get("max_stall")) as ledger:
                agent = CheckpointedAgent(walker(log, fuse, seed=order["seed"]), ledger)
                try:
                    return await _ended(agent, order["run"], sweeps=order.get("sweeps", False))
                except (LeaseLost, HistoryLost) as lost:
                    log.write("lost", run=order["run"], why=lost.code.value)
                    for run in store.granted:
                        await write_all_the_same(store, run, log)
                    return LOST
    except (StoreUnavailable, OutcomeUnknown):
        pass
    return AWAY


async def _ended(agent: CheckpointedAgent[Any], run_id: str, *, sweeps: bool) -> int:
    ended: list[Any] = []
    if sweeps:
        for entry in await agent.recover_all(limit=1000):
            if not entry.ok:
                sys.stderr.write(f"{entry.run_id}: {entry.error!r}\n")
            ended.append(entry.output)
    if run_id:
        ended.append(await agent.run(PROMPT, id=run_id))
    return DONE if all(output == EXPECTED for output in ended) else WRONG


async def _blow(blow: str, folder: Path, code: int) -> None:
    if blow == "exit" or code != DIED:
        await exit_process(code)
    elif blow == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep_forever()
    elif blow == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        await stand(folder, Stand(blow))


async def write_all_the_same(store: NotedStore, run: Run, log: CallLog) -> None:
    """Write under a grant that this process had: what was in hand, then at the journal's end as it is by then.

    `run` is as it was granted. At the end of the journal only the fence refuses it.
    """
    grant = build.grant_of(run)
    try:
        # A holder stops before the store would let anybody in; until then its write is none of a dead grant.
        while True:
            # The time first: a renewal that was on its way may land until the lease that is read next is over.
            now_ms = (await store.facts()).now_ms
            now = await store.load(run.id)
            if now is None or now.token != run.token or now.lease_until_ms <= now_ms:
                break
            await anyio.sleep(0.02)
        await _write_after(store, grant, run, log)
        if now is not None:
            await _write_after(store, grant, now, log)
    except TenureError as error:
        log.write("unanswered", run=run.id, token=run.token, code=error.code.value)


async def _write_after(store: NotedStore, grant: Grant, run: Run, log: CallLog) -> None:
    event = journal.event(journal.CHECKPOINT, value="stale")
    answer = await store.commit(build.commit(grant, run.last_seq + 1, run.head, [event], step=1))
    log.write("stale", run=run.id, token=grant.token, landed=answer.ok, why=str(answer.why))
