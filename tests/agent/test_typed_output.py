"""Typed answers: any type that pydantic reads, one repair, and the same value for everybody who asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tenure import Agent, CheckpointedAgent, Ledger, ModelRequest, RunFailed, UserMessage
from tenure.testing.models import FunctionModel


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)


@dataclass(frozen=True)
class Point:
    x: int
    on: date


class Place(TypedDict):
    city: str
    zip: int


TYPES: list[tuple[Any, str, Any, str]] = [
    (Person, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36), '{"name": "Ada", "age": -1}'),
    (Point, '{"x": 1, "on": "2026-01-02"}', Point(x=1, on=date(2026, 1, 2)), '{"x": "one", "on": "2026-01-02"}'),
    (Place, '{"city": "Bonn", "zip": 53111}', {"city": "Bonn", "zip": 53111}, '{"city": "Bonn"}'),
    (list[int], "```json\n[1, 2]\n```", [1, 2], "[1, null]"),
    (Literal["yes", "no"], '"yes"', "yes", '"maybe"'),
]


@pytest.mark.parametrize("output,answer,value,wrong", TYPES, ids=[str(entry[0]) for entry in TYPES])
async def test_m_sc05_a_typed_answer_is_repaired_once_and_read_back_as_its_type(
    ledger: Ledger, output: Any, answer: str, value: Any, wrong: str
) -> None:
    def model(*answers: str) -> FunctionModel:
        return FunctionModel(lambda request: answers[request.step - 1])

    repaired = model(wrong, answer)
    agent = Agent(repaired, name="typed", output=output)
    found = await CheckpointedAgent(agent, ledger).run("go", id="r1")
    assert found == value
    assert type(found) is type(value)
    assert [request.output_schema for request in repaired.asked] == [agent.output_schema] * 2
    last = repaired.asked[-1].messages[-1]
    assert isinstance(last, UserMessage)
    assert "does not fit the schema" in last.parts[0].text
    assert wrong not in last.parts[0].text, "an error carries no payload"
    assert await ledger.handle("r1", agent).result() == value
    with pytest.raises(RunFailed) as failed:
        await CheckpointedAgent(Agent(model(wrong, wrong), name="typed", output=output), ledger).run("go", id="r2")
    assert failed.value.failure == "OUTPUT_INVALID"


async def test_m_sc05_a_repair_is_a_turn_of_the_conversation(ledger: Ledger) -> None:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        asked.append(request)
        return "7" if len(asked) == 2 else "seven"

    assert await CheckpointedAgent(Agent(FunctionModel(answer), name="n", output=int), ledger).run("go", id="r1") == 7
    assert [request.step for request in asked] == [1, 2]
    assert (await ledger.load("r1")).step == 2
