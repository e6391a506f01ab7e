"""One private server process: its folder, its place, and how it is killed."""

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tenure.testing._parent import dying_with_parent

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0


class ServerMissing(RuntimeError):
    """No server of this kind can be had here; the message says how to get one."""


class ServerProcess:
    """What every private server has in common: a folder with its log, a process, and a `with` block that ends both."""

    folder: Path
    wrapper: tuple[str, ...] = ()
    """What the server's command stands behind, `env NAME=VALUE` for example."""
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it and wait until it answers."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop it and remove its folder."""
        raise NotImplementedError

    def log(self) -> str:
        """What it wrote so far."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        """Start it unless it runs."""
        if self._process is None:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running; start() it first")
        return self._process


class RedisServer(ServerProcess):
    """One Redis or Valkey process with a folder of its own.

    `options` are lines of its configuration file (`{"appendonly": "yes", "replicaof": "127.0.0.1 7001"}`); without any
    it keeps nothing on disk. Leaving the `with` block stops it and removes the folder, unless the folder was given.
    """

    arguments: tuple[str, ...] = ()
    """What follows the configuration file on the command line."""

    def __init__(
        self,
        program: Path,
        *,
        options: Mapping[str, str | int] | None = None,
        folder: Path | None = None,
        unix: bool = False,
    ) -> None:
        self._program = program
        self._own_folder = None if folder else Path(tempfile.mkdtemp(prefix="tenure-"))
        self.folder = folder or Path(self._own_folder or ".")
        self.socket_path = self.folder / "s" if unix else None
        self.port = 0
        self.bus_port = 0
        self._options = {"save": '""', "appendonly": "no", "repl-diskless-sync-delay": 0, **(options or {})}

    @property
    def url(self) -> str:
        """Where it answers; the same after a restart."""
        return f"unix://{self.socket_path}" if self.socket_path else f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, for signals of your own."""
        return self._running().pid

    def start(self) -> Self:
        """Start it, or start it again on the data it left; returns when it answers PING (so the data is loaded)."""
        if self._process is not None:
            raise RuntimeError(f"{self.url} is already running; stop() or kill() it first")
        # A port is free only until somebody takes it: the first start tries several, a later one has to keep its own.
        tries = 1 if self.port or self.socket_path else 5
        for left in reversed(range(tries)):
            if not self.port and not self.socket_path:
                self.port = free_port()
            self._spawn()
            try:
                self._await_pong()
            except ServerMissing:
                self.kill()
                if not left or "in use" not in self.log():
                    raise
                self.port = 0
            else:
                break
        return self

    def stop(self) -> None:
        """End it with SIGTERM (the append-only file is flushed) and wait; SIGKILL if it does not listen."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it with SIGKILL and wait: what was not on disk is lost."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> Self:
        """Stop it and start it again on its data, at the same place."""
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """Stop its clock hands with SIGSTOP: connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it, or end it and remove its folder if it made one."""
        if self._own_folder is None:
            self.stop()
            return
        self.kill()  # in order it would wait ten seconds for a replica that lags, and save what is removed
        shutil.rmtree(self._own_folder, ignore_errors=True)

    def _spawn(self) -> None:
        place = {"port": 0, "unixsocket": f'"{self.socket_path}"'} if self.socket_path else {"port": self.port}
        lines = {"bind": "127.0.0.1", "dir": f'"{self.folder}"', **place, **self._options}
        path = self.folder / "server.conf"
        # Written once per place: what a server rewrote itself (CONFIG REWRITE after a failover) holds over a restart.
        if not path.exists() or f"\nport {place['port']}\n" not in path.read_text():
            path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        command = [*self.wrapper, str(self._program), str(path), *self.arguments]
        self._process = spawn(command, self.folder / "server.log")

    def _await_pong(self) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        process = self._running()
        while time.monotonic() < until:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                if self._ping().startswith(b"+PONG"):
                    return
            time.sleep(0.01)
        raise ServerMissing(f"{self._program} did not answer at {self.url}; its log ends: {self.log()[-2000:]}")

    def _ping(self) -> bytes:
        family = socket.AF_UNIX if self.socket_path else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as line:
            line.settimeout(1)
            line.connect(str(self.socket_path) if self.socket_path else ("127.0.0.1", self.port))
            line.sendall(b"PING\r\n")
            return line.recv(256)


def await_states(pids: Sequence[int], states: str) -> None:
    """Wait until each process is in one of these states, as /proc names them, or gone."""
    until = time.monotonic() + STOP_TIMEOUT_S
    for pid in pids:
        with contextlib.suppress(OSError):  # it is gone
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in states:
                if time.monotonic() > until:
                    raise ServerMissing(f"process {pid} is not where it was sent to")
                time.sleep(0.002)


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    # Below the range that outgoing connections are given, so that nobody takes the port while its server is down.
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerMissing("no free loopback port between 20000 and 32000; stop what holds them")


def spawn(
    command: list[str], log: Path, *, cwd: Path | None = None, user: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one; what it says goes to `log`. `user` are options of setpriv."""
    return _spawner(os.getpid()).submit(_popen, command, log, cwd, user).result()


@functools.cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    # The kernel's "die with your parent" means the parent *thread*: servers are started by one that lives as long as
    # this process. By pid, because a forked child has no such thread.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"tenure-servers-{pid}")


def _popen(command: list[str], log: Path, cwd: Path | None, user: Sequence[str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:  # the server's own logfile would miss why it could not read its configuration
        # In a session of its own: Ctrl-C goes to all processes of a terminal, and who started it decides when it ends.
        return subprocess.Popen(
            dying_with_parent(command, user=user),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
