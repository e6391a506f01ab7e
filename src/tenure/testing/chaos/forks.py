"""The process that forks the others: it has imported everything and opened nothing, so a new one costs a fork.

`python -m tenure.testing.chaos.forks MODULE...` imports the modules and calls their `warm`, where
there is one, then reads lines of JSON: `{"id", "play", "order",
"errors"}` forks a process that plays an order, `{"id", "signal"}` sends it a signal. It tells `{"id", "pid"}`,
`{"id", "stopped"}` and `{"id", "code"}`, a signal as a negative code. `Stage` is the other end of the pipes.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import select
import signal
import sys
import traceback
from typing import Any

import anyio

from tenure.testing._parent import die_with_parent

ALARM_S = 120
"""A process that has not ended by then is killed, and its code says so."""
CHUNK = 1 << 20


class _Forks:
    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def serve(self) -> None:
        """Do what the lines say until the pipe ends."""
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        unread = b""
        while True:
            ready, _, _ = select.select([0, told], [], [])
            if told in ready:
                os.read(told, CHUNK)
                self._reap()
            if 0 in ready:
                said = os.read(0, CHUNK)
                if not said:
                    return
                *lines, unread = (unread + said).split(b"\n")
                for line in lines:
                    self._do(json.loads(line))

    def _do(self, said: dict[str, Any]) -> None:
        if "signal" in said:
            if (pid := self._pids.get(said["id"])) is not None:
                os.kill(pid, said["signal"])
            return
        # Held back until the child can be ended by it: this process ignores it, and so would the child at first.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if not pid:
            _play(said)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._ids[pid], self._pids[said["id"]] = said["id"], pid
        _tell(id=said["id"], pid=pid)

    def _reap(self) -> None:
        while self._ids:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                _tell(id=self._ids[pid], stopped=True)
            else:
                told = self._ids.pop(pid)
                del self._pids[told]
                _tell(id=told, code=os.waitstatus_to_exitcode(status))


def _tell(**said: Any) -> None:
    line = json.dumps(said).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


def _play(said: dict[str, Any]) -> None:
    code = 1
    try:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        nothing, errors = (
            os.open(os.devnull, os.O_RDWR),
            os.open(said["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        )
        for to, end in enumerate((nothing, nothing, errors)):
            os.dup2(end, to)
        signal.alarm(ALARM_S)
        module, _, name = said["play"].partition(":")
        code = anyio.run(getattr(sys.modules[module], name), said["order"])
    except BaseException:  # noqa: BLE001 - the code tells, and nothing of the one that forked may run on in here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(modules: list[str]) -> None:
    """Import what the processes need, and fork them until the pipe ends."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked decides what is broken off
    logging.getLogger("tenure").setLevel(logging.CRITICAL)  # what a blow brings about is said by the judge
    for name in ("anyio._backends._asyncio", *modules):
        getattr(importlib.import_module(name), "warm", int)()
    gc.collect()
    gc.freeze()
    _Forks().serve()


if __name__ == "__main__":
    main(sys.argv[1:])
