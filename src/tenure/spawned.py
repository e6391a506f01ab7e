"""One child as its supervisor sees it: a process in a group of its own, the grants on its list, and two pipes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from tenure.core.run import LEADER_ID, End, How

log = logging.getLogger("tenure.supervisor")

SIGNALS = {signal.SIGTERM, signal.SIGINT}


@dataclass(slots=True, eq=False)
class Spawned:
    """A child; `grants` is run to (token, nonce), `culprits` are runs for which this supervisor killed it."""

    name: str
    spare: bool
    process: subprocess.Popen[bytes]
    pidfd: int
    orders_fd: int
    lines_fd: int
    grants: dict[str, tuple[int, str]] = field(default_factory=dict)
    culprits: set[str] = field(default_factory=set)
    killed: str = ""
    fatal: tuple[str, str] | None = None
    owner: str = ""
    begun: bool = False
    ready: bool = False
    silent: bool = False
    drained: bool = False
    gone: bool = False
    silent_s: float = 0.0
    loop_ms: int = 0
    heartbeat_ms: int = 0
    _rest: bytes = b""

    def order(self, what: str, **said: Any) -> None:
        """Give an order; one to a child that is gone, or that does not read, is lost."""
        if self.gone:
            return
        with suppress(OSError):
            os.write(self.orders_fd, json.dumps({"t": what, **said}).encode() + b"\n")

    def kill(self, why: str) -> None:
        """Kill the child, by its supervisor's own decision; nothing if it is gone."""
        if self.gone:
            return
        self.killed = self.killed or why
        log.error("child %s (pid %d) is killed: %s", self.name, self.process.pid, why)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def read(self) -> list[Mapping[str, Any]]:
        """Return the lines that have arrived."""
        while True:
            try:
                data = os.read(self.lines_fd, 65536)
            except BlockingIOError:
                break
            if not data:
                self.silent = True
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def take_in(self, line: Mapping[str, Any], /) -> None:
        """Take in one line."""
        self.silent_s = 0.0
        match line["t"]:
            case "granted":
                # One that holds something has begun, even if it is frozen before it told its first state.
                self.begun = True
                self.grants[line["run"]] = (line["token"], line["nonce"])
            case "ended":
                if self.grants.get(line["run"], (0, ""))[0] == line["token"]:
                    del self.grants[line["run"]]
            case "state":
                self.begun = True
                self.ready, self.loop_ms, self.heartbeat_ms = line["ready"], line["loop_ms"], line["heartbeat_ms"]
            case "named":
                self.owner = line["owner"]
            case "drained":
                self.drained = True
            case "fatal":
                self.fatal = (line["code"], line["message"])
            case _:
                pass

    async def died(self, on_lines: Callable[[], None]) -> str:
        """Read lines until the process ends; return how it ended. What is left of its group is killed first."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, on_lines)
            await anyio.wait_readable(self.pidfd)
            tasks.cancel_scope.cancel()
        # Not reaped yet, so the number of the group still is this one's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        on_lines()
        code = self.process.wait()
        # From here on the numbers of the process and of its pipes may be given out anew.
        self.gone = True
        for fd in (self.pidfd, self.orders_fd, self.lines_fd):
            os.close(fd)
        if code < 0:
            with suppress(ValueError):
                return f"signal {-code} ({signal.Signals(-code).name})"
            return f"signal {-code}"
        return f"exit status {code}"

    async def _listen(self, on_lines: Callable[[], None]) -> None:
        # The end of the pipe is only a hint, never certain death: from then on the process itself is waited for.
        while not self.silent:
            await anyio.wait_readable(self.lines_fd)
            on_lines()

    def ends(self, how_it_ended: str, *, orderly: bool) -> list[End]:
        """Return the changes that end what the child held: who killed it is blamed, or all who shared its death."""
        found = []
        for run, (token, nonce) in self.grants.items():
            innocent = orderly or run == LEADER_ID or (self.culprits and run not in self.culprits)
            reason = f"{self.killed}; {how_it_ended}" if self.killed else how_it_ended
            how = How.YIELD if innocent else How.FORFEIT
            found.append(End(run=run, how=how, token=token, nonce=nonce, reason=reason[:200], by="supervisor"))
        return found


def spawn(command: Sequence[str], settings: Mapping[str, Any], /, *, name: str, spare: bool) -> Spawned:
    """Start a child by `command` with the numbers of its two pipes behind it, and tell it what to work on.

    OSError if there is no process or descriptor to be had. Settings go by the pipe: a store's URL may hold a password,
    and an argument is for everybody to read.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        orders_in, orders_out = os.pipe()
        theirs.callback(os.close, orders_in)
        ours.callback(os.close, orders_out)
        lines_in, lines_out = os.pipe()
        theirs.callback(os.close, lines_out)
        ours.callback(os.close, lines_in)
        process = _started([*command, str(orders_in), str(lines_out)], (orders_in, lines_out))
        # Should this fail, the process finds its pipe of orders at its end, and leaves.
        pidfd = os.pidfd_open(process.pid)
        ours.pop_all()
    os.set_blocking(lines_in, False)
    os.set_blocking(orders_out, False)
    child = Spawned(name=name, spare=spare, process=process, pidfd=pidfd, orders_fd=orders_out, lines_fd=lines_in)
    child.order("start", **{**settings, "name": name, "spare": spare})
    return child


def _started(command: Sequence[str], fds: tuple[int, int]) -> subprocess.Popen[bytes]:
    # Blocked until the child has handlers of its own, so that a signal to the whole service does not end it before.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603 - our own
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
