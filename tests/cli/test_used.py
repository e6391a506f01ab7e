"""What an agent's run has used, on its sheet."""

from __future__ import annotations

from agent.spending import with_one_more
from cli.kit import Console
from tenure import CheckpointedAgent, Ledger, Store


async def _run(store: Store) -> None:
    agent = with_one_more.agent
    async with Ledger(store) as ledger:
        await CheckpointedAgent(agent, ledger).run("go", id="a1")  # type: ignore[arg-type]


def test_what_an_agent_used_stands_on_the_sheet_of_its_run(console: Console) -> None:
    console.do(_run)
    assert "used      3 turns, 4 tool calls, 30 + 15 tokens, cost 3\n" in console("show", "a1").out
    used = console("show", "a1", "-o", "json").json["used"]
    assert (used["turns"], used["usage"], used["micros"]) == (3, {"input_tokens": 30, "output_tokens": 15}, 3_000_000)
