"""What a handler waits for: a time, a signal, a person; the run is suspended meanwhile and called again."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest

from app.calls import Fleet, fleet
from tenure import (
    ActiveRun,
    App,
    Decision,
    NotAllowed,
    ReplayDrift,
    RequestClosed,
    RequestExpired,
    RunClosed,
    RunConflict,
    RunSuspended,
    StaleDecision,
    Status,
)

pytestmark = pytest.mark.anyio


class Waiting:
    """An app with one kind, `k`, and what it did in all its calls."""

    def __init__(self, *, url: str = "memory://", **options: Any) -> None:
        self.app = App()
        self.did: list[str] = []
        self._url = url
        self._options = options

    def handler(self, fn: Any) -> Any:
        return self.app.kind("k", **self._options)(fn)

    def __aenter__(self) -> Any:
        self._opened = fleet(self.app, self._url, ttl=5)
        return self._opened.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.__aexit__(*exc)

    def does(self, what: str) -> Any:
        async def step() -> str:
            self.did.append(what)
            return what

        return step


async def _due(at: Fleet, run_id: str = "r1") -> None:
    """Wait until the run may be claimed by its own time."""
    while True:
        run, now_ms = await at.ledger.load(run_id), (await at.ledger.store.facts()).now_ms
        if run.due_ms is not None and run.due_ms <= now_ms:
            return
        await anyio.sleep(0.01)


async def test_a_sleeping_run_holds_no_lease_and_is_called_again_when_the_time_has_come() -> None:
    waiting = Waiting()

    @waiting.handler
    async def nap(run: ActiveRun[Any], _: Any) -> str:
        await run.step("before", waiting.does("before"))
        await run.sleep("nap", 0.3)
        return await run.step("after", waiting.does("after"))

    async with waiting as at:
        await at.ledger.submit("k", None, id="r1")
        run = await at.call("r1")
        assert (run.status, run.owner, run.requests, run.wants) == (Status.SUSPENDED, "", {}, ())
        due_ms = run.due_ms
        with pytest.raises(RunSuspended):
            await at.call("r1")
        await _due(at)
        run = await at.call("r1")
        assert (run.status, run.due_ms, waiting.did) == (Status.COMPLETED, None, ["before", "after"])
        begun = [event async for _, event in at.ledger.handle("r1").events() if event["type"] == "wait/begun"]
        assert [event["ends_ms"] for event in begun] == [due_ms]


async def test_a_sleep_that_was_woken_early_goes_on_to_the_same_end() -> None:
    waiting = Waiting()

    @waiting.handler
    async def both(run: ActiveRun[Any], _: Any) -> str:
        async def wait() -> None:
            waiting.did.append(await run.wait_for("go"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await run.sleep("nap", 60)
        return "done"

    async with waiting as at:
        await at.ledger.submit("k", None, id="r1")
        first = await at.call("r1")
        assert first.wants == ("go",), "side by side, all is waited for at once"
        await at.ledger.handle("r1").signal("go", 1)
        second = await at.call("r1")
        assert (second.status, second.due_ms) == (Status.SUSPENDED, first.due_ms)
        assert (second.wants, waiting.did) == ((), [1])


async def test_a_signal_is_kept_until_it_is_waited_for_and_taken_once() -> None:
    waiting = Waiting()

    @waiting.handler
    async def two(run: ActiveRun[Any], _: Any) -> list[Any]:
        first = await run.wait_for("go", returns=dt.date)
        second = await run.wait_for("go", key="again")
        return [str(first), second]

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await handle.signal("go", "2026-01-31", id="s1")
        await handle.signal("go", "2026-01-31", id="s1")
        with pytest.raises(RunConflict):
            await handle.signal("go", "2026-02-01", id="s1")
        assert [item.id for item in await at.ledger.store.inbox("r1")] == ["signal:s1"]
        run = await at.call("r1")
        assert (run.status, run.wants) == (Status.SUSPENDED, ("go",)), "the second one is still to come"
        await handle.signal("other")
        assert (await handle.load()).status is Status.SUSPENDED
        await handle.signal("go", {"n": 2})
        assert (await at.call("r1")).status is Status.COMPLETED
        assert await handle.result() == ["2026-01-31", {"n": 2}]
        with pytest.raises(RunClosed):
            await handle.signal("go")


async def test_a_signal_that_does_not_come_in_time_is_a_timeout_on_each_replay() -> None:
    waiting = Waiting()

    @waiting.handler
    async def impatient(run: ActiveRun[Any], _: Any) -> str:
        try:
            await run.wait_for("go", timeout=0.05)
        except TimeoutError as error:
            waiting.did.append(str(error))
        await run.sleep("nap", 0.05)
        return "done"

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        await _due(at)
        await at.call("r1")
        await handle.signal("go", "late")
        await _due(at)
        assert (await at.call("r1")).status is Status.COMPLETED
        assert waiting.did == ["no signal 'go' came in time"] * 2


async def test_what_timed_out_gets_its_chance_again_when_the_handler_is_retried() -> None:
    waiting = Waiting(retries=1)

    @waiting.handler
    async def strict(run: ActiveRun[Any], _: Any) -> Any:
        return await run.wait_for("go", timeout=0.05)

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        await _due(at)
        run = await at.call("r1")
        assert (run.status, run.failures) == (Status.QUEUED, 1)
        await _due(at)
        run = await at.call("r1")
        assert run.status is Status.SUSPENDED, "the wait begins anew"
        await handle.signal("go", 7)
        await at.call("r1")
        assert await handle.result() == 7


async def test_steps_in_hand_end_before_a_run_is_suspended_and_nothing_is_cut_in_the_middle() -> None:
    waiting, gate = Waiting(), anyio.Event()

    @waiting.handler
    async def both(run: ActiveRun[Any], _: Any) -> str:
        async def work() -> str:
            await gate.wait()
            waiting.did.append("worked")
            return "worked"

        async def side() -> None:
            await run.step("work", work)
            await run.step("more", waiting.does("more"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(side)
            await run.wait_for("go")
        return "done"

    async def open_gate() -> None:
        await anyio.sleep(0.05)
        gate.set()

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        run = await at.call("r1", meanwhile=open_gate)
        assert (run.status, waiting.did) == (Status.SUSPENDED, ["worked", "more"])
        await handle.signal("go")
        assert (await at.call("r1")).status is Status.COMPLETED
        assert waiting.did == ["worked", "more"]


async def test_a_signal_that_comes_while_the_call_is_cut_is_not_slept_over(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting()

    @waiting.handler
    async def listener(run: ActiveRun[Any], _: Any) -> Any:
        waiting.did.append("called")
        return await run.wait_for("go")

    from tenure import perform

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        plain = perform.suspend

        async def late(*args: Any, **options: Any) -> Any:
            await handle.signal("go", "just now")
            return await plain(*args, **options)

        monkeypatch.setattr(perform, "suspend", late)
        assert (await at.call("r1")).status is Status.COMPLETED
        assert (await handle.result(), waiting.did) == ("just now", ["called", "called"])


async def test_a_plain_function_waits_as_well() -> None:
    waiting = Waiting()

    @waiting.handler
    def plain(run: ActiveRun[Any], _: Any) -> Any:
        anyio.from_thread.run(partial(run.step, "one", waiting.does("one")))
        return anyio.from_thread.run(run.wait_for, "go")

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        assert (await at.call("r1")).status is Status.SUSPENDED
        assert at.seen[0].threads.busy == 0
        await handle.signal("go", 3)
        await at.call("r1")
        assert (await handle.result(), waiting.did) == (3, ["one"])


async def test_waits_have_keys_of_their_own_and_no_place_in_a_step() -> None:
    waiting = Waiting()

    @waiting.handler
    async def wrong(run: ActiveRun[Any], how: str) -> Any:
        match how:
            case "twice":
                await run.sleep("nap", 0)
                await run.sleep("nap", 0)
            case "inside":
                await run.step("s", partial(run.wait_for, "go"))
            case "policy":
                await run.ask("q", "?", on_expiry="approve")  # type: ignore[arg-type]
            case "negative":
                await run.sleep("nap", -1)
                return "at once"
        return None

    async with waiting as at:
        for how in ("twice", "inside", "policy"):
            await at.ledger.submit("k", how, id=how)
            run = await at.call(how)
            assert run.outcome is not None
            assert (run.status, run.outcome.code) == (Status.FAILED, "NOT_ALLOWED"), how
        await at.ledger.submit("k", "negative", id="r1")
        assert (await at.call("r1")).status is Status.COMPLETED


async def test_a_run_that_waits_and_is_asked_to_end_cleans_up_and_waits_for_nothing_more() -> None:
    waiting = Waiting()

    @waiting.handler
    async def tidy(run: ActiveRun[Any], _: Any) -> str:
        try:
            await run.wait_for("go")
        finally:
            await run.step("clean", waiting.does("clean"))
        return "never"

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        await handle.cancel(reason="enough", grace=30)
        run = await at.call("r1")
        assert (run.status, waiting.did) == (Status.CANCELLED, ["clean"])


@pytest.fixture
async def asking() -> AsyncIterator[tuple[Waiting, Fleet]]:
    """A run that asks a person whether to pay."""
    waiting = Waiting()

    @waiting.handler
    async def pay(run: ActiveRun[Any], cents: int) -> Any:
        decision = await run.ask("pay", {"cents": cents})
        await run.step("note", waiting.does(f"{decision.approved} {decision.by} {decision.reason}"))
        return decision.approved

    async with waiting as at:
        await at.ledger.submit("k", 100, id="r1")
        await at.call("r1")
        yield waiting, at


async def test_m_ap01_m_ap06_m_ap07_a_person_decides_and_the_run_goes_on(asking: tuple[Waiting, Fleet]) -> None:
    waiting, at = asking
    handle = at.ledger.handle("r1")
    (request,) = await handle.requests()
    assert (request.id, request.content["question"], request.standing) == ("ask:pay", {"cents": 100}, "open")
    assert (await handle.load()).wants == ("ask:pay",)
    await handle.decide(request, "approve", by="ann", reason="fine")
    assert (await handle.load()).status is Status.QUEUED
    (decided,) = await handle.requests()
    assert decided.decision is not None
    assert (decided.standing, decided.decision.by) == ("decided", "ann")
    assert (await at.call("r1")).status is Status.COMPLETED
    assert waiting.did == ["True ann fine"]
    expected = Decision(request="ask:pay", digest=request.digest, approved=True, by="ann", reason="fine")
    assert await handle.decisions() == [expected]
    assert await handle.requests() == []


async def test_m_ap08_i15_the_first_decision_stands_and_the_same_again_is_no_error(
    asking: tuple[Waiting, Fleet],
) -> None:
    _, at = asking
    handle = at.ledger.handle("r1")
    await handle.decide("ask:pay", "reject", by="ann")
    await handle.decide("ask:pay", "reject", by="ann")
    with pytest.raises(RequestClosed, match="decided first, by ann"):
        await handle.decide("ask:pay", "approve", by="ann")
    with pytest.raises(RequestClosed, match="decided first, by ann"):
        await handle.decide("ask:pay", "reject", by="bob")
    await at.call("r1")
    await handle.decide("ask:pay", "reject", by="ann")
    with pytest.raises(RequestClosed, match="decided first"):
        await handle.decide("ask:pay", "approve", by="bob")
    with pytest.raises(RunClosed):
        await handle.decide("ask:other", "approve", by="bob")
    assert await handle.result() is False


async def test_m_ap15_what_cannot_be_decided_says_why(asking: tuple[Waiting, Fleet]) -> None:
    _, at = asking
    handle = at.ledger.handle("r1")
    with pytest.raises(RequestClosed):
        await handle.decide("ask:other", "approve", by="ann")
    with pytest.raises(StaleDecision):
        await handle.decide("ask:pay", "approve", by="ann", digest="0" * 64)
    with pytest.raises(NotAllowed, match="'approve' or 'reject'"):
        await handle.decide("ask:pay", {"receipt": 7}, by="ann")  # type: ignore[arg-type]
    with pytest.raises(RequestClosed, match="nobody has decided"):
        await handle.revoke("ask:pay", by="ann")
    assert await at.ledger.store.inbox("r1") == []


async def test_i15_a_decision_can_be_revoked_until_it_is_consumed_and_the_run_asks_anew(
    asking: tuple[Waiting, Fleet],
) -> None:
    waiting, at = asking
    handle = at.ledger.handle("r1")
    await handle.decide("ask:pay", "approve", by="ann")
    await handle.revoke("ask:pay", by="bob", reason="wrong account")
    run = await at.call("r1")
    assert (run.status, run.wants, waiting.did) == (Status.SUSPENDED, ("ask#2:pay",), [])
    (request,) = await handle.requests()
    assert request.id == "ask#2:pay"
    with pytest.raises(RequestClosed):
        await handle.decide("ask:pay", "approve", by="ann", reason="again")
    await handle.decide(request, "reject", by="bob")
    await at.call("r1")
    with pytest.raises(RunClosed):
        await handle.revoke(request, by="ann")
    assert waiting.did == ["False bob "]


async def _asks(at: Fleet, waiting: Waiting, **options: Any) -> None:
    @waiting.handler
    async def pay(run: ActiveRun[Any], _: Any) -> Any:
        try:
            decision = await run.ask("pay", "now?", **options)
        except RequestExpired:
            return "expired"
        return [decision.approved, decision.expired]

    await at.ledger.submit("k", None, id="r1")


@pytest.mark.parametrize("policy, result", [("reject", [False, True]), ("fail", "expired")])
async def test_expiry_is_no_denial_and_the_policy_says_what_follows(policy: str, result: Any) -> None:
    waiting = Waiting()
    async with waiting as at:
        await _asks(at, waiting, expires=0.1, on_expiry=policy)
        handle = at.ledger.handle("r1")
        run = await at.call("r1")
        assert run.due_ms == run.requests["ask:pay"].expires_ms
        await _due(at)
        with pytest.raises(RequestClosed):
            await handle.decide("ask:pay", "approve", by="ann")
        assert (await handle.requests())[0].standing == "expired"
        assert (await at.call("r1")).status is Status.COMPLETED
        assert await handle.result() == result


async def test_an_expired_request_is_asked_again_by_default() -> None:
    waiting = Waiting()
    async with waiting as at:
        await _asks(at, waiting, expires=0.1)
        handle = at.ledger.handle("r1")
        await at.call("r1")
        await _due(at)
        run = await at.call("r1")
        assert (run.status, list(run.requests)) == (Status.SUSPENDED, ["ask#2:pay"])
        while True:
            try:
                (request,) = await handle.requests()
                await handle.decide(request, "approve", by="ann")
                break
            except RequestClosed:  # a machine that stands still lets it expire once more
                await at.call("r1")
        await at.call("r1")
        assert await handle.result() == [True, False]


async def test_m_ap11_a_decision_is_bound_to_the_question_that_was_shown() -> None:
    waiting, question = Waiting(), ["pay 1"]

    @waiting.handler
    async def pay(run: ActiveRun[Any], _: Any) -> Any:
        decision = await run.ask("pay", question[0])
        await run.sleep("nap", 0.01)
        return decision.request

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        (old,) = await handle.requests()
        question[0] = "pay 2"
        await handle.signal("anything")
        await handle.decide(old, "approve", by="ann")
        run = await at.call("r1")
        assert list(run.requests) == ["ask#2:pay"], "what was approved is not what would happen"
        (new,) = await handle.requests()
        assert (new.content["question"], new.before["question"]) == ("pay 2", "pay 1")
        await handle.decide(new, "approve", by="ann")
        await at.call("r1")
        question[0] = "pay 3"
        await _due(at)
        run = await at.call("r1")
        assert run.outcome is not None
        assert (run.status, run.outcome.code) == (Status.FAILED, ReplayDrift.code.value)


async def test_a_question_that_changed_before_anybody_decided_makes_the_old_one_stale() -> None:
    waiting, question = Waiting(), ["pay 1"]

    @waiting.handler
    async def pay(run: ActiveRun[Any], _: Any) -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.wait_for, "poke")
            return (await run.ask("pay", question[0])).request

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        (old,) = await handle.requests()
        question[0] = "pay 2"
        await handle.signal("poke")
        await at.call("r1")
        with pytest.raises(StaleDecision):
            await handle.decide(old, "approve", by="ann")
        (new,) = await handle.requests()
        assert (new.id, new.digest != old.digest, new.before["question"]) == (old.id, True, "pay 1")
        await handle.decide(new, "approve", by="ann")
        await at.call("r1")
        assert await handle.result() == "ask:pay"


async def test_several_questions_are_asked_at_once_and_keep_their_order() -> None:
    waiting = Waiting()

    @waiting.handler
    async def board(run: ActiveRun[Any], _: Any) -> Any:
        found: dict[str, bool] = {}

        async def one(key: str) -> None:
            found[key] = (await run.ask(key, f"{key}?")).approved

        async with anyio.create_task_group() as tasks:
            for key in ("zoe", "ann", "bob"):
                tasks.start_soon(one, key)
        return found

    async with waiting as at:
        handle = await at.ledger.submit("k", None, id="r1")
        await at.call("r1")
        assert [request.id for request in await handle.requests()] == ["ask:zoe", "ask:ann", "ask:bob"]
        for key, how in (("bob", "reject"), ("zoe", "approve"), ("ann", "approve")):
            await handle.decide(f"ask:{key}", how, by="me")  # type: ignore[arg-type]
            await at.call("r1")
        assert await handle.result() == {"zoe": True, "ann": True, "bob": False}


async def test_i24_a_step_in_doubt_with_effect_ask_asks_a_person() -> None:
    from tenure import resolve

    for said, expected in (({"result": "receipt 7"}, "receipt 7"), ({"repeat": True}, "paid"), ({"fail": True}, "?")):
        waiting = Waiting()

        @waiting.handler
        async def pay(run: ActiveRun[Any], _: Any, waiting: Waiting = waiting) -> Any:
            from tenure import StepFailed

            try:
                return await run.step("pay", waiting.does("paid"), effect="ask", returns=str)
            except StepFailed as error:
                return error.type_name and "?"

        async with waiting as at:
            await at.ledger.submit("k", None, id="r1")
            await at.die("r1", lambda run: run.lease.started(["step:pay"]))
            run = await at.call("r1")
            assert (run.status, run.wants) == (Status.SUSPENDED, ("resolve:step:pay",))
            assert waiting.did == []
            await resolve(at.ledger, "r1", "pay", by="ann", **said)
            run = await at.call("r1")
            assert run.status is Status.COMPLETED
            assert await at.ledger.handle("r1").result() == expected
            assert waiting.did == (["paid"] if "repeat" in said else [])
