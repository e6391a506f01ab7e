"""The registry: kinds with their handlers, and what every handler of a process shares."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from tenure.active import ActiveRun
from tenure.calling import hints_of, readable, unwrapped
from tenure.codec import from_json_value, round_trip
from tenure.core import ids
from tenure.core.budget import Budget
from tenure.errors import NotAllowed, UnknownKind
from tenure.redaction import Redaction, redaction_of

In = TypeVar("In")
Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)

Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


class AgentLike(Protocol[Out_co]):
    """An agent as an app sees it: it has a name, and drives a run that is held."""

    @property
    def name(self) -> str:
        """Return the agent's name."""
        ...

    async def drive(self, active: ActiveRun[str], /) -> Out_co:
        """Go on with the run from its journal, and return the answer."""
        ...


class Kind(Generic[In, Out]):
    """A named handler with the types of its input and result; made by `App.kind`.

    `max_crashes` takeovers without a step in between quarantine a run; `retries` is how often a handler that raised is
    called again; `timeout` bounds one call, in seconds. `budget` takes attempts and wall_time, over all calls.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *,
        max_crashes: int = 3,
        retries: int = 0,
        timeout: float | None = None,
        budget: Budget | None = None,
        types: tuple[Any, Any] | None = None,
    ) -> None:
        self.name = ids.kind_name(name)
        self.fn = fn
        _check_handler(self.name, fn)
        if max_crashes < 2:
            message = f"max_crashes of kind {name} is at least 2: a run that only shared a process with a death has 1"
            raise NotAllowed(message)
        if retries < 0 or (timeout is not None and timeout <= 0):
            message = f"kind {name} has retries {retries} and timeout {timeout}; both are positive numbers or left out"
            raise NotAllowed(message)
        self.max_crashes = max_crashes
        self.retries = retries
        self.timeout = timeout
        self.agent: AgentLike[Any] | None = None
        self.budget = budget
        if budget is not None:
            budget.only("attempts", "wall_time", what=f"the handler of kind {name}")
        self._given = types

    def __repr__(self) -> str:
        """Return the kind's name in words."""
        return f"<kind {self.name}>"

    @cached_property
    def _types(self) -> tuple[Any, Any]:
        # On first use: annotations may name types that stand further down in the module.
        if self._given is not None:
            return self._given
        hints = hints_of(self.fn)
        names = list(inspect.signature(self.fn).parameters)
        return readable(hints.get(names[1], Any) if len(names) > 1 else Any), readable(hints.get("return", Any))

    def check(self) -> None:
        """Raise NotAllowed if the annotations name what cannot be resolved or stored."""
        _ = self._types

    def with_handler(self, fn: Callable[..., Any], /) -> Kind[In, Out]:
        """Return the same kind with another handler of the same types."""
        made: Kind[In, Out] = Kind(
            self.name,
            fn,
            max_crashes=self.max_crashes,
            retries=self.retries,
            timeout=self.timeout,
            budget=self.budget,
            types=self._types,
        )
        made.agent = self.agent
        return made

    def encode_input(self, value: In, /) -> Any:
        """Return the JSON value of an input; InvalidContent if it does not fit the annotation."""
        return round_trip(value, self._types[0])[0]

    def decode_input(self, value: Any, /) -> In:
        """Return the typed input of its JSON value; InvalidContent if it does not fit."""
        todo = f"submit another input, or serve {self.name} with a handler that takes it"
        return cast("In", from_json_value(value, self._types[0], what="this input", todo=todo))

    def encode_result(self, value: Out, /) -> Any:
        """Return the JSON value of a result; InvalidContent if it does not fit the annotation."""
        return round_trip(value, self._types[1])[0]

    def decode_result(self, value: Any, /) -> Out:
        """Return the typed result of its JSON value; InvalidContent if it does not fit."""
        return cast("Out", from_json_value(value, self._types[1]))


def _check_handler(name: str, fn: Any) -> None:
    if not callable(fn):
        message = f"the handler of kind {name} is {type(fn).__name__} and no function; decorate a function (run, input)"
        raise NotAllowed(message)
    plain = unwrapped(fn)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        message = f"the handler of kind {name} yields; let it return its result, and record what it finds in steps"
        raise NotAllowed(message)
    try:
        inspect.signature(fn).bind(None, None)
    except (TypeError, ValueError) as error:
        message = f"the handler of kind {name} takes (run, input) and nothing else that has no default ({error})"
        raise NotAllowed(message) from None


class KindDecorator(Protocol):
    """What `App.kind` returns."""

    @overload
    def __call__(self, fn: Callable[[ActiveRun[In], In], Awaitable[Out]], /) -> Kind[In, Out]: ...

    @overload
    def __call__(self, fn: Callable[[ActiveRun[In], In], Out], /) -> Kind[In, Out]: ...


class App:
    """The kinds that a worker serves. `version` is written to each run it claims and to each attempt's first commit.

    `accepts` names versions whose runs this one can go on with; its own, and runs that carry none, always are. What it
    does not accept is declined and left to workers that do. Without `accepts` runs of any version are taken.
    `lifespan` is an async context manager per worker process, given the app; what it yields is `run.deps`. `redact`
    hides secrets in all that its workers write: True for what they usually look like, or a Redaction.
    """

    def __init__(
        self,
        *,
        version: str | None = None,
        accepts: Iterable[str] | None = None,
        lifespan: Lifespan | None = None,
        redact: Redaction | bool | None = None,
    ) -> None:
        self.redaction = redaction_of(redact)
        self.version = ids.label(version, "version") if version is not None else ""
        self.accepted: tuple[str, ...] | None = None
        if accepts is not None:
            if isinstance(accepts, str):
                message = f"accepts is a list of versions, not the text {accepts!r:.40}; write accepts=[...]"
                raise NotAllowed(message)
            named = [ids.label(name, "version") for name in accepts]
            # A run that nobody has claimed yet may carry no version: its submitter knew none.
            self.accepted = tuple(dict.fromkeys((self.version, *named, "")))
        self.kinds: dict[str, Kind[Any, Any]] = {}
        self._lifespan = lifespan

    def kind(
        self,
        name: str,
        /,
        *,
        max_crashes: int = 3,
        retries: int = 0,
        timeout: float | None = None,
        budget: Budget | None = None,
    ) -> KindDecorator:
        """Decorate the handler of a kind: `async def handler(run, input)`; a plain def runs in a worker thread."""

        def register(fn: Callable[..., Any], /) -> Kind[Any, Any]:
            made: Kind[Any, Any] = Kind(
                name, fn, max_crashes=max_crashes, retries=retries, timeout=timeout, budget=budget
            )
            return self._add(made)

        return cast("KindDecorator", register)

    def agent(
        self, agent: AgentLike[Out], /, *, name: str | None = None, max_crashes: int = 3, retries: int = 0
    ) -> Kind[str, Out]:
        """Register an agent as a kind; its input is the prompt."""

        async def drive(run: ActiveRun[str], _: str) -> Out:
            return await agent.drive(run)

        types = (str, getattr(agent, "output", Any))
        made: Kind[str, Out] = Kind(name or agent.name, drive, max_crashes=max_crashes, retries=retries, types=types)
        made.agent = agent
        self._add(made)
        return made

    def _add(self, kind: Kind[Any, Any]) -> Kind[Any, Any]:
        if kind.name in self.kinds:
            message = f"the app has a kind {kind.name!r} already; choose another name"
            raise NotAllowed(message)
        self.kinds[kind.name] = kind
        return kind

    def served(self, names: Iterable[str] | None = None, /) -> dict[str, Kind[Any, Any]]:
        """Return the kinds of these names, all without any; UnknownKind for one that the app does not have.

        NotAllowed for one whose annotations cannot be used: that is said before a run is claimed for it.
        """
        wanted = list(self.kinds if names is None else names)
        if unknown := [name for name in wanted if name not in self.kinds]:
            message = f"the app has no kind {unknown[0]!r}; it has {', '.join(sorted(self.kinds)) or 'none'}"
            raise UnknownKind(message)
        found = {name: self.kinds[name] for name in wanted}
        for kind in found.values():
            kind.check()
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Any]:
        """Enter the lifespan, if there is one, and yield what it yields."""
        if self._lifespan is None:
            yield None
            return
        async with self._lifespan(self) as deps:
            yield deps
