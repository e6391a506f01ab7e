"""A desk for tests of approvals: an agent whose tool records what it was made with, and a run that waits."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent.parts import Bench, agent_of, call
from tenure import Agent, CheckpointedAgent, Handle, RunSuspended, Tool, tool


class Desk(Bench):
    """A bench with a tool that records each message it was made with."""

    def recorder(self, **options: Any) -> Tool[..., Any]:
        @tool(**{"name": "record", "approval": True, **options})
        async def record(message: str) -> str:
            self.made.append(message)
            return f"recorded {message}"

        return record

    async def suspended(self, agent: Agent[Any]) -> CheckpointedAgent[Any]:
        durable = CheckpointedAgent(agent, self.ledger)
        with pytest.raises(RunSuspended):
            await durable.run("go", id="w1")
        return durable

    @property
    def handle(self) -> Handle[Any]:
        return self.ledger.handle("w1")


def recorder_of(desk: Desk, *messages: str, **options: Any) -> Agent[str]:
    calls = tuple(call(f"c{n}", "record", message=message) for n, message in enumerate(messages, 1))
    return agent_of(desk.recorder(**options), calls=calls)


async def expire(desk: Desk, run_id: str = "w1") -> None:
    """Wait until the store's clock is past the expiry of what the run asks."""
    while True:
        run, now_ms = await desk.ledger.load(run_id), (await desk.store.facts()).now_ms
        if run.due_ms is not None and run.due_ms <= now_ms:
            return
        await anyio.sleep(0.01)
