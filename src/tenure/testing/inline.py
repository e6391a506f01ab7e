"""Runs executed where the test is: no server, no worker process, and no waiting for what is due in two days."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from tenure.app import App, Kind
from tenure.calling import is_async
from tenure.clock import ManualClock
from tenure.errors import NotAllowed, RunDeclined, RunFailed, RunSuspended
from tenure.executing import Execution, NoReports
from tenure.handle import TERMINAL, Handle
from tenure.lease import Lease
from tenure.ledger import Ledger
from tenure.looks import Looks
from tenure.store import Store
from tenure.stores import open_store

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

AT_ONCE = 100
LOOK_S = 0.02
_GIVEN = object()


class Inline:
    """A place where runs are executed when they are asked for: `async with Inline(app) as inline:`.

    Takes an app, or kinds. The store is `memory://` on `clock`, a clock that stands still until somebody advances it;
    a `store` that is given is opened by its owner, on a clock of its own unless `clock` says which one it reads.
    `deps` replaces what the app's lifespan yields.
    """

    def __init__(
        self,
        app: App | Kind[Any, Any],
        /,
        *more: Kind[Any, Any],
        store: Store | None = None,
        clock: ManualClock | None = None,
        deps: Any = _GIVEN,
    ) -> None:
        self.clock = clock if clock is not None or store is not None else ManualClock()
        self.store: Store = store if store is not None else open_store("memory://", clock=self.clock)
        self.raised: dict[str, Exception] = {}
        self.began: Callable[[Any], None] = lambda _: None
        self._opens = store is None
        self._given = app
        kinds = [*(app.kinds.values() if isinstance(app, App) else [app]), *more]
        given = app if isinstance(app, App) else App()
        self._app = App(version=given.version or None, redact=given.redaction)
        self._app.kinds.update({kind.name: self._seen(kind) for kind in kinds})
        self._deps = deps
        self._stack = AsyncExitStack()
        self._in_hand = 0
        self._ended = anyio.Event()

    async def __aenter__(self) -> Self:
        """Open the store, a ledger on it, and the app's lifespan."""
        await self._stack.__aenter__()
        try:
            if self._opens:
                await self._stack.enter_async_context(self.store)
            ledger = Ledger(self.store, code_version=self._app.version, redact=self._app.redaction)
            self.ledger = await self._stack.enter_async_context(ledger)
            if self._deps is _GIVEN:
                app = self._given
                self._deps = await self._stack.enter_async_context(app.running()) if isinstance(app, App) else None
            self._looks = Looks(self.ledger, self._app.served())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""
        await self._stack.__aexit__(kind, error, trace)

    async def submit(self, kind: Kind[In, Out], input: In, /, **more: Any) -> Handle[Out]:
        """Queue a run; it is executed by `idle` or `result`. `more` is what `Ledger.submit` takes."""
        return await self.ledger.submit(kind, input, **more)

    async def idle(self) -> None:
        """Execute what is due, and what becomes due by it, until nothing is."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._ended = anyio.Event()
                found = await self._looks.look(AT_ONCE, empty=not self._in_hand)
                for lease in found.leases:
                    self._in_hand += 1
                    tasks.start_soon(self._execute, lease)
                if self._in_hand:
                    with anyio.move_on_after(LOOK_S):
                        await self._ended.wait()
                elif not found.again and not found.crowded:
                    return

    async def result(self, handle: Handle[Out], /, *, skip: bool = True) -> Out:
        """Execute until the run has ended, and return its result; what its handler raised is the cause of RunFailed.

        Where nothing is due, the clock is moved to the next run that will be; with `skip=False`, or where a run waits
        for a decision or a signal, RunSuspended says what for.
        """
        while True:
            await self.idle()
            run = await handle.load()
            if run.status in TERMINAL:
                try:
                    return await handle.result()
                except RunFailed as failed:
                    raise failed from self.raised.get(run.id)
            due_ms = await self.store.next_due_ms(tuple(self._app.kinds))
            now_ms = (await self.store.facts()).now_ms
            if due_ms is not None and due_ms <= now_ms:
                message = f"run {run.id} is due and is not taken here; the log says why (kinds, version, shape)"
                raise RunDeclined(message, run=run)
            if due_ms is None or not skip:
                waits_ms = None if run.due_ms is None else run.due_ms - now_ms
                when = "a decision or a signal" if waits_ms is None else f"{waits_ms / 1000:g} s to pass"
                message = f"run {run.id} is {run.status.value} and waits for {when}; post it or advance the clock"
                raise RunSuspended(message, run=run)
            if self.clock is None:
                message = f"run {run.id} is due in {(due_ms - now_ms) / 1000:g} s; pass the clock= that the store reads"
                raise NotAllowed(message, run=run)
            self.clock.advance(ms=due_ms - now_ms)

    async def _execute(self, lease: Lease) -> None:
        try:
            execution = Execution(lease=lease, probation=False, began=self.began)
            await execution.run(self._app, self.ledger, self._deps, NoReports())
        finally:
            self._in_hand -= 1
            self._ended.set()

    def _seen(self, kind: Kind[Any, Any]) -> Kind[Any, Any]:
        """The same kind, whose errors are kept for who asks for the result."""
        fn = kind.fn

        @functools.wraps(fn)
        async def awaited(run: Any, input: Any) -> Any:
            try:
                return await fn(run, input)
            except Exception as error:
                self.raised[run.id] = error
                raise

        @functools.wraps(fn)
        def called(run: Any, input: Any) -> Any:
            try:
                return fn(run, input)
            except Exception as error:
                self.raised[run.id] = error
                raise

        return kind.with_handler(awaited if is_async(fn) else called)


async def run_inline_async(
    kind: Kind[In, Out],
    input: In,
    /,
    *,
    id: str | None = None,
    app: App | None = None,
    timeout: float | None = 60,
    **options: Any,
) -> Out:
    """Return the result of one run, executed here; time that it waits for is skipped.

    `app` brings the kinds of its child runs and its lifespan, `options` are those of `Inline`. RunFailed has what the
    handler raised as its cause, RunSuspended says that it waits for somebody; `timeout` in seconds.
    """
    with anyio.fail_after(timeout):
        async with Inline(kind if app is None else app, **options) as inline:
            return await inline.result(await inline.submit(kind, input, id=id))


def run_inline(kind: Kind[In, Out], input: In, /, **options: Any) -> Out:
    """Return the result of one run, without a server; `run_inline_async` says what the options are.

    May be called with or without a running event loop: one that runs is left to itself, and blocked until the end.
    """
    call = functools.partial(run_inline_async, kind, input, **options)
    return outside(functools.partial(anyio.run, call))


def outside(fn: Callable[[], T], /) -> T:
    """Return what `fn`, which starts an event loop, returns: in a thread of its own where a loop runs in this one."""
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return fn()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(fn).result()
