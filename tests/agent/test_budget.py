"""Budgets: what a run may use over all its attempts, and what nobody can give back or spend for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agent.parts import call, events
from tenure import (
    Agent,
    App,
    Budget,
    CheckpointedAgent,
    LeaseLost,
    Ledger,
    ModelReply,
    ModelRequest,
    NotAllowed,
    RunFailed,
    Status,
    StepLimit,
    Store,
    Usage,
    Worker,
    tool,
)
from tenure.core import build
from tenure.core.budget import against, held_before_ms, reservation, spent_from_json
from tenure.core.loop import fold
from tenure.core.messages import assistant
from tenure.core.run import GrantLine, How, Run
from tenure.errors import OutOfBudget
from tenure.testing.models import FunctionModel


@tool
async def look(n: int) -> int:
    return n


def cents(_: str, usage: Usage) -> float:
    return 0.01 * (usage.input_tokens + usage.output_tokens)


def walking(turns: int, *, usage: Usage | None = None) -> Callable[[ModelRequest], ModelReply]:
    """A model that calls a tool in each turn but the last, and uses so much each time."""

    def answer(request: ModelRequest) -> ModelReply:
        last = request.step >= turns
        message = assistant("done") if last else assistant("", call(f"c{request.step}", n=request.step))
        return ModelReply(message=message, usage=usage or Usage(input_tokens=10, output_tokens=5))

    return answer


def agent_of(budget: Budget | None, *, turns: int = 4, answer: Any = None, **options: Any) -> Agent[str]:
    return Agent(FunctionModel(answer or walking(turns)), name="walker", tools=[look], budget=budget, **options)


async def failure(ledger: Ledger, agent: Agent[str], run_id: str = "w1") -> RunFailed:
    with pytest.raises(RunFailed) as failed:
        await CheckpointedAgent(agent, ledger).run("go", id=run_id)
    return failed.value


def asked(agent: Agent[Any]) -> int:
    assert isinstance(agent.model, FunctionModel)
    return len(agent.model.asked)


@pytest.mark.parametrize(
    "budget,enough,calls",
    [
        ({"turns": 3}, {"turns": 4}, 3),
        ({"tool_calls": 2}, {"tool_calls": 3}, 3),
        ({"input_tokens": 39}, {"input_tokens": 40}, 3),
        ({"output_tokens": 19}, {"output_tokens": 20}, 3),
        ({"tokens": 45}, {"tokens": 60}, 3),
        ({"cost": 0.5, "price": cents}, {"cost": 0.6, "price": cents}, 3),
        ({"wall_time": 0}, {"wall_time": 600}, 0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_m_bu01_m_bu_l1_m_bu_l2_out_of_budget_is_an_outcome_of_its_own_and_nothing_is_overspent(
    ledger: Ledger, budget: dict[str, Any], enough: dict[str, Any], calls: int
) -> None:
    short = agent_of(Budget(**budget))
    found = await failure(ledger, short)
    name = next(iter(budget))
    assert found.failure == "OUT_OF_BUDGET"
    assert f"out of budget: {name}: " in found.detail
    assert asked(short) == calls, "the question that would pass the limit is not sent"
    run = await ledger.load("w1")
    assert (run.status, run.outcome and run.outcome.code) == (Status.FAILED, "OUT_OF_BUDGET")
    assert await CheckpointedAgent(agent_of(Budget(**enough)), ledger).run("go", id="w2") == "done", "up to the limit"


async def test_m_bu_l2_the_step_limit_is_a_budget_too(ledger: Ledger) -> None:
    found = await failure(ledger, agent_of(None, max_steps=2))
    assert found.failure == "STEP_LIMIT"
    assert issubclass(StepLimit, OutOfBudget)


async def test_m_bu03_calls_above_the_limit_have_their_results_before_the_run_ends(ledger: Ledger) -> None:
    made: list[int] = []

    @tool(name="look")
    async def counted(n: int) -> int:
        made.append(n)
        return n

    calls = [call(f"c{n}", n=n) for n in range(4)]
    agent = Agent(
        FunctionModel(lambda _: assistant("", *calls)), name="walker", tools=[counted], budget=Budget(tool_calls=2)
    )
    assert "tool_calls: 4 of 2" in (await failure(ledger, agent)).detail
    assert sorted(made) == [0, 1]
    state = fold(await events(ledger, "w1"))
    assert (state.open, state.held) == ((), ()), "each call has its result"
    results = {part.call_id: part.is_error for part in state.messages[-1].parts}  # type: ignore[union-attr]
    assert results == {"c0": False, "c1": False, "c2": True, "c3": True}


async def test_m_bu01_a_model_that_goes_round_in_a_loop_is_stopped(ledger: Ledger) -> None:
    def answer(request: ModelRequest) -> Any:
        return assistant("", call(f"c{request.step}", n=1))

    agent = agent_of(Budget(repeats=3), answer=answer)
    found = await failure(ledger, agent)
    assert "the model answered the same 3 times" in found.detail
    assert asked(agent) == 3
    other = agent_of(Budget(repeats=3), turns=9)
    assert await CheckpointedAgent(other, ledger).run("go", id="w2") == "done", "other arguments are another call"


async def test_m_ck46_m_bu02_a_takeover_gives_nothing_back(ledger: Ledger) -> None:
    """Each attempt dies while its model is asked: the question stays spent, whether or not it was answered."""
    budget = Budget(tokens=100, reserve=Usage(input_tokens=20, output_tokens=10))
    dying = agent_of(budget, answer=lambda _: RuntimeError("died"))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await CheckpointedAgent(dying, ledger).run("go", id="w1")
    spent = fold(await events(ledger, "w1")).spent
    assert spent.turns == 3
    assert spent.given_up().lost == Usage(input_tokens=60, output_tokens=30)
    found = await failure(ledger, agent_of(budget))
    assert "tokens: 90 of 100 are used, and the next question sets 30 aside" in found.detail


async def test_m_bu02_usage_and_cost_survive_and_are_what_the_first_price_said(ledger: Ledger) -> None:
    trouble = [True]

    def answer(request: ModelRequest) -> Any:
        if request.step == 3 and trouble and trouble.pop():
            return RuntimeError("died")
        return walking(4)(request)

    with pytest.raises(RuntimeError):
        await CheckpointedAgent(agent_of(Budget(cost=9, price=cents), answer=answer), ledger).run("go", id="w1")
    dearer = agent_of(Budget(cost=9, price=lambda _, usage: 1.0 * usage.output_tokens), answer=answer)
    found = await failure(ledger, dearer)
    assert "cost: 5.45 of 9 are used, and the next question sets 5 aside" in found.detail, "0.30 + 0.15 lost + 5"


async def test_i01_a_zombie_cannot_spend(ledger: Ledger, store: Store) -> None:
    """Somebody else takes the run before the next question: the reservation is refused, and nothing is sent."""
    reached, go = anyio.Event(), anyio.Event()

    @tool(name="look")
    async def slow(n: int) -> int:
        if not reached.is_set():
            reached.set()
            with anyio.CancelScope(shield=True):
                await go.wait()
        return n

    agent = Agent(FunctionModel(walking(2)), name="walker", tools=[slow], budget=Budget(turns=9))

    async def first() -> None:
        with pytest.raises(LeaseLost):
            await CheckpointedAgent(agent, ledger).run("go", id="w1")

    async with anyio.create_task_group() as tasks, Ledger(store, ttl=5) as other:
        tasks.start_soon(first)
        await reached.wait()
        run = await other.load("w1")
        await other.ask(build.end(run="w1", how=How.FORFEIT, token=run.token, nonce=run.nonce))
        assert await CheckpointedAgent(agent_of(Budget(turns=9), turns=2), other).recover("w1") == "done"
        go.set()
    assert asked(agent) == 1
    state = fold([event async for _, event in ledger.handle("w1").events()])
    assert state.spent.turns == 2


async def test_attempts_are_counted_over_all_workers(ledger: Ledger) -> None:
    reached = anyio.Event()

    async def hang(_: ModelRequest) -> Any:
        reached.set()
        await anyio.sleep(60)

    agent = agent_of(Budget(attempts=1), answer=hang)

    async def first() -> None:
        with pytest.raises(LeaseLost):
            await CheckpointedAgent(agent, ledger).run("go", id="w1")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await reached.wait()
        run = await ledger.load("w1")
        await ledger.ask(build.end(run="w1", how=How.FORFEIT, token=run.token, nonce=run.nonce))
        await ledger.store.wake("run:w1")
    found = await failure(ledger, agent)
    assert "attempts: this is attempt 2 of 1" in found.detail
    assert asked(agent) == 1


async def test_wall_time_cuts_a_model_that_does_not_answer(ledger: Ledger) -> None:
    async def hang(_: ModelRequest) -> Any:
        await anyio.sleep(60)

    found = await failure(ledger, agent_of(Budget(wall_time=0.3), answer=hang))
    assert "out of budget: wall_time: " in found.detail


async def test_an_agent_without_a_budget_writes_nothing_for_it(ledger: Ledger) -> None:
    await CheckpointedAgent(agent_of(None), ledger).run("go", id="w1")
    await CheckpointedAgent(agent_of(Budget(turns=9)), ledger).run("go", id="w2")
    assert [e["type"] for e in await events(ledger, "w1")].count("budget/reserved") == 0
    assert [e["type"] for e in await events(ledger, "w2")].count("budget/reserved") == 4


def test_wall_time_is_what_the_grants_say_also_of_those_that_left_the_log() -> None:
    lines = tuple(
        GrantLine(ordinal=n, token=n, owner="o", from_ms=n * 1000, until_ms=n * 1000 + 100 * n) for n in range(40, 45)
    )
    run = Run(id="r", kind="k", grants=lines)
    assert held_before_ms(run, (42, 7_000)) == 7_000 + 4_200 + 4_300, "those from the known one on, not the current one"
    assert held_before_ms(Run(id="r", kind="k"), (0, 0)) == 0


def test_what_was_spent_comes_back_from_its_restatement() -> None:
    state = fold([{"type": "run/start", "scope": "", "input": "go"}])
    spent = state.spent.reserve({"usage": {"input_tokens": 3}, "micros": 9})
    spent = spent.answered(Usage(input_tokens=5, output_tokens=2), 4, assistant("", call("c1", n=1)))
    spent = spent.reserve({"usage": {"output_tokens": 7}, "micros": 1, "turn": False})
    assert spent_from_json(spent.to_json()) == spent
    assert (spent.turns, spent.tool_calls, spent.lost) == (1, 1, Usage())
    assert reservation(Budget(), spent, "m").usage == Usage(input_tokens=5, output_tokens=2)
    assert against(Budget(turns=1), spent, reservation(Budget(), spent, "m"), attempt=1, held_ms=0) is not None
    assert against(Budget(turns=1), spent, reservation(Budget(), spent, "m"), attempt=1, held_ms=0, turn=False) is None


@pytest.mark.parametrize(
    "limits,named",
    [
        ({"turns": 0}, "turns 0"),
        ({"tokens": -1}, "tokens -1"),
        ({"wall_time": float("nan")}, "wall_time nan"),
        ({"repeats": 1}, "repeats 1"),
        ({"repeats": 16}, "repeats is at most 15"),
        ({"cost": 1.0}, "needs price="),
    ],
)
def test_m_bu02_a_budget_that_limits_nothing_is_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(NotAllowed, match=named):
        Budget(**limits)


async def test_m_bu02_a_fleet_spends_no_retry_on_a_run_that_is_out_of_budget(ledger: Ledger) -> None:
    app = App()
    agent = agent_of(Budget(turns=1))
    walker = app.agent(agent, retries=5)
    async with Worker(app, ledger, drain=1):
        handle = await ledger.submit(walker, "go", id="w1")
        with pytest.raises(RunFailed) as failed:
            await handle.result(timeout=30)
    assert failed.value.failure == "OUT_OF_BUDGET"
    assert (asked(agent), (await handle.load()).failures) == (1, 0)


async def test_m_bu02_of_two_budgets_the_lower_limit_holds(ledger: Ledger) -> None:
    both = Budget(turns=9, tokens=100).within(Budget(turns=2, cost=1.0, price=cents))
    assert (both.turns, both.tokens, both.cost, both.price, both.attempts) == (2, 100, 1.0, cents, None)
    assert "turns: 2 of 2" in (await failure(ledger, agent_of(Budget(turns=9)).within(Budget(turns=2)))).detail
    assert await CheckpointedAgent(agent_of(None).within(Budget(turns=4)), ledger).run("go", id="w2") == "done"
