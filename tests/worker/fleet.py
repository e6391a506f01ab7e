"""Real worker processes: started, killed, frozen and asked to stop; what they did is read from their notes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the app's notes: when (nanoseconds of boot time), in which process, what."""

    at_ns: int
    pid: int
    what: str


class Fleet:
    """A folder, a store, and the `tenure worker` processes started on them."""

    def __init__(self, room: Path, url: str, namespace: str) -> None:
        self.room = room
        self.url = url
        self.namespace = namespace
        self.processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            **os.environ,
            "FLEET_DIR": str(room),
            "TENURE_STORE": url,
            "TENURE_NAMESPACE": namespace,
            "TENURE_LOG": "info",
            "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(HERE)]),
        }

    def worker(self, *options: str, ttl: float = 30, app: str = "fleet_app:app") -> subprocess.Popen[bytes]:
        """Start `tenure worker`."""
        log = (self.room / f"log.{len(self.processes)}").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "worker", app, *options],
            env={**self.env, "TENURE_TTL": str(ttl)},
            stderr=log,
            stdout=log,
            stdin=subprocess.DEVNULL,
        )
        log.close()
        self.processes.append(process)
        return process

    def log(self, number: int = 0) -> str:
        """What a worker has logged."""
        return (self.room / f"log.{number}").read_text()

    def open_gate(self, name: str) -> None:
        """Make the file that handlers wait for."""
        (self.room / name).touch()

    def notes(self, start: str = "") -> list[Note]:
        """What the app has noted so far, in the order written."""
        with suppress(FileNotFoundError):
            lines = (self.room / "notes").read_text().splitlines()
            found = [Note(int(at), int(pid), what) for at, pid, what in (line.split(" ", 2) for line in lines)]
            return [note for note in found if note.what.startswith(start)]
        return []

    def end(self) -> None:
        """Kill whatever was started, children first."""
        for process in self.processes:
            for pid in children(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()


@contextmanager
def fleet(room: Path, url: str, namespace: str) -> Iterator[Fleet]:
    """A fleet that is gone when the block ends; what was logged is shown if it fails."""
    made = Fleet(room, url, namespace)
    try:
        yield made
    except BaseException:
        for number in range(len(made.processes)):
            print(f"--- log {number}\n{made.log(number)[-6000:]}")
        print("--- notes", *made.notes(), sep="\n")
        raise
    finally:
        made.end()


def children(pid: int) -> list[int]:
    """The processes that a process has started and not reaped, zombies left out."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in found if alive(child)]
    return []


def alive(pid: int) -> bool:
    """Whether a process runs (or is stopped) and is no zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(test: Callable[[], object], *, seconds: float = 20) -> None:
    """Wait until a fact is so."""
    until = time.monotonic() + seconds
    while not test():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.005)


def free_port() -> int:
    """A port of the loopback interface that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def asked(port: int, path: str) -> int:
    """The HTTP status of a health question; 0 if nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
