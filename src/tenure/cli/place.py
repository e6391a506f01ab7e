"""Where a command works: the store, the namespace, the lease time; and how a command is made of an async function."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.exits import UsageError
from tenure.cli.lines import LineFormatter, SettingOnce
from tenure.errors import RunNotFound

if TYPE_CHECKING:
    from tenure.ledger import Ledger
    from tenure.store import Store

DEFAULT_URL = "sqlite:///.tenure/tenure.db"
DEFAULT_TTL_S = 30.0
LOG_LEVELS = ("debug", "info", "warning", "error")

StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", show_default=False, help="May also stand before the command.")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", show_default=False, help="May also stand before the command."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the global options and the environment say; the URL may hold a password and is never printed."""

    url: str
    namespace: str
    ttl_s: float
    redact: bool = False

    @classmethod
    def of(
        cls,
        *,
        store: str | None = None,
        namespace: str | None = None,
        ttl_s: float = DEFAULT_TTL_S,
        redact: bool = False,
    ) -> Place:
        """Return the place that the options name, with the defaults for what they leave out."""
        for option, given in (("--store", store), ("--namespace", namespace)):
            if given == "":  # a variable that nobody set: the default would be another place than was meant
                message = f"{option} is empty; name one, or leave the option out for the default"
                raise UsageError(message)
        return cls(url=store or DEFAULT_URL, namespace=namespace or "default", ttl_s=ttl_s, redact=redact)

    def __post_init__(self) -> None:
        """Spell the URL as it is looked at, wherever on the line it stood."""
        from tenure.stores._spelling import lower

        object.__setattr__(self, "url", lower(self.url))

    def store(self, *, creates: bool = False) -> Store:
        """Return the store, not yet open; a file that is not there is made only by what puts runs into it."""
        from tenure.stores import open_store

        url = self.url
        if url.startswith("sqlite:") and not creates:
            url += f"{'&' if '?' in url else '?'}create=off"
        return open_store(url, namespace=self.namespace)

    def lasting(self) -> Store:
        """Return the store for a command that puts runs into it and ends; UsageError if they would end with it."""
        store = self.store(creates=True)
        if getattr(store, "alone", False):
            message = (
                "memory:// ends with this process, and the runs in it; "
                "leave --store out or name a store that lasts, for example --store sqlite:///runs.db"
            )
            raise UsageError(message)
        return store

    def without(self, run_id: str) -> RunNotFound:
        """Return the error for a run that is not here; it names where was looked."""
        store = self.store()
        message = f"no run {run_id} is in {store.url}, namespace {store.namespace}; `tenure runs` lists what is there"
        return RunNotFound(message, run_id=run_id)

    @asynccontextmanager
    async def ledger(self, *, creates: bool = False) -> AsyncIterator[Ledger]:
        """Open the store and a ledger on it; with `creates` a lasting one, made if it is not there."""
        from tenure.ledger import Ledger

        async with (
            self.lasting() if creates else self.store() as store,
            Ledger(store, owner="console", ttl=self.ttl_s, redact=self.redact) as ledger,
        ):
            yield ledger

    def __repr__(self) -> str:
        return f"Place(namespace={self.namespace!r}, ttl_s={self.ttl_s})"


def command(
    app: typer.Typer, /, name: str | None = None, *, of_group: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `async def f(place, ...)` (or a plain one) as a command.

    Its own parameters are typer's; --store and --namespace are added, so they may stand before or after the command.
    An int that it returns is the exit code. With `of_group` it is what the group does when no command of it is named.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function, eval_str=True)
        shared = [
            inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY, annotation=StoreOption, default=None),
            inspect.Parameter("namespace", inspect.Parameter.KEYWORD_ONLY, annotation=NamespaceOption, default=None),
        ]
        mine = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(own.parameters.values())[1:]]

        @functools.wraps(function)
        def run(*, ctx: typer.Context, store: str | None, namespace: str | None, **arguments: Any) -> Any:
            place: Place = ctx.obj
            if ctx.invoked_subcommand is not None:
                ctx.obj = replace(place, url=store or place.url, namespace=namespace or place.namespace)
                return None
            place = replace(place, url=store or place.url, namespace=namespace or place.namespace)
            if not inspect.iscoroutinefunction(function):
                return function(place, **arguments)
            try:
                return _in_loop(functools.partial(function, place, **arguments))
            except RunNotFound as error:
                raise place.without(error.run_id or "") from None

        run.__signature__ = own.replace(parameters=[*mine, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*mine, *shared)}
        (app.callback(invoke_without_command=True) if of_group else app.command(name))(run)
        return function

    return register


def _in_loop(function: Callable[[], Awaitable[Any]]) -> Any:
    import anyio

    return anyio.run(function)


def logging_to_stderr(level: str, /) -> None:
    """Send the log of this package from `level` on to stderr; UsageError for a level that is none."""
    if level.lower() not in LOG_LEVELS:
        message = f"the log level {level[:20]!r} is none of {', '.join(LOG_LEVELS)}; set TENURE_LOG to one of them"
        raise UsageError(message)
    ours = logging.getLogger("tenure")
    for handler in [handler for handler in ours.handlers if isinstance(handler, _ToStderr)]:
        ours.removeHandler(handler)
    handler = _ToStderr()
    handler.setFormatter(LineFormatter())
    handler.addFilter(SettingOnce())
    ours.addHandler(handler)
    ours.setLevel(level.upper())


class _ToStderr(logging.Handler):
    """Ours, so that a second call replaces it and no other; to what stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; a stderr that is gone is no reason to stop."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + "\n")
