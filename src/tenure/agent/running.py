"""Bringing a run to its end in this process: hold it, drive it, settle it; or wait for who holds it."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from tenure.agent.agent import Agent
from tenure.agent.asking import Watcher
from tenure.agent.runner import drive
from tenure.calling import Threads
from tenure.codec import to_json_value
from tenure.core.run import Status
from tenure.errors import (
    CancelRequested,
    InvalidContent,
    LeaseHeld,
    LineageBroken,
    OutOfBudget,
    OutputInvalid,
    RequestExpired,
    RunClosed,
)
from tenure.handle import Handle
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.retry import TryLater

Out = TypeVar("Out")

LOOK_S = 0.25


async def settled(agent: Agent[Out], lease: Lease, /, *, watcher: Watcher | None = None) -> None:
    """Drive the agent and settle its run: completed with its output, or failed for good with the code of the error."""
    threads = Threads()
    try:
        value = to_json_value(await drive(agent, lease, watcher=watcher, threads=threads), agent.output)
    except (OutOfBudget, OutputInvalid, InvalidContent, LineageBroken, RequestExpired) as error:
        await lease.settle(Status.FAILED, code=error.code.value, message=error.message)
    except CancelRequested as error:
        await lease.settle(Status.CANCELLED, code="cancelled", message=error.message)
    except TryLater as later:
        await threads.ended()
        await lease.hand_back(after=later.after)
        raise
    except Exception:
        if lease.lost is None and not lease.over:
            # Who leaves hands the run back, and a thread of a tool that timed out would run beside the successor.
            await threads.ended()
        raise
    else:
        await lease.settle(Status.COMPLETED, value)


async def finish(agent: Agent[Out], ledger: Ledger, handle: Handle[Out], /, *, watcher: Watcher | None = None) -> Out:
    """Return the run's output, whoever gets it done: this process, or the holder that is joined here.

    The output is read back from the store, so it is the same value and type for everybody who asks.
    """
    while True:
        async with AsyncExitStack() as held:
            lease, wait_s = None, LOOK_S
            try:
                lease = await held.enter_async_context(ledger.hold(handle.id))
            except RunClosed:
                return await handle.result()
            except LeaseHeld as other:
                wait_s = max(0.05, other.remaining_ms / 1000)
            if lease is not None:
                await settled(agent, lease, watcher=watcher)
                break
        with suppress(TimeoutError):
            return await handle.result(timeout=wait_s if watcher is None else min(LOOK_S, wait_s))
        if watcher is not None:
            await watcher.landed()
    return await handle.result()
