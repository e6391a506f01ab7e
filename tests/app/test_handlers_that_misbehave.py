"""What a handler may do wrong: each ends its own run, under a name, and neither the worker nor another run."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from app.calls import fleet
from tenure import (
    ActiveRun,
    App,
    InvalidContent,
    Kind,
    Ledger,
    NotAllowed,
    Retry,
    Status,
    StepFailed,
    StoreUnavailable,
    TryLater,
)
from tenure.core import canonical
from tenure.core.text import printable
from tenure.errors import said

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _unsaid(caplog: pytest.LogCaptureFixture) -> None:
    # Test processes cannot tell each other a lone surrogate, so what these handlers raise stays out of the report.
    caplog.set_level(logging.CRITICAL, logger="tenure")


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # noqa: PLE0307


def raising(error: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:
    async def raises() -> None:
        raise error

    return raises


ERRORS = {
    "untellable": (Untellable(), "Untellable"),
    "no text": (NoText(), "NoText"),
    "surrogate": (ValueError("\ud800"), "\\ud800"),
    "nul": (ValueError("a\x00b"), "a\x00b"),
    "huge": (ValueError("x" * 20_000_000), "xxx"),
    "huge name": (type("W" * 5000, (Exception,), {})("x"), "WWW"),
    "group": (ExceptionGroup("g", [ValueError("a"), KeyError("b")]), "ValueError: a"),
    "recursion": (RecursionError("deep"), "RecursionError"),
    "self-cancelled": (asyncio.CancelledError(), "Cancelled"),
}


@pytest.mark.parametrize("in_step", [False, True], ids=["handler", "step"])
@pytest.mark.parametrize("name", ERRORS)
async def test_whatever_is_raised_fails_the_run_under_its_name(name: str, in_step: bool) -> None:
    app, (error, shown) = App(), ERRORS[name]

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        await (run.step("s", raising(error)) if in_step else raising(error)())

    async with fleet(app) as here:
        await here.ledger.submit("k", None, id="r")
        run = await here.call("r")
    assert (run.status, run.failures) == (Status.FAILED, 0)
    assert run.outcome is not None
    assert run.outcome.code == ("STEP_FAILED" if in_step else "HANDLER_FAILED")
    assert shown in run.outcome.message
    assert len(run.outcome.message) <= 1200


async def test_a_task_that_was_cancelled_fails_the_handler_that_awaits_it() -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        other = asyncio.ensure_future(asyncio.sleep(60))
        other.cancel()
        await other

    async with fleet(app) as here:
        await here.ledger.submit("k", None, id="r")
        run = await here.call("r")
    assert run.status is Status.FAILED


@pytest.mark.parametrize("in_step", [False, True], ids=["handler", "step"])
@pytest.mark.parametrize("error", [StoreUnavailable("away; ask again"), TryLater(after=3)], ids=["outage", "later"])
async def test_what_is_about_the_attempt_is_found_in_a_group(error: Exception, in_step: bool) -> None:
    app = App()

    async def side_by_side() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(raising(error))
            tasks.start_soon(anyio.sleep_forever)

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        await (run.step("s", side_by_side, retry=Retry(attempts=3, wait=60)) if in_step else side_by_side())

    async with fleet(app) as here:
        await here.ledger.submit("k", None, id="r")
        run = await here.call("r")
    assert (run.status, run.failures) == (Status.QUEUED, 0)


class Aliased(BaseModel):
    read: int = Field(validation_alias="in", serialization_alias="out")
    both: int = Field(alias="theOther")


class Crossed(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Picky(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def _checked(cls, value: int) -> int:
        raise RuntimeError("a validator of somebody's")


@dataclass
class Tree:
    parts: "list[Tree]" = field(default_factory=list)


class Dumps:
    def model_dump(self, mode: str) -> Any:
        raise RuntimeError("cannot")


def tree(depth: int) -> Tree:
    made = Tree()
    for _ in range(depth):
        made = Tree([made])
    return made


UNSTORABLE = {
    "set": (Any, {1}),
    "bytes": (Any, b"x"),
    "object": (Any, object()),
    "nan": (Any, math.nan),
    "typed nan": (float, math.nan),
    "infinity": (float, math.inf),
    "surrogate": (str, "\ud800"),
    "surrogate key": (Any, {"\ud800": {"a": {1}}}),
    "number keys": (Any, {1: 2}),
    "huge": (str, "x" * 5 * 1024 * 1024),
    "deep": (Tree, tree(100)),
    "deeper than the serializer": (Tree, tree(900)),
    "bytes that are no text": (bytes, b"\xff"),
    "keys that are not read back": (dict[tuple[int, int], int], {(1, 2): 3}),
    "crossed names": (Crossed, Crossed(a=2, b=1)),
    "a validator that breaks": (Picky, Picky.model_construct(x=1)),
    "a dump that breaks": (Any, Dumps()),
    "what does not fit": (int, "x"),
    "a generator": (Any, iter(())),
}


@pytest.mark.parametrize("in_step", [False, True], ids=["result", "step"])
@pytest.mark.parametrize("name", UNSTORABLE)
async def test_a_value_that_cannot_be_stored_or_read_back_is_invalid_content(name: str, in_step: bool) -> None:
    app, (type_, value) = App(), UNSTORABLE[name]

    def gives() -> Any:
        return value

    gives.__annotations__["return"] = type_

    async def handler(run: Any, _: Any) -> Any:
        return await run.step("s", gives) if in_step else value

    handler.__annotations__["return"] = Any if in_step else type_
    app.kind("k")(handler)
    async with fleet(app) as here:
        await here.ledger.submit("k", None, id="r")
        run = await here.call("r")
        events = [event["type"] async for _, event in here.ledger.handle("r").events()]
    assert run.status is Status.FAILED
    assert run.outcome is not None
    assert run.outcome.code == "INVALID_CONTENT"
    assert events == ["run/start", "attempt/start", "run/end"]


async def test_a_model_that_reads_and_writes_a_field_under_two_names_is_stored() -> None:
    app, given = App(), Aliased.model_validate({"in": 2**53 + 1, "theOther": 15947634569000323})

    @app.kind("k")
    async def handler(run: ActiveRun[Aliased], input: Aliased) -> Aliased:
        def gives() -> Aliased:
            return input

        assert await run.step("s", gives) == given
        return input

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, given, id="r")
        await here.ledger.submit("k", {"in": 1, "theOther": 2}, id="by-alias")
        await here.call("r")
        assert await handle.result() == given
        assert (await here.call("by-alias")).status is Status.FAILED  # its own assertion, with the input read


async def _yields(run: Any, input: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "fn",
    [lambda: 1, lambda run: 1, lambda run, given, more: 1, lambda run, *, given: 1, 3, None, _yields],
    ids=["none", "one", "three", "keyword", "number", "nothing", "generator"],
)
def test_a_handler_that_cannot_be_called_is_refused_when_it_is_registered(fn: Any) -> None:
    with pytest.raises(NotAllowed, match="handler of kind k"):
        Kind("k", fn)
    assert Kind("k", lambda *both: None).name == "k"


def test_annotations_are_checked_before_a_worker_claims_anything() -> None:
    app = App()

    async def foreign(run: Any, input: Any) -> RuntimeError:
        return RuntimeError()

    app.kind("k")(foreign)
    with pytest.raises(NotAllowed, match="annotate a JSON type"):
        app.served()


async def test_an_annotation_that_cannot_be_hashed_is_a_type_like_others() -> None:
    async def handler(run: Any, input: Annotated[int, ["x"]]) -> Annotated[int, ["y"]]:
        return input

    assert Kind("k", handler).decode_input(3) == 3


def test_what_an_error_says_can_always_be_told() -> None:
    assert said(Untellable()) == "(its text cannot be read: RuntimeError)"
    assert printable("a\ud800é") == "a\\ud800é"
    with pytest.raises(InvalidContent) as found:
        canonical.encode({"\ud800" * 3: {"x" * 5000: {1}}})
    str(found.value).encode()
    assert len(str(found.value)) < 300


async def test_a_step_that_takes_too_long_says_how_long_it_had_and_who_waits_for_a_run_which_one_goes_on() -> None:
    app, told = App(), []

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        with pytest.raises(StepFailed) as failed:
            await run.step("slow", anyio.sleep, 60, timeout=0.05)
        told.append(failed.value.message)
        with pytest.raises(NotAllowed, match="'later' is given no function to call"):
            await run.step("later", 7)  # type: ignore[call-overload]
        await run.step("later", lambda: 7)

    async with fleet(app) as here:
        handle = await here.ledger.submit(handler, None, id="r")
        with pytest.raises(TimeoutError, match=r"run r has not ended in 0\.05 s and goes on"):
            await handle.result(timeout=0.05)
        await here.call("r")
    assert "failed with TimeoutError: it took longer than its timeout of 0.05 s" in told[0]


def test_a_ledger_is_told_from_the_url_of_its_store() -> None:
    with pytest.raises(NotAllowed, match=r"not on str: async with open_store\(url\) as store"):
        Ledger("memory://")  # type: ignore[arg-type]
