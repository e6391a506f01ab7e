"""Tools: what a model is told of them, how arguments are read, what a declaration may say."""

from __future__ import annotations

import threading
from datetime import date
from typing import Annotated, Any, assert_type

import pytest
from pydantic import Field

from tenure.agent.agent import Agent
from tenure.agent.tool import NOT_DONE, Effect, ToolContext, tool
from tenure.calling import Threads
from tenure.core.loop import Finish
from tenure.core.messages import ToolCall
from tenure.errors import InvalidContent, InvalidId, NotAllowed
from tenure.retry import Retry
from tenure.testing.models import ScriptedModel

CONTEXT = ToolContext(run_id="r", call_id="c", attempt=1, token=5)


@tool
def booked(context: ToolContext, day: Annotated[date, Field(description="when")], seats: int = 1) -> str:
    """Book seats."""
    return f"{context.key} {day.isoformat()} {seats} {threading.current_thread() is threading.main_thread()}"


def test_a_model_is_told_name_description_and_schema_without_the_context() -> None:
    spec = booked.spec
    assert (spec.name, spec.description) == ("booked", "Book seats.")
    assert set(spec.schema["properties"]) == {"day", "seats"}
    assert spec.schema["required"] == ["day"]
    assert spec.schema["properties"]["day"]["description"] == "when"
    assert spec.schema["additionalProperties"] is False


def test_arguments_are_read_in_json_mode() -> None:
    assert booked.check({"day": "2026-02-01"}) == {"day": date(2026, 2, 1), "seats": 1}


@pytest.mark.parametrize(
    "arguments, path",
    [
        ({"day": "soon"}, "$.day"),
        ({"day": "2026-02-01", "seats": "two"}, "$.seats"),
        ({"day": "2026-02-01", "who": "x"}, "$.who"),
        ({}, "$.day"),
        (None, "$.day"),
        ([1], "$"),
        ("day", "$"),
    ],
)
def test_arguments_that_do_not_fit_name_the_path_and_no_value(arguments: Any, path: str) -> None:
    with pytest.raises(InvalidContent) as caught:
        booked.check(arguments)
    assert caught.value.path == path
    assert "soon" not in str(caught.value)


async def test_a_sync_tool_runs_in_a_thread_with_its_context_first() -> None:
    found = await booked.invoke(CONTEXT, booked.check({"day": "2026-02-01", "seats": 2}), threads=Threads())
    assert found == "r:c 2026-02-01 2 False"


def test_a_tool_is_still_the_function() -> None:
    @tool(name="sum")
    def add(a: int, b: int) -> int:
        return a + b

    assert_type(add(1, 2), int)
    assert add(1, 2) == 3
    assert add.name == "sum"


def test_parameters_may_have_names_that_a_field_may_not() -> None:
    @tool
    def odd(json: int, _x: int, copy: str = "") -> None: ...

    assert odd.check({"json": 1, "_x": 2}) == {"json": 1, "_x": 2, "copy": ""}


@pytest.mark.parametrize("options", [{"effect": "fail"}, {"effect": "ask"}, {"consequential": True}])
def test_m_ck44_a_tool_that_may_not_be_repeated_takes_no_retry(options: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed, match="repeated silently"):
        tool(retry=Retry(attempts=2), **options)(lambda: None)


def test_i24_a_consequential_tool_asks_instead_of_repeating() -> None:
    def pay() -> None: ...

    assert tool(pay).policy is Effect.REPEAT
    assert not tool(pay).marks
    made = tool(consequential=True)(pay)
    assert made.policy is Effect.ASK
    assert made.marks
    assert tool(effect="fail", consequential=True)(pay).policy is Effect.FAIL


async def test_reconcile_is_declared_with_its_effect() -> None:
    @tool(effect="reconcile")
    def send(to: str) -> str:
        return to

    with pytest.raises(NotAllowed, match=r"@send\.reconcile"):
        Agent(ScriptedModel([]), name="a", tools=[send])

    @send.reconcile
    def look(context: ToolContext, to: str) -> Any:
        return NOT_DONE if to == "a" else context.call_id

    assert await send.settle(CONTEXT, {"to": "a"}, threads=Threads()) is NOT_DONE
    assert await send.settle(CONTEXT, {"to": "b"}, threads=Threads()) == "c"
    with pytest.raises(NotAllowed, match="effect='reconcile'"):
        booked.reconcile(look)


def test_a_declaration_that_makes_no_sense_is_refused() -> None:
    def rest(*names: str) -> None: ...

    with pytest.raises(NotAllowed, match="none of repeat, reconcile, ask, fail"):
        tool(effect="never")(rest)
    with pytest.raises(NotAllowed, match="names"):
        _ = tool(rest).schema
    with pytest.raises(InvalidId):
        tool(name="")(rest)
    with pytest.raises(NotAllowed, match="two tools named rest"):
        Agent(ScriptedModel([]), name="a", tools=[rest, tool(rest)])
    with pytest.raises(NotAllowed, match="at least one"):
        Agent(ScriptedModel([]), name="a", max_steps=0)
    with pytest.raises(InvalidId):
        Agent(ScriptedModel([]), name="not a kind")


def test_the_output_type_flows_from_the_agent() -> None:
    text = Agent(ScriptedModel([]), name="text")
    assert_type(text, Agent[str])
    numbers = Agent(ScriptedModel([]), name="numbers", output=list[int])
    assert_type(numbers, Agent[list[int]])
    assert text.read(Finish(text="[1]")) == "[1]"
    assert numbers.read(Finish(text="```json\n[1, 2]\n```")) == [1, 2]
    with pytest.raises(InvalidContent, match=r"\$\[0\]"):
        numbers.read(Finish(text='["x"]'))


def test_the_shape_covers_name_output_and_tools_and_not_the_instructions() -> None:
    def make(**changed: Any) -> Any:
        given = {"name": "a", "tools": [booked], "output": int, "instructions": "one", **changed}
        return Agent(ScriptedModel([]), **given).shape

    same = make()["digest"]
    assert make(instructions="two")["digest"] == same
    changes: list[dict[str, Any]] = [{"name": "b"}, {"tools": []}, {"output": list[int]}]
    assert all(make(**changed)["digest"] != same for changed in changes)


def test_a_call_that_cannot_be_made_is_answered_with_what_to_do() -> None:
    agent = Agent(ScriptedModel([]), name="a", tools=[booked])
    assert agent.refusal(ToolCall(id="1", name="booked", arguments={"day": "2026-02-01"})) is None
    unknown = agent.refusal(ToolCall(id="1", name="fly", arguments={}))
    assert unknown == ("UnknownTool", "there is no tool named 'fly'; there are: booked")
    wrong = agent.refusal(ToolCall(id="1", name="booked", arguments={}))
    assert wrong is not None
    assert wrong[0] == "InvalidArguments"
    assert "$.day" in wrong[1]
