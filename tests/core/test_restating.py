"""The folded state restated: whoever begins at the restating commit knows what who began at the start knows."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.test_loop import _journal
from tenure.core import canonical, journal, restating
from tenure.core.journal import State
from tenure.core.loop import AgentState, fold


def _plain(state: Any) -> dict[str, Any]:
    found = {name: getattr(state, name) for name in (f.name for f in dataclasses.fields(state))}
    if "lineage" in found:
        found["lineage"] = [(b.at, b.role, b.type, b.sources, b.digest) for b in found["lineage"].blocks]
    return found


def test_every_field_of_an_agent_s_state_is_restated_or_named_apart() -> None:
    fields = {f.name for f in dataclasses.fields(AgentState)}
    assert fields == restating._AGENT.keys() | restating.APART
    assert restating._AGENT.keys().isdisjoint(restating.APART)


def test_every_field_of_a_run_s_state_is_restated() -> None:
    value = restating.run(State())
    assert {f.name for f in dataclasses.fields(State)} - {"attempts"} == value.keys()


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_i26_m_ck22_m_jr20_a_state_restated_at_any_event_folds_on_as_if_nothing_was_between(seed: int) -> None:
    events = _journal(seed)
    whole = fold(events)
    for cut in range(1, len(events)):
        before = fold(events[:cut])
        data = journal.restatement("run/start", input="go", agent=restating.agent(before))
        after = fold([canonical.decode(data), *events[cut:]])
        after.lineage.told = whole.lineage.told
        assert _plain(after) == _plain(whole)


def test_a_run_s_state_comes_back_from_its_restatement() -> None:
    state = State(input={"n": 1}, last=[1, 2], checkpoints=3)
    for event in (
        {"type": "record", "scope": "", "name": "step:a", "value": 1},
        {"type": "call/started", "scope": "x", "names": ["step:b"]},
        {"type": "inbox/consumed", "scope": "", "item": "i1", "name": "go", "ask": "signal", "value": None},
    ):
        state.add(event)
    found = State()
    found.add(canonical.decode(journal.restatement("run/start", input={"n": 1}, state=restating.run(state))))
    assert _plain(found) == _plain(state)
