"""Errors of models: told apart from what clients raise, and tried again where that may help."""

from __future__ import annotations

import email.utils
import threading
import time
from typing import Any

import anyio
import pytest

from agent.parts import events
from tenure import (
    Agent,
    Budget,
    CheckpointedAgent,
    Delta,
    LeaseHeld,
    Ledger,
    ModelRequest,
    Retry,
    Status,
    ToolCall,
    TryLater,
    Usage,
    tool,
)
from tenure.agent.trouble import Sort, classify
from tenure.core.loop import fold
from tenure.core.messages import assistant
from tenure.testing.models import FunctionModel

QUICK = Retry(attempts=4, wait=0.001, max_wait=5)


class Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-").title(): value for name, value in headers.items()}


class APIStatusError(Exception):
    """As clients of providers raise it: the status is the response's, or its own."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.response = Response(status, **headers)


class APIConnectionError(Exception):
    pass


class Wrapped(Exception):
    pass


def wrapped(error: Exception) -> Wrapped:
    found = Wrapped("the framework's own")
    found.__cause__ = error
    return found


def theirs(status: int) -> Exception:
    from pydantic_ai.exceptions import ModelHTTPError

    return ModelHTTPError(status, "m", {"error": "x"})


@pytest.mark.parametrize(
    "error,sort,retryable",
    [
        (APIStatusError(408), Sort.TIMEOUT, True),
        (APIStatusError(409), Sort.REFUSED, True),
        (APIStatusError(429), Sort.RATE_LIMIT, True),
        (APIStatusError(500), Sort.PROVIDER, True),
        (APIStatusError(529), Sort.PROVIDER, True),
        (APIStatusError(400), Sort.REFUSED, False),
        (APIStatusError(401), Sort.REFUSED, False),
        (APIStatusError(404), Sort.REFUSED, False),
        (wrapped(APIStatusError(503)), Sort.PROVIDER, True),
        (APIConnectionError(), Sort.NETWORK, True),
        (ConnectionResetError(), Sort.NETWORK, True),
        (wrapped(ConnectionRefusedError()), Sort.NETWORK, True),
        (TimeoutError(), Sort.TIMEOUT, True),
        (ValueError("x"), Sort.OTHER, False),
        (theirs(429), Sort.RATE_LIMIT, True),
        (theirs(403), Sort.REFUSED, False),
    ],
    ids=repr,
)
def test_m_sc04_m_er02_one_classifier_tells_what_may_be_tried_again(
    error: Exception, sort: Sort, *, retryable: bool
) -> None:
    found = classify(error)
    assert (found.sort, found.retryable) == (sort, retryable)


def test_m_er02_what_is_told_is_cut_and_names_status_and_wait() -> None:
    error = APIStatusError(429, retry_after="7")
    error.args = ("x" * 5000,)
    error.code = "rate_limit_exceeded"  # type: ignore[attr-defined]
    found = classify(error)
    assert (found.status, found.code, found.retry_after, len(found.message)) == (429, "rate_limit_exceeded", 7.0, 1024)
    assert classify(APIStatusError(503, retry_after_ms="250")).retry_after == 0.25
    later = email.utils.formatdate(time.time() + 3600, usegmt=True)
    assert 3000 < (classify(APIStatusError(503, retry_after=later)).retry_after or 0) <= 3600
    assert classify(APIStatusError(503, retry_after="soon")).retry_after is None
    assert classify(APIStatusError(503)).retry_after is None


def failing(*errors: Exception) -> tuple[Agent[str], FunctionModel]:
    left = list(errors)
    model = FunctionModel(lambda _: left.pop(0) if left else "done")
    return Agent(model, name="walker", retry=QUICK), model


async def test_m_sc04_a_busy_model_is_asked_again_and_its_answer_is_one_step(ledger: Ledger) -> None:
    agent, model = failing(APIStatusError(429, retry_after="0.01"), ConnectionResetError(), APIStatusError(503))
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    assert len(model.asked) == 4
    assert {request.key for request in model.asked} == {"w1:model-1"}, "the same question"
    run = await ledger.load("w1")
    assert (run.step, run.failures, run.attempt) == (1, 0, 1)
    assert [event["type"] for event in await events(ledger, "w1")].count("assistant/message") == 1


@pytest.mark.parametrize("errors", [(APIStatusError(401),), (APIStatusError(503),) * 4], ids=["401", "503, 4 times"])
async def test_m_er01_what_does_not_help_is_raised_as_it_is_and_the_run_stays(
    ledger: Ledger, errors: tuple[Exception, ...]
) -> None:
    agent, model = failing(*errors)
    with pytest.raises(APIStatusError) as raised:
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    assert raised.value is errors[-1]
    assert len(model.asked) == len(errors)
    assert (await ledger.load("w1")).status is Status.QUEUED


async def test_a_provider_that_wants_an_hour_gets_it_without_a_worker(ledger: Ledger) -> None:
    agent, model = failing(APIStatusError(429, retry_after="3600"))
    with pytest.raises(TryLater):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    run = await ledger.load("w1")
    facts = await ledger.store.facts()
    assert (run.status, run.failures, len(model.asked)) == (Status.QUEUED, 0, 1)
    assert run.due_ms is not None
    assert 3_000_000 < run.due_ms - facts.now_ms <= 3_600_000


@pytest.mark.parametrize("status, attempts, turns", [(429, 2, 1), (429, 1, 1), (400, 1, 1), (503, 1, 2)])
async def test_m_bu02_a_question_that_was_turned_away_gives_its_turn_back(
    ledger: Ledger, status: int, attempts: int, turns: int
) -> None:
    errors = [APIStatusError(status, **({"retry_after": "0.05"} if status == 429 else {}))]
    asked: list[int] = []

    async def answer(_: ModelRequest) -> Any:
        asked.append(1)
        if errors:
            raise errors.pop()
        return "done"

    patient = Retry(attempts=attempts, wait=0, max_wait=0.01)
    budget = Budget(turns=2, reserve=Usage(output_tokens=7), output_tokens=20)
    agent = Agent(FunctionModel(answer), name="walker", retry=patient, budget=budget)
    with pytest.raises((TryLater, APIStatusError)):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    run = await ledger.load("w1")
    assert run.status is Status.QUEUED
    with anyio.fail_after(60):
        while True:
            try:
                assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
            except LeaseHeld:
                await anyio.sleep(0.02)  # not due yet
            else:
                break
    spent = fold([event async for _, event in ledger.handle("w1").events()]).spent
    assert (spent.turns, spent.lost.output_tokens, len(asked)) == (turns, 7 * (turns - 1), 2)
    assert (await ledger.handle("w1").verify()).ok


@pytest.mark.parametrize(
    "errors",
    [
        [APIStatusError(500), APIStatusError(400)],
        [TimeoutError(), APIStatusError(429, retry_after="3600")],
        [APIStatusError(503, retry_after="3600")],
    ],
    ids=["500, then refused", "no answer in time, then put off", "put off by its own trouble"],
)
async def test_m_bu02_a_question_that_may_have_been_answered_gives_nothing_back(
    ledger: Ledger, errors: list[Exception]
) -> None:
    left = list(errors)

    async def answer(_: ModelRequest) -> Any:
        raise left.pop(0)

    budget = Budget(turns=9, reserve=Usage(output_tokens=7))
    patient = Retry(attempts=len(errors) + 1, wait=0, max_wait=1)
    agent = Agent(FunctionModel(answer), name="walker", retry=patient, budget=budget)
    with pytest.raises((TryLater, APIStatusError)):
        await CheckpointedAgent(agent, ledger).run("go", id="w1")
    found = await events(ledger, "w1")
    assert [event["type"] for event in found if event["type"].startswith("budget/")] == ["budget/reserved"]


async def test_m_bu02_an_answer_that_had_begun_gives_nothing_back(ledger: Ledger) -> None:
    class Begins(FunctionModel):
        async def ask_stream(self, request: ModelRequest, /) -> Any:
            yield Delta(text="so")
            raise APIStatusError(429)

    agent = Agent(Begins(lambda _: "never"), name="walker", budget=Budget(turns=9), retry=Retry(attempts=1))
    with pytest.raises(APIStatusError):
        async with CheckpointedAgent(agent, ledger).stream("go", id="w1") as items:
            await items.result()
    assert not [event for event in await events(ledger, "w1") if event["type"] == "budget/returned"]


async def test_m_bu02_what_a_holder_that_died_had_set_aside_is_not_given_back_by_code_without_a_budget(
    ledger: Ledger,
) -> None:
    async def breaks(_: ModelRequest) -> Any:
        raise APIStatusError(500)

    async def refuses(_: ModelRequest) -> Any:
        raise APIStatusError(400)

    for answer, budget in ((breaks, Budget(turns=9)), (refuses, None)):
        agent = Agent(FunctionModel(answer), name="walker", retry=Retry(attempts=1), budget=budget)
        with pytest.raises(APIStatusError):
            await CheckpointedAgent(agent, ledger).run("go", id="w1")
    assert not [event for event in await events(ledger, "w1") if event["type"] == "budget/returned"]


async def test_a_run_that_is_put_off_is_handed_back_when_the_threads_of_its_tools_have_ended(ledger: Ledger) -> None:
    release, put_off = threading.Event(), anyio.Event()

    @tool(timeout=0.1)
    def hang() -> bool:
        return release.wait(60)

    def answer(request: ModelRequest) -> Any:
        if request.step == 1:
            return assistant("", ToolCall(id="c1", name="hang", arguments={}))
        put_off.set()
        raise TryLater(after=3600)

    async def run() -> None:
        with pytest.raises(TryLater):
            await CheckpointedAgent(Agent(FunctionModel(answer), name="w", tools=[hang]), ledger).run("go", id="w1")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await put_off.wait()
        await anyio.wait_all_tasks_blocked()
        assert (await ledger.load("w1")).status is Status.RUNNING, "a successor would run beside the thread"
        release.set()
    assert (await ledger.load("w1")).status is Status.QUEUED


async def test_m_bu01_a_model_that_does_not_answer_in_time_is_asked_again(ledger: Ledger) -> None:
    asked: list[int] = []

    async def answer(_: ModelRequest) -> Any:
        asked.append(1)
        if len(asked) == 1:
            await anyio.sleep(60)
        return "done"

    agent = Agent(FunctionModel(answer), name="walker", retry=QUICK, model_timeout=0.5)
    assert await CheckpointedAgent(agent, ledger).run("go", id="w1") == "done"
    assert len(asked) >= 2
