"""Agents of Pydantic AI that are saved at their step boundary, and gone on with in the middle: nameless ones, too."""

from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from ext.clerk import records
from tenure import ActiveRun, App, NotAllowed, Redaction, RunFailed, TryLater
from tenure.ext.pydantic_ai import TenureCheckpoint
from tenure.testing import Inline

pytestmark = pytest.mark.anyio


class Place:
    """An agent without a name whose tools are passed to each run, and whose attempts end where `cut` says."""

    def __init__(self, *, redact: Redaction | None = None, arguments: dict[str, Any] | None = None) -> None:
        self.asked: list[int] = []
        self.called: list[str] = []
        self.cut: set[str] = set()
        self.arguments = arguments or {}
        self.usage: tuple[int, int, int] = (0, 0, 0)
        self.agent: Agent[None, str] = Agent(FunctionModel(self.answer))
        self.app = App(redact=redact)

        @self.app.kind("k")
        async def handler(run: ActiveRun[Any], _: Any) -> str:
            tools: FunctionToolset[None] = FunctionToolset()
            tools.add_function(self.walk)
            found = await TenureCheckpoint(run).ask(self.agent, "go", toolsets=[tools])
            self.usage = (found.usage.requests, found.usage.input_tokens, found.usage.tool_calls)
            self.once("the end")
            return found.output

    def once(self, what: str) -> None:
        """End the attempt here, the first time."""
        if what in self.cut:
            self.cut.remove(what)
            raise TryLater

    # Not a plain one: two threads would come to the log of calls in either order.
    async def walk(self, ctx: RunContext[None], to: int, pin: str = "") -> Any:
        """Walk somewhere."""
        self.called.append(f"{to} {ctx.tool_call_id}")
        self.once(f"tool {to}")
        match to:
            case 2:
                raise ModelRetry("not there")
            case 3:
                raise ToolFailed("closed")
            case 4:
                return ToolReturn("seen", content=["look: ", BinaryContent(b"\x89PNG", media_type="image/png")])
        return {"at": to}

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = sum(isinstance(message, ModelResponse) for message in messages) + 1
        self.asked.append(step)
        self.once(f"model {step}")
        if step <= 3:
            calls = [{"to": 1}, {"to": 2}] if step == 1 else [{"to": step + 1}]
            parts = [ToolCallPart("walk", {**c, **self.arguments}, tool_call_id=f"c{c['to']}") for c in calls]
            return ModelResponse(parts=parts)
        said = [str(p.content)[:30] for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(" ".join(said))])


async def played(place: Place, *cut: str) -> str:
    place.cut = set(cut)
    async with Inline(place.app) as inline:
        handle = await inline.ledger.submit("k", None, id="r")
        found = str(await inline.result(handle))
        assert (await handle.verify()).ok
        names = [e["name"] for e in await records(inline, "r")]
    assert sorted(set(names)) == sorted(names), "each checkpoint and each result once"
    assert [name for name in names if name.startswith("messages")] == [f"messages:{n}" for n in (1, 2, 3, 4)]
    assert not place.cut, "every attempt was cut where it should be"
    return found


async def test_without_a_cut_it_is_what_the_agent_does_by_itself() -> None:
    place = Place()
    assert await played(place) == "{'at': 1} not there closed seen"
    assert (place.asked, place.called) == ([1, 2, 3, 4], ["1 c1", "2 c2", "3 c3", "4 c4"])
    tools: FunctionToolset[None] = FunctionToolset()
    alone = Place()
    tools.add_function(alone.walk)
    found = await alone.agent.run("go", toolsets=[tools])
    assert (found.output, found.usage.requests) == ("{'at': 1} not there closed seen", 4)
    assert place.usage == (found.usage.requests, found.usage.input_tokens, found.usage.tool_calls)


@pytest.mark.parametrize(
    "cut, asked, called",
    [
        ("tool 3", [1, 2, 3, 4], ["1 c1", "2 c2", "3 c3", "3 c3", "4 c4"]),
        ("tool 4", [1, 2, 3, 4], ["1 c1", "2 c2", "3 c3", "4 c4", "4 c4"]),
        ("model 3", [1, 2, 3, 3, 4], ["1 c1", "2 c2", "3 c3", "4 c4"]),
        ("the end", [1, 2, 3, 4], ["1 c1", "2 c2", "3 c3", "4 c4"]),
    ],
)
async def test_it_is_gone_on_with_in_the_middle(cut: str, asked: list[int], called: list[str]) -> None:
    whole = Place()
    output = await played(whole)
    place = Place()
    assert await played(place, cut) == output
    assert place.asked == asked, "no question whose answer was saved is asked again"
    assert sorted(place.called) == sorted(called), "no call whose result was recorded is made again"
    assert place.usage == whole.usage, "usage is counted once"


async def test_several_cuts_in_one_run_come_to_the_same_end() -> None:
    place = Place()
    assert await played(place, "tool 1", "model 2", "tool 3", "tool 4", "the end") == "{'at': 1} not there closed seen"


@pytest.mark.parametrize("cut", [[], ["tool 3"]])
async def test_i25_a_call_whose_arguments_may_not_be_stored_is_not_made(cut: list[str]) -> None:
    place = Place(redact=Redaction(fields=["pin"]), arguments={"pin": "1234"})
    said = await played(place)
    assert said.count("not stored") + said.count("The call was not made") >= 3
    assert place.called == []


async def test_two_agent_runs_of_one_handler_have_a_key_each() -> None:
    app, asked = App(), list[str]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(str(messages[0].parts[0].content))  # type: ignore[union-attr]
        return ModelResponse(parts=[TextPart(asked[-1].upper())])

    agent: Agent[None, str] = Agent(FunctionModel(answer))

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> list[str]:
        said = [(await TenureCheckpoint(run, word).ask(agent, word)).output for word in ("one", "two")]
        if not run.lease.state.checkpoints:
            await run.lease.checkpoint("once")
            raise TryLater
        return said

    async with Inline(app) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == ["ONE", "TWO"]
    assert asked == ["one", "two"]


@pytest.mark.parametrize("effect", ["ask", "fail", "reconcile"])
async def test_a_tool_that_may_not_be_made_again_is_not_made_at_all(effect: str) -> None:
    app, paid = App(), list[int]()
    tools: FunctionToolset[None] = FunctionToolset()

    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 7})])

    tools.add_function(pay, metadata={"tenure": {"effect": effect}})

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        agent: Agent[None, str] = Agent(FunctionModel(answer))
        return (await TenureCheckpoint(run).ask(agent, "go", toolsets=[tools])).output

    async with Inline(app) as inline:
        with pytest.raises(RunFailed) as failed:
            await inline.result(await inline.ledger.submit("k", None, id="r"))
    assert isinstance(failed.value.__cause__, NotAllowed)
    assert paid == []
