"""Tools: functions that a model may call, with arguments checked against their annotations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from tenure.agent.approval import Approval, approval_of
from tenure.agent.model import ToolSpec
from tenure.calling import Threads, hints_of, invoke, returns_of
from tenure.core import canonical
from tenure.core.ids import label
from tenure.errors import InvalidContent, NotAllowed
from tenure.retry import ONCE, Retry

Approving = bool | Callable[[Mapping[str, Any]], bool] | Approval | None

P = ParamSpec("P")
R = TypeVar("R")


class Effect(StrEnum):
    """What may be done about a call that may have happened or not: do it again, look, ask a person, or give it up."""

    REPEAT = "repeat"
    RECONCILE = "reconcile"
    ASK = "ask"
    FAIL = "fail"


class NotDone(StrEnum):
    """What `reconcile` returns when the call did not take effect, and may be made now."""

    NOT_DONE = "not_done"


NOT_DONE = NotDone.NOT_DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """For whom a call is made. `token` is for resources that check it, `key` for those that take an idempotency key."""

    run_id: str
    call_id: str
    attempt: int
    token: int
    scope: str = ""

    @property
    def key(self) -> str:
        """Return the idempotency key of the call: the same in each attempt of its run."""
        return ":".join(filter(None, (self.run_id, self.scope, self.call_id)))


class Tool(Generic[P, R]):
    """A function as a tool; calling it calls the function.

    The schema of the arguments is made from the annotations when it is first asked for. A first parameter annotated
    `ToolContext` is given the context and is no argument.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        /,
        *,
        name: str | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        effect: Effect | str = Effect.REPEAT,
        consequential: bool = False,
        approval: Approving = None,
        max_output: int | None = None,
    ) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), fn)
        self.fn = fn
        self.name = label(fn.__name__ if name is None else name, "tool name")
        self.description = inspect.getdoc(fn) or ""
        self.timeout = timeout
        self.retry = retry or ONCE
        self.effect = _effect(effect, self.name)
        self.consequential = consequential
        self.approval = approval_of(approval, self.name)
        self.max_output = max_output
        self._reconcile: Callable[..., Any] | None = None
        if self.marks and self.retry.attempts > 1:
            message = (
                f"tool {self.name} may not be repeated silently, and a retry repeats it; "
                "drop retry=, or declare effect='repeat' without consequential"
            )
            raise NotAllowed(message)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, with no agent in between."""
        return self.fn(*args, **kwargs)

    @property
    def marks(self) -> bool:
        """Return whether a call is announced in the journal before it is made."""
        return self.effect is not Effect.REPEAT or self.consequential

    @property
    def policy(self) -> Effect:
        """Return what is done about a call in doubt; a consequential one is never repeated silently."""
        return Effect.ASK if self.consequential and self.effect is Effect.REPEAT else self.effect

    def reconcile(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Decorate the function that finds out how a call in doubt ended.

        It takes what the tool takes (the context first, if it is annotated) and returns the call's result, or NOT_DONE
        if the call did not take effect. If it raises, a person is asked.
        """
        if self.effect is not Effect.RECONCILE:
            message = f"tool {self.name} has effect {self.effect}; declare effect='reconcile' to reconcile its calls"
            raise NotAllowed(message)
        self._reconcile = fn
        return fn

    @functools.cached_property
    def returns(self) -> Any:
        """Return the annotated type of the result, Any without one; NotAllowed if its values cannot be stored."""
        return returns_of(self.fn)

    @functools.cached_property
    def schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the arguments."""
        return cast("Mapping[str, Any]", self._arguments.model_json_schema())

    @functools.cached_property
    def digest(self) -> str:
        """Return the digest of the argument schema, by which shapes are compared."""
        return canonical.digest(canonical.encode(self.schema))

    @property
    def spec(self) -> ToolSpec:
        """Return what a model is told."""
        return ToolSpec(name=self.name, description=self.description, schema=self.schema)

    @functools.cached_property
    def _arguments(self) -> Any:
        from pydantic import ConfigDict, Field, create_model

        hints = hints_of(self.fn)
        fields: dict[str, Any] = {}
        for index, parameter in enumerate(_parameters(self.fn)):
            name = parameter.name
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                message = f"parameter {name} of tool {self.name} has no name for a model; make it a plain one"
                raise NotAllowed(message)
            default = ... if parameter.default is parameter.empty else parameter.default
            # An alias, because a parameter may be called `json` or `_x`, and a field may not.
            title = name.replace("_", " ").strip().capitalize()
            fields[f"parameter_{index}"] = (hints.get(name, Any), Field(default, alias=name, title=title))
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    def check(self, arguments: Any, /) -> dict[str, Any]:
        """Return the arguments as the function takes them; InvalidContent says which do not fit, and never their value.

        They are read in JSON mode: what a schema calls a date is a text.
        """
        found = self._read(arguments)
        return {field.alias: getattr(found, name) for name, field in type(found).model_fields.items()}

    def plain(self, arguments: Any, /) -> Any:
        """Return the JSON value of the arguments as they are read, with the defaults of what was left out."""
        try:
            return canonical.decode(self._read(arguments).model_dump_json(by_alias=True).encode())
        except InvalidContent:
            raise
        except Exception:  # noqa: BLE001 - a type of the user's that can be read and not written
            return None

    def stands(self, arguments: Any, read_as: Any, /) -> bool:
        """Return whether a call can be made with what `plain` gave before: read again, it is that, and loses nothing.

        Defaults are in it, so one that is made anew each time (an id, the time) is what it was.
        """
        try:
            found = self._read(arguments)
            same = self._read(canonical.decode(found.model_dump_json(by_alias=True).encode())) == found
            return bool(same) and self.plain(read_as) == read_as
        except Exception:  # noqa: BLE001 - a type of the user's that cannot be written, read or compared
            return False

    def _read(self, arguments: Any) -> Any:
        from pydantic import ValidationError

        try:
            # Some models say nothing where they mean an empty object.
            return self._arguments.model_validate_json(canonical.encode({} if arguments is None else arguments))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False, include_context=False)
            shown = "; ".join(f"{canonical.json_path(problem['loc'])}: {problem['msg']}" for problem in problems[:5])
            message = f"the arguments of {self.name} do not fit its schema: {shown}"
            raise InvalidContent(message, path=canonical.json_path(problems[0]["loc"])) from None

    async def invoke(self, context: ToolContext, arguments: Mapping[str, Any], /, *, threads: Threads) -> Any:
        """Return what the function returns for checked arguments; a sync function runs in a worker thread.

        Cancellation gives up the wait: a thread cannot be stopped, and it counts as busy until it has ended.
        """
        return await _invoke(self.fn, context, arguments, threads)

    @property
    def can_reconcile(self) -> bool:
        """Return whether the tool has a function that finds out how a call ended."""
        return self._reconcile is not None

    async def settle(self, context: ToolContext, arguments: Mapping[str, Any], /, *, threads: Threads) -> Any:
        """Return the result of a call in doubt, or NOT_DONE, as its `reconcile` function found it."""
        assert self._reconcile is not None, "an agent takes no tool that should reconcile and cannot"  # noqa: S101
        return await _invoke(self._reconcile, context, arguments, threads)


async def _invoke(fn: Callable[..., Any], context: ToolContext, arguments: Mapping[str, Any], threads: Threads) -> Any:
    given = (context,) if _takes_context(fn) else ()
    return await invoke(functools.partial(fn, *given, **arguments), (), threads)


@functools.lru_cache(maxsize=1024)
def _takes_context(fn: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    return first is not None and hints_of(fn).get(first.name) is ToolContext


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    found = list(inspect.signature(fn).parameters.values())
    return found[1:] if _takes_context(fn) else found


def _effect(effect: Effect | str, name: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        message = f"effect {effect!r} of tool {name} is none of {', '.join(Effect)}; choose one"
        raise NotAllowed(message) from None


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    effect: Effect | str = Effect.REPEAT,
    consequential: bool = False,
    approval: Approving = None,
    max_output: int | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    effect: Effect | str = Effect.REPEAT,
    consequential: bool = False,
    approval: Approving = None,
    max_output: int | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool; `timeout` in seconds holds for each attempt.

    `max_output` is how many characters of a result the model is shown; the whole one is kept beside the journal.

    `effect` says what is done about a call that was started and has no result: "repeat" it under the same call id,
    "reconcile" it by asking the tool, "ask" a person, or "fail" it with an error that says the outcome is unknown.
    `approval`: a person approves calls before they are made, all of them or those a function of the arguments names.
    """

    def made(fn: Callable[P, R], /) -> Tool[P, R]:
        return Tool(
            fn,
            name=name,
            timeout=timeout,
            retry=retry,
            effect=effect,
            consequential=consequential,
            approval=approval,
            max_output=max_output,
        )

    return made if fn is None else made(fn)
