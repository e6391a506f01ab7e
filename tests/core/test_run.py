"""The record as a value: what is changed in a copy, and what a state keeps of what it only wrote."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core import canonical, journal
from tenure.core.journal import State
from tenure.core.run import Run, Status
from tenure.errors import InvalidContent

RUN = Run(id="r", kind="k", tags={"a": "b"}, token=7)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def test_a_record_after_a_change_is_what_replace_makes_of_it_field_by_field() -> None:
    for field in dataclasses.fields(Run):
        changes: dict[str, Any] = {field.name: Status.FAILED if field.name == "status" else 42}
        after = RUN.after(**changes)
        assert after == dataclasses.replace(RUN, **changes) != RUN
        assert repr(after) == repr(dataclasses.replace(RUN, **changes))
        assert pickle.loads(pickle.dumps(after)) == after


def test_a_record_stays_as_it_is_and_has_its_fields_and_no_others() -> None:
    before = dataclasses.replace(RUN)
    after = RUN.after(step=3)
    assert before == RUN
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.step = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="no field stepp"):
        RUN.after(stepp=3)


@given(st.text(max_size=8), VALUES)
@settings(deadline=None)
def test_a_state_folds_the_bytes_of_an_event_as_it_folds_the_event(scope: str, value: Any) -> None:
    try:
        events = [
            journal.event(journal.CHECKPOINT, value=value),
            journal.event(journal.CHECKPOINT, scope=scope, value=value),
            journal.event(journal.RECORD, scope=scope, name="step:a", value=value),
            journal.event(journal.CHECKPOINT),
            journal.event("checkpoint/other", value=value),
        ]
    except InvalidContent:
        return
    for last in range(len(events)):
        own, read = State(), State()
        for data in events[: last + 1]:
            own.add_own(data)
            read.add(canonical.decode(data))
        assert own == read
        assert own.last is own.last


def test_what_a_caller_does_to_a_value_afterwards_does_not_change_what_was_written() -> None:
    state, value = State(), {"n": [1]}
    state.add_own(journal.event(journal.CHECKPOINT, value=value))
    value["n"].append(2)
    assert state.last == {"n": [1]}
    assert State().last is None
    assert State(last=[1]).last == [1]
