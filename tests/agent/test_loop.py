"""The stepper: whatever part of a journal has landed, what is done next makes a valid history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core import canonical, journal
from tenure.core.journal import Event
from tenure.core.loop import AgentState, Ask, Call, Fail, Failing, Finish, fold, next_action
from tenure.core.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    assistant,
    to_json,
    user,
)
from tenure.core.saying import answer, calls_started, distinct, output_refused, result, result_error
from tenure.errors import CorruptRecord, NotAllowed

START = {"type": "run/start", "scope": "", "input": "go"}


def _call(call_id: str, name: str = "look", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def _events(*data: bytes) -> list[Event]:
    return [canonical.decode(one) for one in data]


def _answered(state: AgentState, message: AssistantMessage, refused: dict[str, tuple[str, str]] | None = None) -> None:
    told = answer(state, message, usage=Usage(input_tokens=1), model="m", refused=refused or {})
    fold(_events(*told), state)


def _begun() -> AgentState:
    return fold([START])


def assert_valid(messages: Sequence[Message]) -> None:
    """What every provider asks of a history: one result for each call, in order, right after the answer."""
    assert isinstance(messages[0], UserMessage)
    for message, after in zip(messages, [*messages[1:], None], strict=True):
        if isinstance(message, AssistantMessage) and message.calls:
            assert isinstance(after, ToolMessage), "an answer with calls is followed by their results"
            assert [part.call_id for part in after.parts] == [call.id for call in message.calls]
        else:
            assert not isinstance(after, ToolMessage), "results follow an answer with calls and nothing else"
    ids = [call.id for message in messages if isinstance(message, AssistantMessage) for call in message.calls]
    assert len(ids) == len(set(ids))


def _journal(seed: int) -> list[Event]:
    """A whole run as it might have been: turns of 0 to 4 calls, results in any order, errors, starts, a repair."""
    chance = random.Random(seed)
    events: list[Event] = [START]
    state = fold(events)

    def add(*data: bytes) -> None:
        found = _events(*data)
        fold(found, state)
        events.extend(found)

    for step in range(chance.randint(1, 4)):
        made = tuple(_call(f"c{step}.{n}") for n in range(chance.randint(1, 4)))
        refused = {call.id: ("UnknownTool", "none") for call in made if chance.random() < 0.2}
        add(*answer(state, assistant("hm", *made), usage=Usage(output_tokens=1), model="m", refused=refused))
        held = [call.id for call in made if call.id not in refused]
        chance.shuffle(held)
        if held and chance.random() < 0.5:
            add(calls_started(held))
        for call_id in held:
            if chance.random() < 0.3:
                add(result_error(call_id, "ValueError", "no"))
            else:
                add(result(call_id, {"found": call_id}))
    if chance.random() < 0.5:
        add(*answer(state, assistant("not json"), usage=Usage(), model="m", refused={}))
        add(output_refused("$: not json"))
    add(*answer(state, assistant("done"), usage=Usage(), model="m", refused={}))
    return events


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_b137_every_prefix_of_a_journal_folds_to_a_history_that_a_model_takes(seed: int) -> None:
    events = _journal(seed)
    for length in range(1, len(events) + 1):
        state = fold(events[:length])
        match next_action(state, max_steps=100):
            case Ask(messages=messages, step=step):
                assert_valid(messages)
                assert step == sum(isinstance(m, AssistantMessage) for m in messages) + 1
            case Call(calls=calls):
                recorded = {str(e["name"]) for e in events[:length] if e["type"] == "record"}
                assert calls
                assert not {f"tool:{call.id}" for call in calls} & recorded, (
                    "M-CK43: what is recorded is not made again"
                )
                # Whatever the calls come to, in whatever order, the next question is valid.
                for call in reversed(calls):
                    fold(_events(result(call.id, "late")), state)
                following = next_action(state, max_steps=100)
                assert isinstance(following, Ask)
                assert_valid(following.messages)
            case Finish(text=text):
                assert text in ("done", "not json")
            case Fail():
                pytest.fail("nothing failed")


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_one_path_folding_at_once_and_folding_in_two_lives_say_the_same(seed: int) -> None:
    events = _journal(seed)
    cut = random.Random(seed).randint(0, len(events))
    assert fold(events[cut:], fold(events[:cut])) == fold(events)


def test_b136_held_calls_come_first_with_their_own_ids_and_then_one_result_each() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c1"), _call("c2")))
    action = next_action(state, max_steps=5)
    assert isinstance(action, Call)
    assert [call.id for call in action.calls] == ["c1", "c2"]
    fold(_events(result("c2", 2), result("c1", 1)), state)
    ask = next_action(state, max_steps=5)
    assert isinstance(ask, Ask)
    last = ask.messages[-1]
    assert isinstance(last, ToolMessage)
    assert [(part.call_id, part.content) for part in last.parts] == [("c1", 1), ("c2", 2)]


def test_b137_an_answer_over_open_calls_is_refused_when_it_would_be_saved() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c1")))
    with pytest.raises(NotAllowed, match="c1"):
        answer(state, assistant("again"), usage=Usage(), model="m", refused={})


def _answer_event(step: int, *calls: ToolCall) -> Event:
    return {"type": "assistant/message", "scope": "", "step": step, "message": to_json(assistant("", *calls))}


@pytest.mark.parametrize(
    "events, named",
    [
        ([START, START], "begins twice"),
        ([START, _answer_event(2)], "answer 2 follows answer 0"),
        ([START, _answer_event(1, _call("c1")), _answer_event(2)], "c1"),
        ([START, _answer_event(1, _call("c1"), _call("c1"))], "c1 is used twice"),
        ([START, {"type": "record", "scope": "", "name": "tool:c9", "value": 1}], "c9 has no open call"),
        ([START, {**_answer_event(1), "message": to_json(user("x"))}], "no assistant message"),
    ],
)
def test_b105_a_journal_that_cannot_be_is_refused_by_name(events: list[Event], named: str) -> None:
    with pytest.raises(CorruptRecord, match=named):
        fold(events)


def test_a_second_result_of_a_call_is_refused() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c1"), _call("c2")))
    fold(_events(result("c1", 1)), state)
    with pytest.raises(CorruptRecord, match="c1"):
        fold(_events(result("c1", 2)), state)


def test_a_state_without_a_beginning_is_not_stepped() -> None:
    with pytest.raises(CorruptRecord, match="no beginning"):
        next_action(AgentState(), max_steps=1)


def test_events_of_other_scopes_and_types_are_passed_over() -> None:
    state = _begun()
    before = fold([START])
    other = [{**_answer_event(1), "scope": "call-1"}, {"type": "checkpoint", "scope": "", "value": 1}]
    assert fold(other, state) == before


def test_i14_errors_are_replayed_verbatim() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c1")))
    fold(_events(result_error("c1", "ValueError", "no such file")), state)
    last = state.messages[-1]
    assert isinstance(last, ToolMessage)
    assert last.parts[0].is_error
    assert last.parts[0].content == "ValueError: no such file"


def test_a_call_that_cannot_be_made_has_its_error_in_the_checkpoint_itself() -> None:
    state = _begun()
    message = assistant("", _call("c1"), _call("c2"))
    told = answer(state, message, usage=Usage(), model="m", refused={"c1": ("UnknownTool", "none")})
    fold(_events(*told), state)
    assert [call.id for call in state.open] == ["c2"]
    assert _events(told[0])[0]["held"] == ["c2"]


@pytest.mark.parametrize(
    "ids", [["", ""], ["a", "a"], ["", "call-1-0"], ["call-1-1", ""], ["x#2", "a b"], ["x" * 500, "ok"]]
)
def test_ids_that_name_no_call_of_their_own_are_replaced(ids: list[str]) -> None:
    state = _begun()
    made = distinct(assistant("x", *(_call(i) for i in ids)), state)
    found = [call.id for call in made.calls]
    assert len(set(found)) == len(ids)
    assert all(found)
    _answered(state, made)


def test_an_id_of_a_former_answer_is_replaced() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c1")))
    fold(_events(result("c1", 1)), state)
    again = distinct(assistant("", _call("c1"), _call("c2")), state)
    assert [call.id for call in again.calls] == ["call-2-0", "c2"]


def test_m_ck46_the_step_limit_goes_on_from_where_it_was_and_is_a_failure() -> None:
    state = _begun()
    for step in (1, 2):
        _answered(state, assistant("", _call(f"c{step}")))
        fold(_events(result(f"c{step}", step)), state)
    assert isinstance(next_action(state, max_steps=3), Ask)
    action = next_action(state, max_steps=2)
    assert isinstance(action, Fail)
    assert action.code is Failing.STEP_LIMIT
    assert state.usage == Usage(input_tokens=2)


def test_an_answer_that_did_not_fit_is_followed_by_a_repair() -> None:
    state = _begun()
    _answered(state, assistant("forty-two"))
    assert next_action(state, max_steps=9) == Finish(text="forty-two", repairs=0)
    fold(_events(output_refused("$: Input should be a valid integer")), state)
    ask = next_action(state, max_steps=9)
    assert isinstance(ask, Ask)
    assert "valid integer" in str(ask.messages[-1])
    _answered(state, assistant("still"))
    assert next_action(state, max_steps=9) == Finish(text="still", repairs=1)


def test_i24_started_without_result_is_in_doubt_and_nothing_else_is() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c1"), _call("c2"), _call("c3")))
    fold(_events(calls_started(["c1", "c2"]), result("c1", 1)), state)
    assert state.in_doubt == {"c2"}
    fold(_events(result("c2", 1), result("c3", 1)), state)
    assert state.in_doubt == frozenset()


def test_each_time_an_outcome_is_asked_for_the_request_is_another() -> None:
    state = _begun()
    _answered(state, assistant("", _call("c0"), _call("c1")))
    for asked in ("resolve:c1", "resolve:c1#2", "resolve:c1#3"):
        assert state.request_of("c1") == asked
        fold(_events(journal.event(journal.CONSUMED, item=asked, name=asked)), state)
    assert state.request_of("c0") == "resolve:c0"
