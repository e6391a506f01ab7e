"""Lineage: each block that a model is shown is explained by the journal, or the run says that it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agent.parts import call, events
from agent.test_context import TURNS, _agent, _replacements, _shown, _walker, look
from tenure import Context, Ledger, LineageBroken, ModelRequest, RunFailed, Status
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.tool import tool
from tenure.core import canonical
from tenure.core.lineage import block_digest
from tenure.core.messages import Message, ToolMessage, assistant, to_json, user
from tenure.testing.models import FunctionModel


async def test_a_hook_that_changes_what_it_was_shown_changes_a_copy(ledger: Ledger) -> None:
    @tool
    async def table() -> dict[str, int]:
        return {"rows": 3}

    def hook(context: Context) -> Sequence[Message] | None:
        for message in context.messages:
            for part in message.parts:
                if isinstance(content := getattr(part, "content", None), dict):
                    content["rows"] = 99
        return context.messages if context.step == 3 else None

    def model(request: ModelRequest) -> Any:
        return assistant("", call(f"c{request.step}", "table")) if request.step < 3 else "done"

    agent = Agent(FunctionModel(model), name="walker", tools=[table], context=hook, enforce_lineage=True)
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    (found,) = await _replacements(ledger)
    assert [m["from"] for m in found["agent"]["messages"]][2] == [["context:3.0"]], "it says something else: its own"


async def test_m_jr19_a_block_that_the_journal_does_not_explain_is_not_shown(ledger: Ledger) -> None:
    @tool
    async def table() -> dict[str, int]:
        return {"rows": 3}

    def model(request: ModelRequest) -> Any:
        if request.step == 1:
            return assistant("", call("c1", "table"))
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            last.parts[0].content["rows"] = 99  # a model that mends what it was given
        return "done" if request.step == 3 else assistant("", call(f"c{request.step}", "table"))

    strict = Agent(FunctionModel(model), name="walker", tools=[table], enforce_lineage=True)
    with pytest.raises(RunFailed) as caught:
        await CheckpointedAgent(strict, ledger).run("go", id="w1")
    assert caught.value.failure == "LINEAGE_BROKEN"
    assert "message 2, part 0" in caught.value.detail
    assert "assistant/message" in [e["type"] for e in await events(ledger, "w1")]
    assert (await ledger.load("w1")).status is Status.FAILED
    assert LineageBroken.code.value == "LINEAGE_BROKEN"


async def test_m_jr17_m_jr18_a_request_names_each_new_block_with_its_origin_and_digest(ledger: Ledger) -> None:
    model = FunctionModel(_walker)
    await CheckpointedAgent(_agent(model, instructions="Walk."), ledger).run("go", id="w1")
    found = [e for e in await events(ledger, "w1") if e["type"] == "model/request"]
    assert [e["name"] for e in found] == [f"request:{n}" for n in range(1, TURNS + 1)]
    assert [b["from"] for b in found[0]["blocks"]] == [["start"]]
    assert [b["from"] for b in found[2]["blocks"]] == [["model:2"], ["model:2"], ["tool:c2"]]
    assert found[2]["count"] == 7
    parts = [(to_json(m)["role"], p) for m in _shown(model.asked[2]) for p in to_json(m)["parts"]]
    assert [b["digest"] for e in found[:3] for b in e["blocks"]] == [block_digest(*part) for part in parts]
    assert {e["system"] for e in found} == {canonical.digest(b"Walk.")}


async def test_what_a_policy_leaves_has_to_fit_into_an_event(ledger: Ledger) -> None:
    def hook(context: Context) -> Sequence[Message] | None:
        return [user("x" * 5_000_000), *context.messages[1:]] if context.step == 2 else None

    agent = Agent(FunctionModel(_walker), name="walker", tools=[look], context=hook)
    with pytest.raises(RunFailed) as caught:
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    assert caught.value.failure == "INVALID_CONTENT"
    assert "context policy hook" in caught.value.detail
    assert "keep less" in caught.value.detail
