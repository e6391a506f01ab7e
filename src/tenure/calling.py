"""How a function of the user is called: awaited, or in a worker thread that is counted until it has ended."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import sys
import threading
import traceback
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread

from tenure.codec import adapter
from tenure.errors import NotAllowed, said
from tenure.heartbeat import native_loop, soon
from tenure.retry import Exited


class Threads:
    """The worker threads of one run. A thread cannot be stopped: its caller may leave, and it still counts as busy."""

    def __init__(self) -> None:
        # No limit of our own: a plain handler keeps a thread while its steps need more of them, so any limit that both
        # share can be used up by handlers alone.
        self._limiter = anyio.CapacityLimiter(math.inf)
        self._guard = threading.Lock()
        self._busy: set[int] = set()
        self._quiet = anyio.Event()
        self._loop = native_loop()

    @property
    def busy(self) -> int:
        """Return how many threads still run something."""
        return len(self._busy)

    async def call(self, fn: Callable[[], Any], /) -> Any:
        """Return what `fn` returns from a thread; cancellation gives up the wait and leaves the thread to its end."""
        return await anyio.to_thread.run_sync(self._counted, fn, abandon_on_cancel=True, limiter=self._limiter)

    async def ended(self) -> None:
        """Wait until no thread runs anything."""
        while True:
            with self._guard:
                if not self._busy:
                    return
                self._quiet = anyio.Event()
            await self._quiet.wait()

    def stacks(self) -> str:
        """Return where the busy threads stand."""
        frames = sys._current_frames()  # noqa: SLF001 - the only way to see a thread that does not come back
        with self._guard:
            found = [frames[ident] for ident in self._busy if ident in frames]
        return "\n".join("".join(traceback.format_stack(frame)) for frame in found)

    def _counted(self, fn: Callable[[], Any]) -> Any:
        ident = threading.get_ident()
        with self._guard:
            self._busy.add(ident)
        try:
            return fn()
        finally:
            with self._guard:
                self._busy.discard(ident)
                quiet = None if self._busy else self._quiet
            if quiet is not None:
                soon(self._loop, quiet.set)


async def invoke(fn: Callable[..., Any], args: tuple[Any, ...], threads: Threads, /) -> Any:
    """Return what `fn` returns: awaited if it is a coroutine function, else called in a worker thread.

    A plain function that returns an awaitable (a lambda around a coroutine) is awaited on the loop. Exited if it calls
    sys.exit, which ends that call and not the process.
    """
    try:
        if is_async(fn):
            return await fn(*args)
        found = await threads.call(functools.partial(fn, *args))
        return await found if inspect.isawaitable(found) else found
    except SystemExit as error:
        raise Exited(error.code) from error


def cancelled_from_outside() -> bool:
    """Return whether the cancellation that is being raised came from outside the call.

    If not, something in the call was cancelled, a task that it awaited for example, and nobody asked the call to end.
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another event loop, which raises no cancellation of its own accord
        return True
    return task is None or task.cancelling() > 0


def is_async(fn: Callable[..., Any], /) -> bool:
    """Return whether calling `fn` gives a coroutine, seen through partials and callable objects."""
    plain = unwrapped(fn)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004


def unwrapped(fn: Callable[..., Any], /) -> Callable[..., Any]:
    """Return the function inside partials."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def hints_of(fn: Callable[..., Any], /) -> dict[str, Any]:
    """Return the resolved annotations of a function; NotAllowed for one that names what its module does not have."""
    plain = unwrapped(fn)
    if not inspect.isroutine(plain) and not isinstance(plain, type):
        plain = type(plain).__call__
    try:
        return typing.get_type_hints(plain, include_extras=True)
    except (NameError, TypeError) as error:
        name = getattr(plain, "__qualname__", repr(plain))
        message = f"an annotation of {name} cannot be resolved ({error}); name types of the module's top level"
        raise NotAllowed(message) from None


def returns_of(fn: Callable[..., Any], /) -> Any:
    """Return the annotated type of a function's result, Any without one; an annotated awaitable is looked into."""
    if isinstance(unwrapped(fn), type):
        return unwrapped(fn)
    try:
        found = hints_of(fn).get("return", Any)
    except NotAllowed as error:
        message = f"{error.message}, or pass returns="
        raise NotAllowed(message) from None
    if typing.get_origin(found) in (Coroutine, Awaitable):
        found = typing.get_args(found)[-1]
    return readable(found)


def readable(type_: Any, /) -> Any:
    """Return the type if values of it can be stored and read; NotAllowed says so before anything is called."""
    if type_ is Any:
        return type_
    try:
        adapter(type_)
    except Exception as error:  # noqa: BLE001 - a type may build its schema by code of its own
        shown = getattr(type_, "__name__", str(type_))
        why = said(error).partition("\n")[0][:200]
        message = f"values of {shown} cannot be stored; annotate a JSON type, a dataclass or a pydantic model ({why})"
        raise NotAllowed(message) from None
    return type_
