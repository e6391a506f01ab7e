"""`resolve`: a person says how a call in doubt ended, and the run goes on."""

from __future__ import annotations

from typing import Any

import pytest

from cli.kit import Console
from tenure import Agent, CheckpointedAgent, Ledger, RunSuspended, Status, Store, ToolCall, tool
from tenure.cli.ends import who
from tenure.core import journal
from tenure.core.messages import assistant
from tenure.testing.models import ScriptedModel

made: list[str] = []


@tool(effect="ask")
async def pay() -> str:
    made.append("paid")
    return "paid"


def _agent() -> Agent[str]:
    calls = assistant("", ToolCall(id="c1", name="pay", arguments={}))
    return Agent(ScriptedModel([calls, "done"]), name="cashier", tools=[pay])


@pytest.fixture
def asking(console: Console) -> Console:
    """A console whose store has a run that asks how its call ended."""
    made.clear()

    async def doubt(store: Store) -> None:
        async with Ledger(store) as ledger:
            await ledger.submit(_agent(), "go", id="r1")
            async with ledger.hold("r1") as lease:
                shape = journal.event("agent/shape", **_agent().shape)
                message = {"schema": 1, "role": "assistant", "parts": [_held()]}
                asked = journal.event("assistant/message", step=1, message=message, held=["c1"])
                await lease.commit([shape, asked, journal.event(journal.CALL_STARTED, names=["tool:c1"])], step=1)
            with pytest.raises(RunSuspended):
                await CheckpointedAgent(_agent(), ledger).recover("r1")

    console.do(doubt)
    return console


def _held() -> dict[str, Any]:
    return {"type": "call", "id": "c1", "name": "pay", "arguments": {}}


def _finish(console: Console) -> str:
    async def recover(store: Store) -> str:
        return await CheckpointedAgent(_agent(), store).recover("r1")

    found: str = console.do(recover)
    return found


@pytest.mark.parametrize(
    "options, times", [(("--result", '{"receipt": 7}'), 0), (("--repeat",), 1), (("--fail",), 0)], ids=str
)
def test_a_resolved_run_is_queued_and_goes_on(asking: Console, options: tuple[str, ...], times: int) -> None:
    shown = asking("show", "r1")
    assert "resolve:c1" in shown.out
    assert "how did pay" in asking("approvals", "list").out
    said = asking("resolve", "r1", "c1", *options)
    assert (said.code, said.out) == (0, "r1 has its answer about c1 and is queued\n")
    assert asking("resolve", "r1", "c1", *options, "-o", "json").json["status"] == Status.QUEUED.value
    assert _finish(asking) == "done"
    assert made == ["paid"] * times
    assert asking("resolve", "r1", "c1", *options).code == 0, "the same again, though the run took note of it"
    other = asking("resolve", "r1", "c1", *(("--fail",) if options[0] != "--fail" else ("--repeat",)))
    assert (other.code, f"ended was said first, by {who()}: {options[0][2:]}, and" in other.err) == (9, True), other.err
    late = asking("approvals", "approve", "r1")
    assert (late.code, "run r1 does not ask anything; `tenure" in late.err) == (9, True), "that was none to approve"


def test_what_cannot_be_resolved_says_why(asking: Console) -> None:
    assert asking("resolve", "r1", "c1").code == 2
    assert asking("resolve", "r1", "c1", "--fail", "--repeat").code == 2
    assert asking("resolve", "r1", "c1", "--result", "{").code == 2
    other = asking("resolve", "r1", "c2", "--fail")
    assert other.code == 9
    assert "REQUEST_CLOSED" in other.err
    assert "resolve:c1" in other.err
    assert asking("resolve", "nobody", "c1", "--fail").code == 3
    assert asking("resolve", "r1", "c1", "--fail").code == 0
    assert asking("resolve", "r1", "c1", "--repeat").code == 9, "the first word stands"
