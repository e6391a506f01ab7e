"""Context policies: what the model is shown instead, journaled once, replayed and never computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from agent.parts import Bench, call, events
from agent.test_loop import assert_valid
from tenure import (
    CompactResults,
    Context,
    Ledger,
    ModelRequest,
    NotAllowed,
    SlidingWindow,
    Store,
    Summarise,
)
from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.context import SUMMARY
from tenure.agent.tool import tool
from tenure.core import canonical, loop
from tenure.core.messages import Message, SystemMessage, ToolMessage, UserMessage, assistant, to_json, user
from tenure.testing.models import FunctionModel

TURNS = 9


@tool
async def look(n: int) -> str:
    return f"{n}: " + "x" * 300


def _walker(request: ModelRequest) -> Any:
    """Eight turns with a call each, then the end."""
    if request.step >= TURNS:
        return "done"
    return assistant(f"step {request.step}", call(f"c{request.step}", n=request.step))


def _agent(model: FunctionModel, *context: Any, **more: Any) -> Agent[str]:
    return Agent(model, name="walker", tools=[look], context=context, **more)


async def _replacements(ledger: Ledger) -> list[dict[str, Any]]:
    return [event for event in await events(ledger, "w1") if event["type"] == "context/replace"]


def _shown(request: ModelRequest) -> list[Message]:
    return [message for message in request.messages if not isinstance(message, SystemMessage)]


async def test_m_jr16_a_sliding_window_keeps_the_prompt_and_whole_turns(ledger: Ledger) -> None:
    model = FunctionModel(_walker)
    assert await CheckpointedAgent(_agent(model, SlidingWindow(turns=4, keep=2)), ledger).run("go", id="w1") == "done"
    lengths = []
    for request in model.asked:
        assert_valid(_shown(request))
        assert _shown(request)[0] == user("go")
        lengths.append(len(_shown(request)))
    assert lengths == [1, 3, 5, 7, 9, 5, 7, 9, 5]
    found = await _replacements(ledger)
    assert [(one["name"], one["policy"]) for one in found] == [
        ("context:6.0", "SlidingWindow"),
        ("context:9.0", "SlidingWindow"),
    ]
    assert [block["from"] for block in found[0]["dropped"]][:3] == [["model:1"], ["model:1"], ["tool:c1"]]
    run = await ledger.load("w1")
    rows = await ledger.store.tail("w1", after=run.base_seq - 1, limit=1)
    assert b'"context/replace"' in rows[0].body, "base_seq names the commit that restates"
    assert run.step == TURNS


async def test_m_ck_l9_i27_what_a_replacement_writes_does_not_depend_on_how_long_the_run_is(ledger: Ledger) -> None:
    def long(request: ModelRequest) -> Any:
        return "done" if request.step > 120 else assistant("on", call(f"c{request.step}", n=request.step))

    agent = Agent(
        FunctionModel(long), name="walker", tools=[look], max_steps=200, context=SlidingWindow(turns=8, keep=4)
    )
    await CheckpointedAgent(agent, ledger).run("go", id="w1")
    sizes = [len(canonical.encode(one, depth=80)) for one in await _replacements(ledger)]
    assert len(sizes) > 20
    assert max(sizes[2:]) - min(sizes[2:]) < 200
    requests = [len(canonical.encode(e)) for e in await events(ledger, "w1") if e["type"] == "model/request"]
    assert max(requests) < 800, "a request names only the blocks that are new"


async def test_a_forgotten_call_id_is_never_given_again(ledger: Ledger) -> None:
    def same(request: ModelRequest) -> Any:
        return "done" if request.step > 12 else assistant("", call("again", n=request.step))

    agent = _agent(FunctionModel(same), SlidingWindow(turns=3, keep=1))
    await CheckpointedAgent(agent, ledger).run("go", id="w1")
    answers = [e for e in await events(ledger, "w1") if e["type"] == "assistant/message"]
    ids = [part["id"] for e in answers for part in e["message"]["parts"] if part["type"] == "call"]
    assert len(ids) == 12 == len(set(ids))


async def test_a_summary_is_one_recorded_model_call_and_stands_beside_the_prompt(ledger: Ledger) -> None:
    model, writer = FunctionModel(_walker), FunctionModel(lambda r: f"sum {r.step}", name="writer")
    agent = _agent(model, Summarise(tokens=500, keep=2, model=writer), instructions="Walk.")
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    found = await _replacements(ledger)
    assert len(found) == len(writer.asked) > 1
    for request in model.asked:
        assert_valid(_shown(request))
    first = _shown(model.asked[-1])[0]
    assert isinstance(first, UserMessage)
    texts = [part.text for part in first.parts]
    assert texts[0] == "go"
    assert len(texts) == 2, "the next summary takes the place of the one before"
    assert texts[1].startswith(SUMMARY)
    asides = [e for e in await events(ledger, "w1") if e["type"] == "record" and e["name"].startswith("context:")]
    assert [e["value"]["model"] for e in asides] == ["writer"] * len(found)
    assert {r.key for r in writer.asked} == {f"w1:model-{e['name'][8]}:{e['name']}" for e in asides}
    state = loop.fold(await events(ledger, "w1"))
    spent = sum(e["usage"]["output_tokens"] for e in await events(ledger, "w1") if "usage" in e)
    assert state.usage.output_tokens == spent + sum(e["value"]["usage"]["output_tokens"] for e in asides)


async def test_long_results_are_cut_and_stay_in_the_journal(ledger: Ledger) -> None:
    model = FunctionModel(_walker)
    agent = _agent(model, CompactResults(over=200, keep=2, gain=500))
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    last = _shown(model.asked[-1])
    assert_valid(last)
    results = [part.content for m in last if isinstance(m, ToolMessage) for part in m.parts]
    assert "cut: 303 bytes in all" in results[0]
    assert results[-1].endswith("x" * 300)
    kept = [e["value"] for e in await events(ledger, "w1") if e["type"] == "record"]
    assert all(len(value) > 300 for value in kept)


async def test_m_jr13_a_custom_hook_s_blocks_are_its_own_and_what_it_hands_on_keeps_its_origin(ledger: Ledger) -> None:
    def hook(context: Context) -> Sequence[Message] | None:
        if context.step != 3:
            return None
        return [context.messages[0], *context.messages[3:], user("mind the gap")]

    agent = _agent(FunctionModel(_walker), hook)
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    (found,) = await _replacements(ledger)
    assert found["policy"] == "hook"
    assert [m["from"] for m in found["agent"]["messages"]] == [
        [["start"]],
        [["model:2"], ["model:2"]],
        [["tool:c2"]],
        [["context:3.0"]],
    ]


@pytest.mark.parametrize(
    "made, said",
    [
        (lambda m: m[1:], "does not begin with a user message"),
        (lambda m: m[:-1], "it ends with an answer|does not answer"),
        (lambda m: [m[0], *m[2:]], "no answer before it holds"),
        (lambda m: [*m, *m[1:]], "stands in two answers"),
        (lambda m: [m[0], SystemMessage(parts=()), *m[1:]], "role system"),
        (lambda m: [m[0], assistant("", call("c9")), ToolMessage(parts=())], "does not answer"),
    ],
)
async def test_m_jr19_a_conversation_that_no_model_takes_is_refused_before_it_is_written(
    ledger: Ledger, made: Any, said: str
) -> None:
    agent = _agent(FunctionModel(_walker), lambda context: made(context.messages) if context.step == 3 else None)
    with pytest.raises(NotAllowed, match=said):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    assert await _replacements(ledger) == []


async def test_m_ck_l5_a_policy_that_was_applied_before_a_death_is_not_applied_again(
    ledger: Ledger, store: Store
) -> None:
    applied: list[int] = []
    sums: list[str] = []
    bench = Bench(ledger, store)

    def window(context: Context) -> Sequence[Message] | None:
        applied.append(context.step)
        return None if len(context.messages) < 6 else [context.messages[0], *context.messages[-2:]]

    async def asking(context: Context) -> Sequence[Message] | None:
        if context.step != 4 or len(context.messages) == 4:
            return None
        reply = await context.ask([user("sum up")])
        sums.append(reply.message.text)
        if len(sums) == 1:
            bench.reached.set()
            await anyio.sleep(60)
        return [*context.messages, user(reply.message.text)]

    asides: list[str] = []

    def model(request: ModelRequest) -> Any:
        if request.aside:
            asides.append(request.key)
            return f"summary {len(asides)}"
        return _walker(request)

    await bench.abandon(_agent(FunctionModel(model), window, asking))
    assert applied == [1, 2, 3, 4]
    successor = FunctionModel(model)
    assert await CheckpointedAgent(_agent(successor, window, asking), ledger).recover("w1") == "done"
    assert applied[4:] == [5, 6, 7, 8, 9]
    assert asides == ["w1:model-4:context:4.1.0"], "its answer had landed"
    assert sums == ["summary 1", "summary 1"]
    assert [one["name"] for one in await _replacements(ledger)][:2] == ["context:4.0", "context:4.1"]
    assert _shown(successor.asked[0])[-1] == user("summary 1")
    for request in successor.asked:
        assert_valid(_shown(request))


async def test_m_ck12_m_jr20_a_successor_begins_at_the_base_and_goes_on_alike(ledger: Ledger, store: Store) -> None:
    bench = Bench(ledger, store)

    def model(request: ModelRequest) -> Any:
        if request.step >= TURNS:
            return "done"
        return assistant(
            "",
            call(
                f"c{request.step}",
                "work" if request.step == 8 else "look",
                **({} if request.step == 8 else {"n": request.step}),
            ),
        )

    def agent() -> Agent[str]:
        tools = [look, bench.effect("work")]
        return Agent(FunctionModel(model), name="walker", tools=tools, context=SlidingWindow(turns=3, keep=1))

    await bench.abandon(agent())
    run = await ledger.load("w1")
    assert run.base_seq > 1
    told = [event async for _, event in ledger.handle("w1").events()]
    whole, short = loop.fold(told), loop.AgentState()
    async for _, event in ledger.handle("w1").events(after=run.base_seq - 1):
        short.add(event)
    assert [to_json(m) for m in short.messages] == [to_json(m) for m in whole.messages]
    assert (short.step, short.usage, short.held, short.seen) == (whole.step, whole.usage, whole.held, whole.seen)
    assert short.lineage.digest == whole.lineage.digest
    last = agent()
    assert await CheckpointedAgent(last, ledger).recover("w1") == "done"
    assert bench.made == ["work call-8-0 1", "work call-8-0 2"]
