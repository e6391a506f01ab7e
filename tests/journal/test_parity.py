"""Lines of parity that no other test of the journal proves."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from journal.kit import LAST, forged, walk, walker
from tenure import (
    Agent,
    CheckpointedAgent,
    Ledger,
    ModelRequest,
    RunQuarantined,
    SlidingWindow,
    Status,
    Store,
    ToolCall,
    tool,
    verify_run,
)
from tenure.core import canonical, journal, restating
from tenure.core.loop import AgentState, fold
from tenure.core.messages import assistant
from tenure.errors import CorruptRecord
from tenure.testing.models import FunctionModel


class Port(BaseModel):
    name: str


async def test_m_jr_l2_an_answer_that_does_not_fit_is_repaired_in_the_same_conversation(ledger: Ledger) -> None:
    def model(request: ModelRequest) -> Any:
        return "no json" if request.step == 1 else '{"name": "Ithaca"}'

    agent = Agent(FunctionModel(model), name="pilot", output=Port, enforce_lineage=True)
    assert await CheckpointedAgent(agent, ledger).run("where?", id="w1") == Port(name="Ithaca")
    requests = [event async for _, event in ledger.handle("w1").events() if event["type"] == "model/request"]
    assert [block["from"] for block in requests[1]["blocks"]] == [["model:1"], ["refused:1"]]
    assert (await ledger.handle("w1").verify()).ok


async def test_m_jr_l4_a_redacted_journal_explains_what_the_model_was_shown(store: Store) -> None:
    secret = "sk-" + "a1B2" * 10

    @tool
    async def read_config() -> str:
        return f"Authorization: Bearer {secret}"

    def model(request: ModelRequest) -> Any:
        if request.step == 1:
            return assistant("", ToolCall(id="c1", name="read_config", arguments={}))
        return (
            "done"
            if request.step > 3
            else assistant("", ToolCall(id=f"c{request.step}", name="read_config", arguments={}))
        )

    async with Ledger(store, redact=True) as ledger:
        scripted = FunctionModel(model)
        agent = Agent(
            scripted, name="r", tools=[read_config], context=SlidingWindow(turns=1, keep=1), enforce_lineage=True
        )
        assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
        assert (await ledger.handle("w1").verify()).ok
        await ledger.fork("w1", at=2, id="w2")
        assert await CheckpointedAgent(agent, ledger).recover("w2") == "done"
        assert (await ledger.handle("w2").verify()).ok
    for run_id in ("w1", "w2"):
        assert all(secret.encode() not in row.body for row in await store.tail(run_id))
    assert all(secret not in repr(request.messages) for request in scripted.asked)


async def test_m_ck31_a_restated_conversation_whose_lineage_does_not_fit_it_is_corrupt(ledger: Ledger) -> None:
    state = fold([{"type": "run/start", "scope": "", "input": "go"}])
    value = restating.agent(state)
    for damaged in (
        {**value, "messages": [{**value["messages"][0], "from": [["start"], ["model:1"], ["model:2"]]}]},
        {**value, "messages": [{"message": value["messages"][0]["message"]}]},
        {**value, "messages": [{**value["messages"][0], "from": []}]},
        {key: entry for key, entry in value.items() if key != "messages"},
        {**value, "step": "many"},
        None,
    ):
        with pytest.raises(CorruptRecord):
            restating.restore(AgentState(), damaged)
    await ledger.submit(walker(), "go", id="w1")
    async with ledger.hold("w1") as lease:
        broken = {**value, "messages": [{**value["messages"][0], "from": [["start"], ["start"]]}]}
        await lease.commit([journal.restatement("context/replace", name="context:1.0", step=1, agent=broken)])
    with pytest.raises(RunQuarantined):
        await CheckpointedAgent(walker(), ledger).recover("w1")
    assert (await ledger.load("w1")).status is Status.QUARANTINED


async def test_m_jr22_a_forward_gap_or_a_repeat_of_a_step_is_named_at_its_event(ledger: Ledger) -> None:
    run, rows = await walk(ledger)

    def later(event: dict[str, Any]) -> None:
        if event["type"] == "assistant/message" and event["step"] == LAST:
            event["step"] = LAST + 1

    found = verify_run(*forged(run, rows, later))
    folds = [one.detail for one in found.failures if one.code == "FOLD"]
    assert len(folds) == 1
    assert "answer 10 follows answer 8" in folds[0]


async def test_m_jr14_m_jr15_the_end_of_a_run_is_an_event_of_the_commit_that_ends_it(ledger: Ledger) -> None:
    run, rows = await walk(ledger)
    body = canonical.decode(rows[-1].body)
    assert [event["type"] for event in body["events"]] == ["run/end"]
    assert body["effects"]["status"] == body["events"][0]["status"] == run.status.value == "completed"
    assert (run.last_seq, run.head) == (rows[-1].seq, rows[-1].digest)
    bases = [row.seq for row in rows if b'"type":"context/replace"' in row.body]
    assert run.base_seq == bases[-1], "an event and the checkpoint that it is are one write"
