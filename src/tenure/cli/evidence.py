"""What the journal of one run tells beside its record: calls that were open at each grant's end, and what was used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from tenure.core import journal
from tenure.core.budget import MICROS, Spent
from tenure.core.loop import AgentState
from tenure.core.run import Row, Run
from tenure.core.text import count
from tenure.errors import TenureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`calls` by token: what was started and had no result when that grant wrote last; `spent` of an agent."""

    calls: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    spent: Spent | None = None

    @property
    def words(self) -> str:
        """Return what was used, in words."""
        if (spent := self.spent) is None:
            return "nothing"
        usage, lost = spent.usage, spent.lost
        found = [count(spent.turns, "turn"), count(spent.tool_calls, "tool call")]
        found.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens")
        if spent.micros or spent.lost_micros:
            found.append(f"cost {(spent.micros + spent.lost_micros) / MICROS:,.10g}")
        if lost.input_tokens or lost.output_tokens:
            found.append(f"{lost.input_tokens:,} + {lost.output_tokens:,} tokens set aside for lost questions")
        return ", ".join(found)


async def evidence(rows: AsyncIterator[Row], run: Run, /) -> Evidence:
    """Return what the commits of a run tell; those that cannot be read are passed over: some is better than none."""
    started: dict[tuple[str, str], None] = {}
    found: dict[int, tuple[str, ...]] = {}
    agent: AgentState | None = AgentState()
    async for row in rows:
        try:
            events = journal.events_of(row)
        except TenureError:
            continue
        for event in events:
            scope = str(event.get("scope", ""))
            if event["type"] == journal.CALL_STARTED:
                started |= {(scope, str(name)): None for name in event.get("names", ())}
            elif event["type"] == journal.RECORD:
                started.pop((scope, str(event.get("name"))), None)
            agent = _folded(agent, event)
        found[row.token] = tuple(f"{scope}/{name}" if scope else name for scope, name in started)
    spent = agent.spent if agent is not None and agent.spent.turns else None
    return Evidence(calls={line.token: found.get(line.token, ()) for line in run.grants}, spent=spent)


def _folded(agent: AgentState | None, event: journal.Event) -> AgentState | None:
    """The conversation with one event more; None for one that is no agent's, or is damaged."""
    if agent is None:
        return None
    try:
        agent.add(event)
    except TenureError:
        return None
    return agent
