"""A child of the supervisor: one worker, a pipe on which it tells its grants, and a pipe on which it takes orders.

A grant is told before anything runs under it, so when the process dies the supervisor ends exactly what it held. The
end of the order pipe means that the supervisor is gone: the child drains.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from tenure.app import App
from tenure.core.run import Grant
from tenure.slots import KeptFromLooking
from tenure.store import Store
from tenure.worker import Worker

log = logging.getLogger("tenure.child")

STATE_S = 0.5
LINE_BYTES = 4000
"""Below PIPE_BUF, so that a line is written whole or not at all."""


class Pipe:
    """Where a child tells lines, from any thread; a supervisor that does not read loses some, and never blocks it."""

    def __init__(self, fd: int, /) -> None:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        # A program that a handler starts would keep the pipe open beyond this process.
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        self._fd = fd
        self._guard = threading.Lock()

    def tell(self, what: str, **said: Any) -> None:
        """Tell one line; a claim whose line is not written is left to the end of its lease."""
        data = json.dumps({"t": what, **said}).encode() + b"\n"
        with self._guard, suppress(OSError):
            os.write(self._fd, data)

    def granted(self, grant: Grant, /) -> None:
        """Tell that this process holds the grant."""
        self.tell("granted", run=grant.run, token=grant.token, nonce=grant.nonce)

    def ended(self, grant: Grant, /) -> None:
        """Tell that nothing runs under the grant any more."""
        self.tell("ended", run=grant.run, token=grant.token)

    def crowded(self, run_id: str, token: int, /) -> None:
        """Tell that a run is due which needs an empty process."""
        self.tell("crowded", run=run_id, token=token)

    def drained(self) -> None:
        """Tell that this process ends because it was told to, and that what it could not stop ends with it."""
        self.tell("drained")

    def fatal(self, code: str, message: str, /) -> None:
        """Tell why this process could not begin, and that another would not either."""
        self.tell("fatal", code=code, message=message[: LINE_BYTES // 6])


def take_orders_only_by_pipe() -> None:
    """Let SIGTERM and SIGINT do nothing: they reach a whole group, and the supervisor passes on what is meant.

    Handlers, not SIG_IGN: an ignored signal would stay ignored in the programs that a handler starts.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def first_order(fd: int, /) -> Mapping[str, Any]:
    """Return the first line of the order pipe, which says what to work on; empty if the supervisor is gone."""
    data = bytearray()
    while not data.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            return {}
        data += byte
    found: Mapping[str, Any] = json.loads(data)
    return found


async def work(app: App, store: Store, orders: Mapping[str, Any], in_fd: int, pipe: Pipe, /) -> None:
    """Work as ordered until drained."""
    worker = Worker(
        app,
        store,
        concurrency=1 if orders["spare"] else orders["concurrency"],
        kinds=orders["kinds"],
        drain=orders["drain"],
        ttl=orders["ttl"],
        name=orders["name"],
        reports=pipe,
        spare=orders["spare"],
        retention=orders.get("retention"),
    )
    ended = threading.Event()
    try:
        async with worker, anyio.create_task_group() as tasks:
            pipe.tell("named", owner=worker.ledger.owner)  # before its first look writes the row of this name
            threading.Thread(target=_watch, args=(worker, pipe, ended), name="tenure-watch", daemon=True).start()
            tasks.start_soon(_take_orders, worker, in_fd)
            await worker.ended()
            tasks.cancel_scope.cancel()
        pipe.drained()
    finally:
        # Told until here: closing may take its time on a busy machine, and who says nothing is taken for frozen.
        ended.set()


async def _take_orders(worker: Worker, fd: int) -> None:
    os.set_blocking(fd, False)
    buffer = b""
    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.wait_readable(fd)
            data = os.read(fd, 65536)
            if not data:
                log.warning("the supervisor is gone: draining")
                await worker.drain()
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                match order["t"]:
                    case "look":
                        worker.wake()
                    case "want":
                        worker.want(order["run"], order["token"])
                    case "drain":
                        tasks.start_soon(_drain, worker, order["seconds"])
                    case _:
                        log.error("unknown order %s", order["t"])


async def _drain(worker: Worker, seconds: float) -> None:
    await worker.drain(grace=seconds)


def _watch(worker: Worker, pipe: Pipe, ended: threading.Event) -> None:
    """Tell the supervisor twice a second how this process is, and which run does not stop; in a thread of its own."""
    told: set[tuple[str, int]] = set()
    clock, pulse = worker.ledger.clock, worker.ledger.pulse
    kept = KeptFromLooking(clock, STATE_S)
    while not ended.wait(STATE_S):
        now_ns = clock.boot_ns()
        pipe.tell(
            "state",
            ready=worker.ready,
            loop_ms=(now_ns - pulse.seen_ns) // 1_000_000,
            heartbeat_ms=(now_ns - pulse.turned_ns) // 1_000_000,
            at=time.monotonic(),
        )
        for execution in () if kept.now() else worker.slots.overdue():
            grant = execution.lease.grant
            if (grant.run, grant.token) not in told:
                told.add((grant.run, grant.token))
                pipe.tell("stuck", run=grant.run, token=grant.token)
