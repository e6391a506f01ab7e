"""An agent: a model, instructions, tools and the type of its output. It holds no state and knows of no store."""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, overload

from tenure.active import ActiveRun
from tenure.agent.context import ContextPolicy
from tenure.agent.model import Model, ModelRequest
from tenure.agent.tool import Effect, Tool, tool
from tenure.agent.trouble import PATIENT
from tenure.codec import adapter, from_json_value
from tenure.core import canonical, journal
from tenure.core.budget import Budget
from tenure.core.ids import kind_name
from tenure.core.loop import SHAPE, Ask, Finish
from tenure.core.messages import SystemMessage, Text, ToolCall
from tenure.core.text import shown
from tenure.errors import InvalidContent, NotAllowed
from tenure.retry import Retry

Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBoundary:
    """Where a step stands: its answer has landed, and `calls` have no result, after a takeover those that are left."""

    scope: str
    step: int
    calls: tuple[ToolCall, ...]


BeforeCalls = Callable[[StepBoundary], Awaitable[None] | None]
"""May wait as long as it likes, put the run off with TryLater, or end it by any other error."""


def _function(given: object) -> Callable[..., Any]:
    if not callable(given):
        message = f"{shown(given)} is among the tools of an agent; a tool is a function"
        raise NotAllowed(message)
    return given


def _model(given: Model) -> Model:
    """A model as it is; NotAllowed for what is none: the name of one, its class."""
    if not callable(getattr(given, "ask", None)) or not isinstance(getattr(given, "name", None), str):
        message = f"{shown(given)} is no model: one has a name and an async ask; see docs/agents.md"
        raise NotAllowed(message)
    return given


class Agent(Generic[Out]):
    """What runs; the same agent may serve any number of runs at once.

    `name` is the kind of its runs. `max_steps` bounds the answers of the model in one run, over all its attempts.
    Instructions, model and settings may change between attempts; the journal says when they did. `context` is applied
    before each question in the order given. `enforce_lineage` fails a run with LINEAGE_BROKEN before its model is shown
    something that the journal does not explain.

    `budget` is what a run may use over all its attempts. `retry` is how often a model is asked that was not reached,
    was busy or failed on its side; `model_timeout` (seconds) holds for each time. `max_output` is how many characters
    of a result the model is shown, unless the tool says another number; the whole one is kept beside the journal.
    `before_calls` is called, and awaited, when a step's calls have landed and none of them has been made. `parallel` is
    how many calls that may be repeated are under way at once; others were announced together and start together.
    """

    @overload
    def __init__(
        self: Agent[str],
        model: Model,
        /,
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Callable[..., Any]] = (),
        max_steps: int = 20,
        settings: Mapping[str, Any] | None = None,
        context: ContextPolicy | Sequence[ContextPolicy] = (),
        enforce_lineage: bool = False,
        budget: Budget | None = None,
        retry: Retry = PATIENT,
        model_timeout: float | None = None,
        max_output: int | None = None,
        before_calls: BeforeCalls | None = None,
        parallel: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Model,
        /,
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Callable[..., Any]] = (),
        output: type[Out],
        max_steps: int = 20,
        settings: Mapping[str, Any] | None = None,
        context: ContextPolicy | Sequence[ContextPolicy] = (),
        enforce_lineage: bool = False,
        budget: Budget | None = None,
        retry: Retry = PATIENT,
        model_timeout: float | None = None,
        max_output: int | None = None,
        before_calls: BeforeCalls | None = None,
        parallel: int | None = None,
    ) -> None: ...

    def __init__(
        self,
        model: Model,
        /,
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Callable[..., Any]] = (),
        output: Any = str,
        max_steps: int = 20,
        settings: Mapping[str, Any] | None = None,
        context: ContextPolicy | Sequence[ContextPolicy] = (),
        enforce_lineage: bool = False,
        budget: Budget | None = None,
        retry: Retry = PATIENT,
        model_timeout: float | None = None,
        max_output: int | None = None,
        before_calls: BeforeCalls | None = None,
        parallel: int | None = None,
    ) -> None:
        self.model = _model(model)
        self.name = kind_name(name)
        self.instructions = instructions
        self.output: Any = output
        self.max_steps = max_steps
        self.settings = dict(settings or {})
        self.context: tuple[ContextPolicy, ...] = (context,) if callable(context) else tuple(context)
        self.enforce_lineage = enforce_lineage
        self.budget = budget
        self.retry = retry
        self.model_timeout = model_timeout
        self.max_output = max_output
        self.before_calls = before_calls
        self.parallel = parallel
        self.tools: dict[str, Tool[..., Any]] = {}
        for given in tools:
            made = given if isinstance(given, Tool) else tool(_function(given))
            if made.name in self.tools:
                message = f"agent {name} has two tools named {made.name}; give one of them another name"
                raise NotAllowed(message)
            if made.effect is Effect.RECONCILE and not made.can_reconcile:
                message = f"tool {made.name} has effect 'reconcile' and no function for it; add @{made.name}.reconcile"
                raise NotAllowed(message)
            self.tools[made.name] = made
        if max_steps < 1:
            message = f"agent {name} has max_steps {max_steps}; it takes at least one step to answer"
            raise NotAllowed(message)
        if parallel is not None and parallel < 1:
            message = f"agent {name} has parallel {parallel}; at least one call has to be under way"
            raise NotAllowed(message)

    def within(self, budget: Budget, /) -> Agent[Out]:
        """Return the same agent under a budget beside its own: the lower limit holds."""
        found = copy.copy(self)
        found.budget = budget if self.budget is None else self.budget.within(budget)
        return found

    def encode_input(self, value: str, /) -> str:
        """Return the JSON value of a prompt, which is the prompt: an agent can be submitted like any kind."""
        return value

    def decode_result(self, value: Any, /) -> Out:
        """Return the typed output of its JSON value."""
        return cast("Out", from_json_value(value, self.output))

    @functools.cached_property
    def output_schema(self) -> Mapping[str, Any] | None:
        """Return the JSON schema of the output, None for plain text."""
        return None if self.output is str else adapter(self.output).json_schema()

    async def drive(self, active: ActiveRun[str], /) -> Out:
        """Go on with this agent in a run that a worker holds, and return the output; the run's input is the prompt.

        A handler may call it, between steps and waits of its own; called again, it goes on where the journal stands.
        """
        from tenure.agent.runner import drive

        whole = active.agent is self
        return await drive(self, active.lease, gate=active.steps.gate, threads=active.threads, whole=whole)

    @functools.cached_property
    def shape(self) -> Mapping[str, Any]:
        """Return what a run can depend on, as journaled: `digest` covers name, output and the schemas of the tools."""
        output = canonical.digest(canonical.encode(self.output_schema))
        tools = {name: found.digest for name, found in sorted(self.tools.items())}
        for found in self.tools.values():
            _ = found.returns  # what cannot be stored is refused before anything is called
        digest = canonical.digest(canonical.encode([self.name, output, tools]))
        return {
            "agent": self.name,
            "digest": digest,
            "output": output,
            "tools": tools,
            "model": self.model.name,
            "instructions": self.instructions,
            "settings": self.settings,
        }

    def shape_event(
        self,
        before: Mapping[str, Any],
        /,
        *,
        scope: str = "",
        stored: Callable[[Any], Any] = lambda value: value,
    ) -> list[bytes]:
        """Return the event that says what has changed since `before` was journaled; nothing if nothing has.

        `stored` makes a value what the journal holds of it.
        """
        if all(before.get(name) in (value, stored(value)) for name, value in self.shape.items()):
            return []
        return [journal.event(SHAPE, scope=scope, **self.shape)]

    def request(self, ask: Ask, /, *, run_id: str, attempt: int, scope: str = "") -> ModelRequest:
        """Return the whole question to the model."""
        system = (SystemMessage(parts=(Text(text=self.instructions),)),) if self.instructions else ()
        return ModelRequest(
            messages=(*system, *ask.messages),
            tools=self._specs,
            output_schema=self.output_schema,
            settings=self.settings,
            run_id=run_id,
            scope=scope,
            step=ask.step,
            attempt=attempt,
        )

    @functools.cached_property
    def system_digest(self) -> str:
        """Return the digest of the instructions, by which requests name them."""
        return canonical.digest(self.instructions.encode())

    @functools.cached_property
    def tools_digest(self) -> str:
        """Return the digest of everything that a model is told about the tools."""
        return canonical.digest(canonical.encode([[s.name, s.description, s.schema] for s in self._specs]))

    @functools.cached_property
    def _specs(self) -> tuple[Any, ...]:
        return tuple(found.spec for found in self.tools.values())

    def refusal(self, call: ToolCall, /) -> tuple[str, str] | None:
        """Return why this agent cannot make the call, as (type, message) for the model; None if it can."""
        found = self.tools.get(call.name)
        if found is None:
            names = ", ".join(sorted(self.tools)) or "none"
            return "UnknownTool", f"there is no tool named {call.name!r:.80}; there are: {names}"
        try:
            found.check(call.arguments)
        except InvalidContent as error:
            return "InvalidArguments", error.message
        return None

    def read(self, finish: Finish, /) -> Out:
        """Return the output of a final answer; InvalidContent if it does not fit."""
        if self.output is str:
            return cast("Out", finish.text)
        from pydantic import ValidationError

        try:
            return cast("Out", adapter(self.output).validate_json(_bare_json(finish.text)))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False, include_context=False)[:5]
            shown = "; ".join(f"{canonical.json_path(found['loc'])}: {found['msg']}" for found in problems)
            raise InvalidContent(shown, path=canonical.json_path(problems[0]["loc"])) from None


def _bare_json(text: str) -> str:
    """The JSON inside a Markdown fence, in which models like to put it; other text as it is."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped.partition("\n")[2].removesuffix("```")
    return stripped
