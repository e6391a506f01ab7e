"""Each door to a store redacts as it was told to."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import ActiveRun, Agent, App, CheckpointedAgent, Ledger, NotAllowed, open_store
from tenure.testing.inline import Inline
from tenure.testing.models import ScriptedModel

SECRET = "ghp_" + "S3cr3t0000" * 3


async def test_b120_an_agent_in_this_process_redacts_what_it_opens_itself() -> None:
    agent = Agent(ScriptedModel([f"it is {SECRET}"]), name="walker")
    async with open_store("memory://") as store:
        found = await CheckpointedAgent(agent, store, redact=True).run(f"log in as {SECRET}", id="r1")
        assert found == "it is [redacted]"
        assert SECRET.encode() not in b"".join(row.body for row in await store.tail("r1"))
        async with Ledger(store, ttl=10) as ledger:
            with pytest.raises(NotAllowed, match="the ledger it was given does not"):
                CheckpointedAgent(agent, ledger, redact=True)


async def test_b120_a_run_in_line_redacts_as_its_app_says() -> None:
    app = App(redact=True)

    @app.kind("k")
    async def k(run: ActiveRun[Any], input: Any) -> Any:
        return input

    async with Inline(app) as inline:
        handle = await inline.submit(k, {"token": "abc"}, id="r1")
        assert await inline.result(handle) == {"token": "[redacted]"}
