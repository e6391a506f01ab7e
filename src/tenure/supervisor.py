"""The supervisor: it starts children, ends at once what a dead one held, and passes on the order to stop.

It executes nothing and imports no app. Forfeited runs stay running, so the next claim is a takeover and counts; what
was beside a run for which the supervisor itself killed a child is yielded and does not count.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from tenure.clock import SystemClock
from tenure.core.run import LEADER_ID, Answer, How
from tenure.errors import NotAllowed, StoreUnavailable, TenureError, by_code
from tenure.retrying import resend
from tenure.spawned import Spawned, spawn
from tenure.store import Beat, Store

log = logging.getLogger("tenure.supervisor")

TICK_S = 0.5
CUT_S = 5.0
LONG_S = 2.0
FORGET_S = 5.0
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
MEANT = {
    How.FORFEIT: "its lease ends and the death counts against it",
    How.YIELD: "its lease ends and nothing counts against it",
}


class Supervisor:
    """Keeps `processes` children at work; `command` starts one, `settings` say what it works on.

    `drain` and `ttl` are seconds. One more child is started, at most one at a time, for runs that need an empty
    process.
    """

    def __init__(
        self,
        store: Store,
        command: Sequence[str],
        settings: Mapping[str, Any],
        /,
        *,
        processes: int,
        drain: float,
        ttl: float,
    ) -> None:
        if sys.platform != "linux":
            message = "children need process groups and pidfds of Linux; use --processes 0 here"
            raise NotAllowed(message)
        if store.url.startswith("memory:"):
            message = "memory:// is one process's own; use --processes 0, or a store that processes share"
            raise NotAllowed(message)
        self.children: set[Spawned] = set()
        self.draining = False
        self._store = store
        self._command = tuple(command)
        self._settings = dict(settings)
        self._processes = processes
        self._grace = drain
        self._ttl = ttl
        self._clock = SystemClock()
        self._born = 0
        self._began = False
        self._fatal: TenureError | None = None
        self._stop = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._places: TaskGroup | None = None

    async def run(self) -> None:
        """Supervise until SIGTERM or SIGINT and until the last child has ended; the second signal hurries them."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._obey, signals)
                tasks.start_soon(self._look_after)
                async with anyio.create_task_group() as self._places:
                    for _ in range(self._processes):
                        self._places.start_soon(self._keep)
                tasks.cancel_scope.cancel()
        if self._fatal is not None:
            raise self._fatal

    @property
    def live(self) -> bool:
        """Return whether a child's loop and heartbeat answer."""
        limit_ms = self._ttl * 1000
        return any(c.begun and c.loop_ms < limit_ms and c.heartbeat_ms < limit_ms for c in self.children)

    @property
    def ready(self) -> bool:
        """Return whether a child takes runs and its store answers."""
        return not self.draining and any(child.ready for child in self.children if not child.spare)

    async def _keep(self) -> None:
        """Keep one place taken: a child that dies is followed by another."""
        quick = 0
        while not self.draining:
            born = anyio.current_time()
            child = self._spawn(spare=False)
            began = child is not None and await self._until_dead(child)
            # One that worked is followed at once; after some that did not, or not for long, the next comes later.
            quick = 0 if began and anyio.current_time() - born > LONG_S else quick + 1
            pause_s = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** (quick - 3)) if quick > 2 or not began else 0
            with anyio.move_on_after(pause_s):
                await self._stop.wait()

    def _spawn(self, *, spare: bool) -> Spawned | None:
        self._born += 1
        name = f"{socket.gethostname()}-{os.getpid()}.{self._born}"
        try:
            child = spawn(self._command, self._settings, name=name, spare=spare)
        except OSError as error:
            # No memory, process or descriptor to be had now: the children that are there work on.
            log.error("child %s could not be started, it is tried again: %s", name, error)  # noqa: TRY400
            return None
        self.children.add(child)
        if self.draining:
            child.order("drain", seconds=0)
        log.info("child %s has pid %d%s", name, child.process.pid, ", for runs that need an empty process" * spare)
        return child

    async def _until_dead(self, child: Spawned) -> bool:
        how = await child.died(lambda: self._take_in(child))
        # Not the exit status: a run that ends its process with 0 has taken it with it all the same.
        orderly = child.drained and not child.killed
        log.log(logging.INFO if orderly or child.fatal else logging.ERROR, "child %s ended: %s", child.name, how)
        if child.fatal is not None:
            self._take_fatal(child.name, child.fatal)
        # By the child's own word an orderly one holds nothing; what it could not stop went on until just now.
        ends = child.ends(how, orderly=orderly or (self.draining and bool(child.killed)))
        self.children.discard(child)
        if ends:
            await self._end(child, ends)
        await self._forget(child)
        if child.spare:
            # It may have been on its way out when it was told of a run: whoever sees that run says so again.
            self._order_look()
        return child.begun

    def _take_fatal(self, name: str, fatal: tuple[str, str]) -> None:
        """Tell why a child could not begin; where none has begun, none will, and that is told once, at the end."""
        code, message = fatal
        if self._began:
            log.error("child %s could not begin: %s", name, message)
            return
        try:
            self._fatal = by_code(code)(message)
        except (KeyError, TypeError):
            self._fatal = NotAllowed(message)
        self._drain(0)

    async def _end(self, child: Spawned, ends: Sequence[Any]) -> None:
        try:
            answers = await resend(self._clock, self._commit, ends, within_s=self._ttl)
        except (TenureError, TimeoutError) as error:
            log.error("what child %s held runs out by itself: %s", child.name, error)  # noqa: TRY400 - it says it all
            return
        for end, answer in zip(ends, answers, strict=True):
            # That it led is nothing that anybody submitted; a lease that was over is nobody's loss.
            level = logging.INFO if end.run == LEADER_ID else logging.WARNING
            if not isinstance(answer, Answer):
                what = f"its lease was not ended and runs out by itself: {answer}"
            elif answer.ok:
                what = MEANT[end.how]
            else:
                what, level = "its lease was over before", logging.INFO
            log.log(level, "run %s of child %s: %s", end.run, child.name, what, extra={"run_id": end.run})
        self._order_look()
        await self._store.wake("due")

    async def _forget(self, child: Spawned) -> None:
        """Let the row of a dead worker end: who asks the doctor is told of those that live."""
        if child.owner and not child.drained:
            row = Beat(name=child.owner, host=socket.gethostname(), pid=child.process.pid, kinds=(), slots=0, busy=0)
            with anyio.move_on_after(FORGET_S), suppress(TenureError):
                await self._store.beat(row, ttl_ms=0)

    def _order_look(self) -> None:
        for child in self.children:
            child.order("look")

    async def _commit(self, ends: Sequence[Any]) -> Sequence[Answer | TenureError]:
        answers = await self._store.commit_many(ends)
        if any(isinstance(answer, StoreUnavailable) for answer in answers):
            raise next(answer for answer in answers if isinstance(answer, StoreUnavailable))
        return answers

    def _take_in(self, child: Spawned) -> None:
        for line in child.read():
            child.take_in(line)
            match line["t"]:
                case "state":
                    self._began = True
                case "crowded":
                    self._want(line["run"], line["token"])
                case "stuck":
                    child.culprits.add(line["run"])
                    child.kill(f"run {line['run']} did not stop when its lease had ended")
                case _:
                    pass

    def _want(self, run_id: str, token: int) -> None:
        if self.draining or self._places is None:
            return
        spare = next((child for child in self.children if child.spare), None)
        if spare is None:
            spare = self._spawn(spare=True)
            if spare is None:
                return
            self._places.start_soon(self._until_dead, spare)
        spare.order("want", run=run_id, token=token)

    async def _look_after(self) -> None:
        """Kill a child from which nothing was heard for longer than any of its leases can last."""
        before = anyio.current_time()
        while True:
            await anyio.sleep(TICK_S)
            now = anyio.current_time()
            # A tick that came late is this process's own sleep, and says nothing about the children.
            passed_s, before = min(now - before, 2 * TICK_S), now
            for child in list(self.children):
                child.silent_s += passed_s
                if child.begun and not child.killed and not child.drained and child.silent_s > self._ttl + TICK_S:
                    child.kill(f"nothing was heard of it for {child.silent_s:.0f} s")

    async def _obey(self, signals: Any) -> None:
        times = 0
        async for number in signals:
            times += 1
            log.warning("%s: %s", signal.Signals(number).name, ("draining", "stopping at once")[min(times, 2) - 1])
            self._drain(self._grace if times == 1 else 0)

    def _drain(self, grace: float) -> None:
        first, self.draining = not self.draining, True
        self._stop.set()
        for child in self.children:
            child.order("drain", seconds=grace)
        if self._tasks is not None and (first or grace == 0):
            self._tasks.start_soon(self._kill_after, grace + 2 * CUT_S)

    async def _kill_after(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        for child in list(self.children):
            child.kill("it did not end when it was drained")
