"""What agents of Pydantic AI have to keep to on a run, and what they are told if they do not."""

from typing import Any

import pytest
from pydantic_ai import Agent, UserError
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from ext.clerk import Place, plainly, twice
from tenure import ActiveRun, App, ReplayDrift, RunFailed, TryLater
from tenure.ext._pydantic_ai_units import differing, unit_of
from tenure.ext.pydantic_ai import TenureDurability, durable
from tenure.testing import Inline

pytestmark = pytest.mark.anyio


async def test_a_handler_that_leads_to_another_question_is_drift_and_says_in_what() -> None:
    place, app, attempts = Place(), App(), list[int]()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        attempts.append(1)
        with durable(run):
            await place.agent.run(f"look, attempt {len(attempts)}")
        raise TryLater

    async with Inline(app) as inline:
        with pytest.raises(RunFailed, match="another last message") as failed:
            await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert isinstance(failed.value.__cause__, ReplayDrift)
    assert failed.value.__cause__.key == "model:1"


def test_a_guard_names_the_first_thing_that_differs() -> None:
    assert differing(
        "number_of_messages=3 history=ab last_message=cd", "number_of_messages=3 history=x last_message=y"
    ) == ("history")
    assert differing("tool=a arguments=b", "tool=a arguments=b") is None
    assert differing(None, "tool=a") is None


def test_a_unit_of_a_kind_that_is_not_known_yet_has_a_name_all_the_same() -> None:
    unit = unit_of(object(), "clerk__newer", (), "clerk")  # type: ignore[arg-type]
    assert (unit.scope, unit.name) == ("clerk", "clerk__newer@0")


async def test_outside_of_a_run_the_agent_runs_as_ever() -> None:
    place = Place()
    assert await plainly(place.agent) == "found 21"
    assert await plainly(place.agent) == "found 21"
    assert len(place.asked) == 6


def test_one_engine_an_agent_a_name_and_ids() -> None:
    with pytest.raises(UserError, match="name"):
        Agent("test", capabilities=[TenureDurability()])
    with pytest.raises(UserError, match="durable execution engine"):
        Agent("test", name="a", capabilities=[TenureDurability(), TenureDurability()])
    nameless: FunctionToolset[None] = FunctionToolset([len])
    with pytest.raises(UserError, match="`id`"):
        Agent("test", name="a", toolsets=[nameless], capabilities=[TenureDurability()])


async def test_a_model_or_toolset_of_a_single_run_is_refused_where_nobody_could_find_it_again() -> None:
    place = Place()
    extra: FunctionToolset[None] = FunctionToolset([len], id="extra")

    async def with_toolset() -> str:
        return (await place.agent.run("look", toolsets=[extra])).output

    async def with_model() -> str:
        return (await place.agent.run("look", model=FunctionModel(place.answer))).output

    for ask in (with_toolset, with_model):
        async with Inline(twice(ask)) as inline:
            with pytest.raises(RunFailed) as failed:
                await inline.result(await inline.ledger.submit("k", None, id="r"))
            assert isinstance(failed.value.__cause__, UserError)
    registered = FunctionModel(place.answer)
    place = Place(durability=TenureDurability(models={"other": registered}))

    async def by_key() -> str:
        return (await place.agent.run("look", model="other")).output

    async with Inline(twice(by_key)) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"


async def test_ids_and_the_start_of_an_agent_run_are_the_same_in_each_attempt() -> None:
    place, seen = Place(), list[tuple[str, str]]()

    async def ask() -> str:
        first = await place.agent.run("look", timeout=600)
        again = await place.agent.run("look", message_history=first.all_messages())
        seen.extend((found.run_id, found.conversation_id) for found in (first, again))
        return again.output

    async with Inline(twice(ask)) as inline:
        await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert seen[:2] == seen[2:]
    assert [run_id for run_id, _ in seen[:2]] == ["r/clerk", "r/clerk~2"]
    assert seen[0][1] == seen[1][1], "one conversation"
