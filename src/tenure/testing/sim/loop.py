"""An event loop whose time is a number, and processes on it that can be stopped, let go on, and killed at any callback.

Nothing waits: when no callback is ready, the hands jump to the next timer. Every callback belongs to the process whose
context it was made in, so a stopped process runs nothing until it goes on, and a killed one runs nothing ever again: no
`finally`, no handler of a cancellation, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """Every process waits, and no timer is left that could wake one."""


class Process:
    """One process of a `cast`; its own clock runs at `rate` and began at `skew_s`."""

    def __init__(self, loop: SimLoop, name: str, *, cast: Any = None, rate: float = 1.0, skew_s: float = 0.0) -> None:
        self.name = name
        self.cast = cast
        self.dead = False
        self.stopped = False
        self.rate = rate
        self.skew_s = skew_s
        self.held: list[_Handle] = []
        self._loop = loop

    def start(self, main: Callable[[], Coroutine[Any, Any, None]], /) -> asyncio.Task[None]:
        """Run `main` as this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        task: asyncio.Task[None] = self._loop.create_task(context.run(main), context=context)
        return task

    def stop(self) -> None:
        """Run nothing until `go_on`."""
        self.stopped = True

    def go_on(self) -> None:
        """Run what has become ready meanwhile, timers that ran out included."""
        self.stopped = False
        held, self.held = self.held, []
        for handle in held:
            self._loop.again(handle)

    def kill(self) -> None:
        """Run nothing ever again."""
        self.dead = True
        self.held.clear()


class _Handle:
    """A callback that runs only if its process does; what asyncio and anyio do with one is to cancel it."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        """Leave it out."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Return whether it was left out."""
        return self.callback is None


class _SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address, so that the same seed takes the same course."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _SimTask.made += 1
        self._number = _SimTask.made
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """The simulated loop; `now_s` is its time in seconds, from 0.

    It is asyncio's own but for the turn: a loop without files needs no selector, and timers are a heap of (time,
    number), so that two of the same time run in the order they were made in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._soon: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._made = 0
        self.tasks: list[asyncio.Task[Any]] = []
        _SimTask.made = 0

    def time(self) -> float:
        """Return the simulated seconds."""
        return self.now_s

    def again(self, handle: _Handle) -> None:
        """Make a held callback ready."""
        self._soon.append(handle)

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> _Handle:  # type: ignore[override]
        """Run the callback in the next turn, if its process runs then."""
        handle = _Handle(callback, args, context if context is not None else contextvars.copy_context())
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is no other thread

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        """Run the callback after so many seconds, unless its process is stopped or dead then."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        """Run the callback at that time, unless its process is stopped or dead then."""
        handle = _Handle(callback, args, context if context is not None else contextvars.copy_context())
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, handle))
        return handle

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        """Return a task of this loop, which is kept: what is left of a killed process must not end before its world."""
        task = _SimTask(coro, loop=self, **named)
        self.tasks.append(task)
        return task

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, move the hands to the next timer."""
        soon, timers = self._soon, self._timers
        if not soon and not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2].callback is None:
                heapq.heappop(timers)
            if not timers:
                message = "nothing is ready and no timer runs: every process waits for ever"
                raise Stuck(message)
            self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            soon.append(heapq.heappop(timers)[2])
        for _ in range(len(soon)):
            handle = soon.popleft()
            callback = handle.callback
            if callback is None:
                continue
            process = handle.context.get(PROCESS)
            if process is not None and (process.dead or process.stopped):
                if not process.dead:
                    process.held.append(handle)
                continue
            try:
                handle.context.run(callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's own turn does
                self.call_exception_handler({"message": f"exception in {callback!r}", "exception": error})

    def _write_to_self(self) -> None:
        """There is no other thread that could wait for this loop to wake."""


class SimClock:
    """The clock of one process: its rate and skew against the simulated time."""

    def __init__(self, loop: SimLoop, process: Process, *, start_ms: int) -> None:
        self._loop = loop
        self._process = process
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Return the wall clock, which the skew has wrong."""
        return self._start_ms + int((self._loop.now_s * self._process.rate + self._process.skew_s) * 1000)

    def boot_ns(self) -> int:
        """Return nanoseconds at this process's rate; a stopped process finds that they went on."""
        return int((self._loop.now_s * self._process.rate + 1000.0 + self._process.skew_s) * 1e9)

    async def sleep(self, seconds: float, /) -> None:
        """Wait by the loop, which has no rate."""
        await asyncio.sleep(seconds)
