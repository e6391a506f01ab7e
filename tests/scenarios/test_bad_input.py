"""Bad input gets a named error with a next step, alike on every store, and nothing is written of it."""

import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from tenure import ActiveRun, App, Ledger, Retry, Status, TenureError, TryLater, open_store, tool
from tenure.core import build
from tenure.core.run import Ask
from tenure.errors import Code
from tenure.perform import perform
from tenure.store import Store

pytestmark = pytest.mark.anyio

NEXT_STEP = (
    *("choose", "use ", "rename", "return", "store", "flatten", "pass ", "put ", "look", "install", "upgrade", "name "),
    *("correct", "try again", "send", "encode", "write ", "see `", "restore", "clean", "it has ", "it takes"),
)


@pytest.fixture(params=["memory", "sqlite", "valkey", "postgres"])
async def at(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> AsyncIterator[tuple[str, Store]]:
    """Yield the name of a kind of store and an opened one with nothing in it."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/tenure.db"}.get(request.param)
    async with open_store(url or request.getfixturevalue(f"{request.param}_url"), namespace=namespace) as store:
        yield request.param, store


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def spreading(depth: int) -> Any:
    """Few lists, and more values than anybody can count: each holds the next one twice."""
    value: Any = []
    for _ in range(depth):
        value = [value, value]
    return value


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


Asking = Callable[[Ledger], Awaitable[Any]]


@dataclass(frozen=True)
class Row:
    code: Code
    ask: Asking


def submits(code: Code, kind: Any = "k", value: Any = 1, /, **more: Any) -> Row:
    async def ask(ledger: Ledger) -> Any:
        return await ledger.submit(kind, value, **more)

    return Row(code, ask)


def asks(code: Code, ask: Asking) -> Row:
    return Row(code, ask)


CONTENT = {
    "nan": math.nan,
    "infinity": [math.inf],
    "surrogate": "\ud800",
    "surrogate key": {"\ud800": 1},
    "surrogate key on the way": {"\ud800": {"a": {1}}},
    "number too long to read": 10**5000,
    "set": {1},
    "bytes": b"x",
    "object": object(),
    "class": App,
    "generator": iter(()),
    "no repr": NoRepr(),
    "datetime": datetime(2030, 1, 1, tzinfo=UTC),
    "number keys": {1: 2},
    "null keys": {None: 2},
    "5 MiB": "x" * 5 * 1024 * 1024,
    "20 MB": "x" * 20_000_000,
    "65 deep": nested(65),
    "2**60 values": spreading(60),
}
IDS = ("", " ", "a" * 129, "_x", "../x", "a/b", "a:b", "a\n", "a\x00", "\ud800", "é", 1, b"x", True, "-x", "{a}", "a*")
KINDS = ("", "k" * 65, "_k", "k k", "é", "k\n", "k:x", 1, None)
PRIORITIES = ("high", 1.5, True, 2**53, -(2**60), 10**40, None, math.nan)
TIMES = (math.nan, math.inf, 1e30, "x", True, timedelta(seconds=3), datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point
TAGS = ({"": "x"}, {"a": ""}, {"a": 1}, {1: "a"}, {"a": "\ud800"}, {"a": "\n"}, {"a": "x" * 201})


async def _cancels_never(ledger: Ledger) -> None:
    await ledger.cancel("first", grace=math.nan)


async def _holds_never(ledger: Ledger) -> None:
    ledger.hold("first", ttl=math.nan)


async def _posts_too_deep(ledger: Ledger) -> None:
    await ledger.ask(build.post(run="first", item="i", name="n", ask=Ask.SIGNAL, value=nested(65)))


async def _posts_what_no_event_takes(ledger: Ledger) -> None:
    value = "x" * (4 * 1024 * 1024 - 10)
    await ledger.ask(build.post(run="first", item="i", name="n", ask=Ask.SIGNAL, value=value))


async def _tries_never(ledger: Ledger) -> None:
    raise TryLater(after=math.nan)


async def _retries_never(ledger: Ledger) -> None:
    Retry(wait=math.nan)


async def _submits_what_a_kind_does_not_take(ledger: Ledger) -> None:
    async def handler(run: ActiveRun[int], input: int) -> int:
        return input

    await ledger.submit(App().kind("k")(handler), "text")  # type: ignore[misc]


async def _serves_what_is_not_there(ledger: Ledger) -> None:
    App().served(["k"])


ROWS = {
    **{f"content: {name}": submits(Code.INVALID_CONTENT, "k", value) for name, value in CONTENT.items()},
    **{f"id: {value!r:.20}": submits(Code.INVALID_ID, id=value) for value in IDS},
    "id: no repr": submits(Code.INVALID_ID, id=NoRepr()),
    **{f"kind: {value!r:.20}": submits(Code.INVALID_ID, value) for value in KINDS},
    "kind: no repr": submits(Code.INVALID_ID, NoRepr()),
    **{f"priority: {value!r:.20}": submits(Code.NOT_ALLOWED, priority=value) for value in PRIORITIES},
    **{f"at: {value!r:.30}": submits(Code.NOT_ALLOWED, at=value) for value in TIMES},
    **{f"tags: {value!r:.20}": submits(Code.INVALID_ID, tags=value) for value in TAGS},
    "tags: a list": submits(Code.NOT_ALLOWED, tags=["a"]),
    "tags: too many": submits(Code.NOT_ALLOWED, tags={f"t{n}": "x" for n in range(65)}),
    "other input": submits(Code.RUN_CONFLICT, "k", "other", id="first"),
    "other kind": submits(Code.RUN_CONFLICT, "other", 1, id="first"),
    "grace: nan": asks(Code.NOT_ALLOWED, _cancels_never),
    "ttl: nan": asks(Code.NOT_ALLOWED, _holds_never),
    "post: too deep": asks(Code.INVALID_CONTENT, _posts_too_deep),
    "post: too large for an event": asks(Code.INVALID_CONTENT, _posts_what_no_event_takes),
    "try later: nan": asks(Code.NOT_ALLOWED, _tries_never),
    "retry: nan": asks(Code.NOT_ALLOWED, _retries_never),
    "input of another type": asks(Code.INVALID_CONTENT, _submits_what_a_kind_does_not_take),
    "unknown kind": asks(Code.UNKNOWN_KIND, _serves_what_is_not_there),
}


async def test_each_is_a_named_error_with_a_next_step_and_nothing_is_written(at: tuple[str, Store]) -> None:
    _, store = at
    wrong: dict[str, str] = {}
    async with Ledger(store) as ledger:
        await ledger.submit("k", 1, id="first")
        before = await store.raw("first")
        for name, row in ROWS.items():
            with anyio.fail_after(20):
                try:
                    await row.ask(ledger)
                    wrong[name] = "nothing was raised"
                except TenureError as error:
                    str(error).encode()
                    if error.code is not row.code:
                        wrong[name] = str(error)
                    elif not any(step in error.message for step in NEXT_STEP):
                        wrong[name] = f"no next step: {error}"
                    elif len(error.message) > 700:
                        wrong[name] = f"{len(error.message)} characters"
        assert wrong == {}
        assert [run.id async for run in ledger.find()] == ["first"]
        assert await store.raw("first") == before
        assert await store.inbox("first") == []


@pytest.mark.parametrize(
    "value",
    [2**53 + 1, 15947634569000323, 0.1, -0.0, 1e308, 10**3999, "a\x00b", {"\x00": 1}, "\u2028", {"": 1}, nested(64)],
    ids=lambda value: f"{value!r:.24}",
)
async def test_what_json_holds_is_kept_to_the_last_digit(at: tuple[str, Store], value: Any) -> None:
    _, store = at
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], input: Any) -> Any:
        return await run.step("s", lambda: input)

    async with Ledger(store) as ledger:
        handle = await ledger.submit("k", value, id=uuid.uuid4())  # type: ignore[call-overload]
        async with ledger.hold(handle.id) as lease:
            assert lease.state.input == value
            await lease.checkpoint(value)
            await lease.record("r", value)
            await lease.settle(value=value)
        found = await handle.result()
        assert (repr(found), type(found)) == (repr(value), type(value))


async def test_a_reason_that_cannot_be_printed_is_kept_so_that_it_can(at: tuple[str, Store]) -> None:
    _, store = at
    async with Ledger(store) as ledger:
        await ledger.submit("k", 1, id="plain")
        run = await ledger.cancel("plain", reason="\ud800\x00" + "x" * 10_000, by="\udcff")
        assert run.status is Status.CANCELLED
        assert run.outcome is not None
        assert run.outcome.message.startswith("\\ud800\x00xxx")
        assert run.outcome.by == "\\udcff"
        await ledger.submit("k", 1, id="grace")
        await ledger.cancel("grace", reason="\ud800", grace=60)


async def _same_key_twice(run: ActiveRun[Any], _: Any) -> None:
    await run.step("a", lambda: 1)
    await run.step("a", lambda: 1)


async def _same_key_side_by_side(run: ActiveRun[Any], _: Any) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.step, "a", anyio.sleep, 0.01)
        tasks.start_soon(run.step, "a", anyio.sleep, 0.01)


async def _step_in_a_step(run: ActiveRun[Any], _: Any) -> None:
    async def outer() -> None:
        await run.step("b", lambda: 1)

    await run.step("a", outer)


async def _odd_key(run: ActiveRun[Any], _: Any) -> None:
    await run.step("a\x00", lambda: 1)


async def _odd_child(run: ActiveRun[Any], _: Any) -> None:
    await run.submit("a b", "k", 1)


async def _odd_effect(run: ActiveRun[Any], _: Any) -> None:
    await run.step("a", lambda: 1, effect=cast("Any", "maybe"))


async def _odd_guard(run: ActiveRun[Any], _: Any) -> None:
    await run.step("a", lambda: 1, guard={1})


async def _result_is_a_set(run: ActiveRun[Any], _: Any) -> Any:
    return {1}


async def _result_is_too_large(run: ActiveRun[Any], _: Any) -> Any:
    return "x" * 20_000_000


async def _step_is_too_large(run: ActiveRun[Any], _: Any) -> Any:
    return await run.step("a", lambda: "x" * 5 * 1024 * 1024)


HANDLERS = {
    _same_key_twice: Code.NOT_ALLOWED,
    _same_key_side_by_side: Code.NOT_ALLOWED,
    _step_in_a_step: Code.NOT_ALLOWED,
    _odd_key: Code.INVALID_ID,
    _odd_child: Code.INVALID_ID,
    _odd_effect: Code.NOT_ALLOWED,
    _odd_guard: Code.INVALID_CONTENT,
    _result_is_a_set: Code.INVALID_CONTENT,
    _result_is_too_large: Code.INVALID_CONTENT,
    _step_is_too_large: Code.INVALID_CONTENT,
}


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda fn: fn.__name__)
async def test_a_handler_that_is_wrong_fails_its_run_under_a_code(at: tuple[str, Store], handler: Any) -> None:
    _, store = at
    app = App()
    app.kind("k")(handler)
    async with Ledger(store) as ledger:
        await ledger.submit("k", None, id="r")
        lease = await ledger.claims.claim(ledger.claims.change("r"))
        async with ledger.claims.under(lease) as held:
            await perform(app, ledger, held)
        run = await ledger.load("r")
        assert (run.status, run.failures) == (Status.FAILED, 0)
        assert run.outcome is not None
        assert run.outcome.code == HANDLERS[handler].value
        assert any(step in run.outcome.message for step in NEXT_STEP), run.outcome.message
        kept = [event async for _, event in ledger.handle("r").events()]
        assert all("error" not in event for event in kept)
        assert [run.id async for run in ledger.find()] == ["r"]


def test_arguments_that_do_not_validate_are_named_without_their_values() -> None:
    @tool
    def pay(amount: int) -> int:
        """Pay."""
        return amount

    for arguments in ({"amount": "hunter2"}, {}, {"amount": 1, "hunter2" * 100: 2}, {"amount": 1, "\ud800": 2}, 3, "x"):
        with pytest.raises(TenureError) as found:
            pay.check(arguments)
        assert found.value.code is Code.INVALID_CONTENT
        str(found.value).encode()
        assert len(found.value.message) < 400
