"""Steps: identity by key, values through the codec; what is drift."""

import threading
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest

from app.calls import Fleet, fleet
from tenure import (
    ActiveRun,
    App,
    InvalidContent,
    NotAllowed,
    ReplayDrift,
    Status,
    TryLater,
)
from tenure.core import journal

pytestmark = pytest.mark.anyio


@dataclass
class Order:
    number: int
    day: date
    parts: tuple[str, ...]


async def events(fleet_: Any, run_id: str, type_: str) -> list[dict[str, Any]]:
    return [e async for _, e in fleet_.ledger.handle(run_id).events() if e["type"] == type_]


async def test_a_recorded_step_is_not_called_again_and_returns_the_same_type() -> None:
    app, calls, got = App(), [], []

    async def order(number: int) -> Order:
        calls.append(number)
        return Order(number=number, day=date(2024, 2, 29), parts=("a", "b"))

    @app.kind("k")
    async def handler(run: ActiveRun[int], input: int) -> int:
        got.append(await run.step("order", order, input))
        if run.lease.run.failures == 0:
            raise TryLater
        return 1

    async with fleet(app) as here:
        await here.ledger.submit(handler, 7, id="r")
        await here.call("r")
        lease = await here.ledger.claims.claim(here.ledger.claims.change("r"))
        async with here.ledger.claims.under(lease) as held:
            active: ActiveRun[int] = ActiveRun(here.ledger, held, input=7)
            got.append(await active.step("order", order, 7))
    assert calls == [7]
    assert got == [Order(7, date(2024, 2, 29), ("a", "b"))] * 2


async def test_steps_that_moved_between_deploys_are_replayed_and_a_renamed_one_is_another_step() -> None:
    calls: list[str] = []

    def deployed(*keys: str) -> App:
        app = App()

        @app.kind("k")
        async def handler(run: ActiveRun[None], _: None) -> list[str]:
            def call(key: str) -> str:
                calls.append(key)
                return f"{key} {len(calls)}"

            found = [await run.step(key, partial(call, key)) for key in keys]
            if len(keys) == 3:
                raise TryLater
            return found

        return app

    async with fleet(deployed("a", "b", "c")) as former:
        await former.ledger.submit("k", None, id="r")
        await former.call("r")
        latter = Fleet(deployed("new", "c", "a", "b2"), former.ledger)
        run = await latter.call("r")
        assert await latter.ledger.handle("r").result() == ["new 4", "c 3", "a 1", "b2 5"]
        recorded = [event["name"] for event in await events(latter, "r", journal.RECORD)]
    assert run.status is Status.COMPLETED
    assert calls == ["a", "b", "c", "new", "b2"]
    assert recorded == ["step:a", "step:b", "step:c", "step:new", "step:b2"], "what it was called stays"


async def test_a_value_goes_through_json_on_the_first_run_too() -> None:
    app = App()
    got: list[Any] = []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        got.append(await run.step("plain", lambda: {"t": (1, 2)}))
        got.append(await run.step("told", lambda: "2024-02-29", returns=date))

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        assert (await here.call("r")).status is Status.COMPLETED
    assert got == [{"t": [1, 2]}, date(2024, 2, 29)]


async def test_each_step_is_a_step_of_the_record_and_steps_side_by_side_share_commits() -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> int:
        gate = anyio.Event()

        async def one(n: int) -> int:
            if n == 9:
                gate.set()
            await gate.wait()
            return n

        async def side(n: int) -> None:
            await run.step(f"side-{n}", one, n)

        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(side, n)
        return run.lease.run.last_seq

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")
        run = await here.call("r")
        assert run.step == 10
        assert await handle.result() < 1 + 10
        assert len(await events(here, "r", journal.RECORD)) == 10


async def test_a_key_used_twice_and_a_step_inside_a_step_are_refused() -> None:
    app, said = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        await run.step("a", lambda: 1)
        with pytest.raises(NotAllowed, match="put what differs into the key") as twice:
            await run.step("a", lambda: 1)

        async def outer() -> None:
            await run.step("inner", lambda: 1)

        with pytest.raises(NotAllowed, match="inside step 'outer'"):
            await run.step("outer", outer)
        with pytest.raises(NotAllowed, match="inside step 'thread'"):
            await run.step("thread", lambda: anyio.from_thread.run(partial(run.step, "deep", int)))
        said.append(twice.value.code)

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        assert (await here.call("r")).status is Status.COMPLETED
        assert [e["name"] for e in await events(here, "r", journal.RECORD)] == ["step:a"]
    assert said == ["NOT_ALLOWED"]


async def test_a_task_that_a_step_left_behind_is_not_inside_it() -> None:
    app, got = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        ended, done = anyio.Event(), anyio.Event()

        async def later() -> None:
            await ended.wait()
            got.append(await run.step("later", lambda: 2))
            done.set()

        async def starts() -> None:
            run.tasks.start_soon(later)

        await run.step("starts", starts)
        ended.set()
        await done.wait()

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        assert (await here.call("r")).status is Status.COMPLETED
    assert got == [2]


async def test_a_guard_that_differs_on_replay_is_drift_and_names_the_key() -> None:
    app, got = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        got.append(await run.step("a", lambda: 2, guard={"prompt": 1}))
        await run.step("b", lambda: 3, guard={"prompt": 2})

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")

        async def first(active: ActiveRun[Any]) -> None:
            await active.step("a", lambda: 1, guard={"prompt": 1})
            await active.step("b", lambda: 1, guard={"prompt": 1})

        await here.die("r", first)
        run = await here.call("r")
        assert run.outcome is not None
        assert (run.status, run.outcome.code) == (Status.FAILED, ReplayDrift.code)
        assert "'b'" in run.outcome.message
    assert got == [1]


async def test_what_cannot_be_stored_names_its_path_and_nothing_is_written() -> None:
    app, paths = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        values: list[Any] = [{"a": [1, object()]}, {1, 2}, b"x", float("nan"), float("inf"), "\ud800"]
        for n, value in enumerate(values):
            before = run.lease.run.last_seq
            with pytest.raises(InvalidContent, match=f"the result of step 's{n}': ") as refused:
                await run.step(f"s{n}", values.__getitem__, n)
            assert not isinstance(value, int)
            paths.append(refused.value.path)
            assert run.lease.run.last_seq == before
        with pytest.raises(InvalidContent):
            await run.step("typed", lambda: "no number", returns=int)
        with pytest.raises(NotAllowed, match="cannot be stored"):
            await run.step("foreign", threading.Lock, returns=threading.Event)

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")
        run = await here.call("r")
        assert (run.status, run.outcome and run.outcome.message) == (Status.COMPLETED, "")
        assert await events(here, "r", journal.RECORD) == []
    assert paths == ["$.a[1]", "$", "$", "$", "$", "$"]


async def test_a_plain_handler_runs_in_a_thread_and_steps_through_anyio() -> None:
    app, loop_thread = App(), threading.get_ident()

    @app.kind("k")
    def handler(run: ActiveRun[int], input: int) -> list[int]:
        assert threading.get_ident() != loop_thread
        one: int = anyio.from_thread.run(partial(run.step, "one", (1).__add__, input))
        two: int = anyio.from_thread.run(partial(run.step, "two", pow, one, 2, effect="fail"))
        return [one, two]

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, 1, id="r")
        run = await here.call("r")
        assert run.step == 2
        assert await handle.result() == [2, 4]


async def test_an_effect_key_is_stable_over_attempts_and_the_token_rises() -> None:
    app, keys, tokens = App(), [], []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        keys.append(run.effect_key("pay"))
        tokens.append(run.token)

    async with fleet(app) as here:
        await here.ledger.submit(handler, None, id="r")

        async def first(active: ActiveRun[Any]) -> None:
            keys.append(active.effect_key("pay"))
            tokens.append(active.token)

        await here.die("r", first)
        await here.call("r")
    assert keys == ["r:pay", "r:pay"]
    assert tokens[0] < tokens[1]
