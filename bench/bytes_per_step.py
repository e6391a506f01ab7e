"""What a step costs in bytes, as ratios: what stays of a run to its events, and a late step to an early one.

    python bench/bytes_per_step.py --store sqlite|redis7|valkey9 [--steps 400]

A step adds an event of about 3 KB. Exits 1 above a bar.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio

from tenure.core import build, journal
from tenure.core.run import Claim
from tenure.stores import open_store
from tenure.testing.servers import REDIS7, VALKEY9, RedisServer, ServerKind, server_section, start_server

STEP_BYTES = 2975
LATE_TO_EARLY = 1.1
EARLY = slice(9, 29)  # step 10 and the 19 after it
LATE = slice(-20, None)


class Meter(Protocol):
    """One kind of store, and how its bytes are counted."""

    @property
    def url(self) -> str:
        """The store's URL."""
        ...

    @property
    def kept(self) -> tuple[str, float]:
        """What the bytes that stay are called, and their bar."""
        ...

    def written_bytes(self) -> int:
        """All bytes written up to now."""
        ...

    def kept_bytes(self) -> int:
        """The bytes that stay; asked before the run and after it, with the store closed."""
        ...


@dataclass
class SqliteMeter:
    """The size of the file after a checkpoint, and the bytes that this process passed to the file system."""

    path: Path
    kept: tuple[str, float] = ("file after a checkpoint", 1.5)

    @property
    def url(self) -> str:
        """A file in a folder of its own."""
        return f"sqlite:///{self.path}"

    def written_bytes(self) -> int:
        """What the kernel has counted for this process."""
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines())
        return int(counts["wchar"])

    def kept_bytes(self) -> int:
        """The size of the file, into which the last connection that closed has moved the log."""
        if self.path.with_name(self.path.name + "-wal").exists():
            sys.exit("the log is still there, so the file is not all that is kept")
        return self.path.stat().st_size


@contextmanager
def sqlite() -> Iterator[Meter]:
    """A new file, gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield SqliteMeter(Path(folder) / "bytes.db")


@dataclass
class ServerMeter:
    """What a server has appended to its append-only file."""

    server: RedisServer
    kept: tuple[str, float] = ("append-only file", 1.3)

    @property
    def url(self) -> str:
        """The private server."""
        return self.server.url

    def written_bytes(self) -> int:
        """The size of the append-only file and of what is on its way into it; it is never rewritten here."""
        said = server_section(self.server.url, "persistence")
        return int(said["aof_current_size"]) + int(said["aof_buffer_length"])

    def kept_bytes(self) -> int:
        """The same: what was appended stays."""
        return self.written_bytes()


@contextmanager
def server(kind: ServerKind) -> Iterator[Meter]:
    """A private server, gone at the end."""
    options = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
    with start_server(kind, options=options) as started:
        yield ServerMeter(started)


METERS: dict[str, Callable[[], AbstractContextManager[Meter]]] = {
    "sqlite": sqlite,
    "redis7": partial(server, REDIS7),
    "valkey9": partial(server, VALKEY9),
}


async def run_steps(meter: Meter, steps: int) -> tuple[int, list[int]]:
    """The bytes of the events, and the bytes written by each step."""
    events_bytes, written = 0, []
    async with open_store(meter.url) as store:
        await store.commit(build.create(run="run", kind="bench", value={}))
        claim = Claim(run="run", nonce="0" * 32, owner="bench", ttl_ms=3_600_000)
        run = (await store.commit(claim)).run or sys.exit("the claim brought no run")
        grant = build.grant_of(run)
        seq, head = run.last_seq, run.head
        for number in range(steps):
            event = journal.event(journal.CHECKPOINT, value=f"{number:08d}".ljust(STEP_BYTES - 44, "x"))
            events_bytes += len(event)
            change = build.commit(grant, seq + 1, head, [event], step=1)
            before = meter.written_bytes()
            answer = await store.commit(change)
            written.append(meter.written_bytes() - before)
            if not answer.ok:
                sys.exit(f"step {number + 1} was refused: {answer.why}")
            seq, head = change.row.seq, change.row.digest
    return events_bytes, written


async def open_and_close(meter: Meter) -> None:
    """Make the store, so that what is kept before the first run is known."""
    async with open_store(meter.url):
        pass


def measure(name: str, steps: int) -> bool:
    """Print one line a bar; whether all of them hold."""
    with METERS[name]() as meter:
        anyio.run(open_and_close, meter)
        empty = meter.kept_bytes()
        events_bytes, written = anyio.run(run_steps, meter, steps)
        kept = meter.kept_bytes() - empty
    early, late = statistics.median(written[EARLY]), statistics.median(written[LATE])
    print(f"{name}: {steps} steps, {events_bytes} bytes of events, {sum(written) / events_bytes:.2f} x that written")
    return all(
        [
            held(f"{meter.kept[0]} to its events", kept / events_bytes, meter.kept[1]),
            held(f"bytes written by step {steps} ({late:.0f}) to step 10 ({early:.0f})", late / early, LATE_TO_EARLY),
        ]
    )


def held(what: str, ratio: float, bar: float) -> bool:
    """Print one ratio beside its bar; whether it is below."""
    print(f"{what}: {ratio:.3f} (bar {bar}, {'held' if ratio < bar else 'MISSED'})")
    return ratio < bar


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=sorted(METERS), required=True)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    if asked.steps < 100:
        sys.exit("fewer than 100 steps say nothing; ask for 100 or more")
    sys.exit(not measure(asked.store, asked.steps))
