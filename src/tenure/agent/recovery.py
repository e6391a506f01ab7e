"""Recovery: claim a run that its process left, and drive it like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from tenure.agent.agent import Agent
from tenure.agent.running import settled
from tenure.core.run import Status
from tenure.errors import LeaseHeld, RunClosed, RunConflict, RunDeclined, RunNotFound
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.store import Hint

Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Generic[Out]):
    """What recovering one run came to; `status` is the run's afterwards, as far as it is known."""

    run_id: str
    status: Status | None = None
    output: Out | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Return whether the run has ended with its output."""
        return self.error is None


async def recover(agent: Agent[Out], ledger: Ledger, run_id: str, /) -> Out:
    """Claim one run, drive it to its end, and return its output."""
    run = await ledger.load(run_id)
    if run.kind != agent.name:
        message = f"run {run.id} is of kind {run.kind} and this agent is {agent.name}; recover it with its own agent"
        raise RunDeclined(message, run=run)
    async with ledger.hold(run.id) as lease:
        await settled(agent, lease)
    return await ledger.handle(run.id, agent).result()


async def recover_all(
    agent: Agent[Out], ledger: Ledger, /, *, limit: int = 100, concurrency: int = 4
) -> list[Recovered[Out]]:
    """Claim and drive what is due of the agent's kind; the claim is the filter, so several sweeps share the work.

    A run whose process died is recovered alone: should it end this process too, it takes no other with it.
    """
    hints = await ledger.store.due([agent.name], limit=limit)
    found: dict[str, Recovered[Out]] = {}
    slots = anyio.Semaphore(max(1, concurrency))
    crowded: list[Hint] = []

    async def one(hint: Hint) -> None:
        async with slots:
            entry = await _recovered(agent, ledger, hint, alone=False)
            if entry is not None and entry.status is None and isinstance(entry.error, RunDeclined):
                crowded.append(hint)
            elif entry is not None:
                found[hint.run] = entry

    async with anyio.create_task_group() as tasks:
        for hint in hints:
            tasks.start_soon(one, hint)
    for hint in crowded:
        if (entry := await _recovered(agent, ledger, hint, alone=True)) is not None:
            found[hint.run] = entry
    return [found[hint.run] for hint in hints if hint.run in found]


async def _recovered(agent: Agent[Out], ledger: Ledger, hint: Hint, *, alone: bool) -> Recovered[Out] | None:
    claims = ledger.claims
    # `claim` would ask a shard that takes no writes for up to a ttl, while runs of other shards wait their turn.
    (lease,) = await claims.claim_many([claims.change(hint.run, token=hint.token, kinds=(agent.name,), alone=alone)])
    if isinstance(lease, LeaseHeld | RunClosed | RunConflict | RunNotFound):
        return None  # the index was early, or somebody else was quicker
    if not isinstance(lease, Lease):
        return Recovered(run_id=hint.run, error=lease)
    try:
        async with claims.under(lease):
            await settled(agent, lease)
        output = await ledger.handle(hint.run, agent).result()
    except Exception as error:  # noqa: BLE001 - one run's trouble is its entry's
        return Recovered(run_id=hint.run, status=lease.run.status, error=error)
    return Recovered(run_id=hint.run, status=lease.run.status, output=output)
