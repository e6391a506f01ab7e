"""An event loop whose time is a number, and processes on it that can be stopped, let go on, and killed at any callback.

Nothing waits: when no callback is ready, the hands jump to the next timer. Every callback belongs to the process whose
context it was made in, so a stopped process runs nothing until it goes on, and a killed one runs nothing ever again: no
`finally`, no handler of a cancellation, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """Every process waits, and no timer is left that could wake one."""


class Process:
    """One process of the simulation; its own clock runs at `rate` and began at `skew_s`."""

    def __init__(self, loop: SimLoop, name: str, *, rate: float = 1.0, skew_s: float = 0.0) -> None:
        self.name = name
        self.dead = False
        self.stopped = False
        self.rate = rate
        self.skew_s = skew_s
        self.held: list[events.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = loop

    def start(self, main: Callable[[], Coroutine[Any, Any, None]], /) -> asyncio.Task[None]:
        """Run `main` as this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        task: asyncio.Task[None] = self._loop.create_task(context.run(main), context=context)
        self.tasks.append(task)
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


class _Owned:
    """A callback that runs only if its process does."""

    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None and (process.dead or process.stopped):
            if not process.dead:
                process.held.append(self)
            return
        super()._run()  # type: ignore[misc]


class _Handle(_Owned, events.Handle):
    __slots__ = ()


class _TimerHandle(_Owned, events.TimerHandle):
    __slots__ = ()


class _Hands(selectors.SelectSelector):
    """Instead of waiting for files, moves the hands."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            message = "nothing is ready and no timer runs: every process waits for ever"
            raise Stuck(message)
        if timeout > 0:
            self.loop.now_s += timeout
        return []


class _SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address, so that the same seed takes the same course."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _SimTask.made += 1
        self._number = _SimTask.made
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.SelectorEventLoop):
    """The simulated loop; `now_s` is its time in seconds, from 0."""

    def __init__(self) -> None:
        self.now_s = 0.0
        hands = _Hands()
        super().__init__(hands)
        hands.loop = self
        _SimTask.made = 0
        self.set_task_factory(lambda loop, coro, **kwargs: _SimTask(coro, loop=loop, **kwargs))

    def time(self) -> float:
        """Return the simulated seconds."""
        return self.now_s

    def again(self, handle: events.Handle) -> None:
        """Make a held callback ready."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def _call_soon(self, callback: Any, args: Any, context: Any) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> events.TimerHandle:
        """Run the callback at that time, unless its process is stopped or dead then."""
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as the loop that this one is does
        return timer

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
