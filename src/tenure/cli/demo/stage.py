"""The play: six runs, three workers; one is killed, one frozen past its lease and thawed when its run has moved on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from tenure.cli.demo import book
from tenure.cli.demo.book import Line
from tenure.cli.demo.script import KIND
from tenure.cli.demo.verdict import Told, tell
from tenure.clock import SystemClock
from tenure.core import build
from tenure.core.rules import TERMINAL
from tenure.store import Store
from tenure.views.timeline import Mark

WORKERS = ("alpha", "bravo", "carol")
RUNS = 6
TTL_S = 1.0
UNFENCED_TTL_S = 3.0
"""Snapshots are read one by one under a turn: on a busy machine a second goes by in that."""
PATIENCE_S = 90.0


@dataclass(slots=True, kw_only=True)
class Play:
    """What one performance needs and what it came to."""

    store: Store
    url: str
    folder: Path
    seed: int
    fence: bool
    say: Callable[[str, str], None]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    begun_ns: int = 0
    killed: str = ""
    frozen: str = ""
    blows: list[tuple[str, str, Mark, int]] = field(default_factory=list)

    @property
    def runs(self) -> list[str]:
        """Return the ids of the runs."""
        return [f"run-{number}" for number in range(1, RUNS + 1)]

    @property
    def ttl_s(self) -> float:
        """Return how long leases last."""
        return TTL_S if self.fence else UNFENCED_TTL_S


def clock_s(play: Play) -> str:
    """Return the time since the start as people read it."""
    return f"{(SystemClock().boot_ns() - play.begun_ns) / 1e9:4.1f}s"


async def perform(play: Play) -> list[Told]:
    """Play it and return every run as the store holds it at the end; TimeoutError after 90 s."""
    play.begun_ns = SystemClock().boot_ns()
    with anyio.fail_after(PATIENCE_S), _workers(play):
        # All are there before there is work, so each gets a run of its own to be hit in.
        for name in WORKERS:
            await _line(play, lambda line, name=name: (line.worker, line.what) == (name, "ready"))  # type: ignore[misc]
        await _queue(play)
        drawn = random.Random(play.seed)  # noqa: S311 - a seed, not a secret
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_kill, play, "bravo", drawn.randint(2, 5))
            tasks.start_soon(_freeze, play, "carol", drawn.randint(2, 5))
            tasks.start_soon(_narrate, play)
            await _ended(play)
            tasks.cancel_scope.cancel()
    play.say(clock_s(play), "all runs completed")
    return [await tell(play.store, run_id) for run_id in play.runs]


async def _queue(play: Play) -> None:
    for number, run_id in enumerate(play.runs):
        # The first three, which the blows will hit, go before the others when they are due again.
        priority = 1 if number < len(WORKERS) else 0
        await play.store.commit(
            build.create(run=run_id, kind=KIND, value=f"read the pages of {run_id}", priority=priority)
        )
    await play.store.wake("due")
    what = "store " + (play.url.partition(":")[0] if play.fence else "check-then-write snapshots, no fence")
    play.say(clock_s(play), f"{RUNS} runs queued · workers {' '.join(WORKERS)} · {what} · lease {play.ttl_s:.1f}s")


@contextlib.contextmanager
def _workers(play: Play) -> Iterator[None]:
    for name in WORKERS:
        arguments = {
            "name": name,
            "store": play.url,
            "namespace": play.store.namespace,
            "folder": str(play.folder),
            "ttl": str(play.ttl_s),
            "seed": str(play.seed),
        }
        command = [sys.executable, "-m", "tenure.cli.demo.worker"]
        command += [word for key, value in arguments.items() for word in (f"--{key}", value)]
        if not play.fence:
            command.append("--no-fence")
        errors = (play.folder / f"{name}.err").open("wb")
        with errors:
            play.processes[name] = subprocess.Popen(command, stdout=errors, stderr=errors)  # noqa: S603 - ourselves
    try:
        yield
    finally:
        for process in play.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in play.processes.values():
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _line(play: Play, wanted: Callable[[Line], bool]) -> Line:
    while True:
        for line in book.read(play.folder):
            if wanted(line):
                return line
        await anyio.sleep(0.01)


def _units(lines: list[Line], worker: str, run: str) -> int:
    return sum(line.worker == worker and line.run == run and line.what in ("asked", "called") for line in lines)


async def _at(play: Play, worker: str, units: int, mark: str) -> Line:
    # A line is fresh while the process still stands where it was written: only then does the blow fall there.
    while True:
        lines = book.read(play.folder)
        mine = [line for line in lines if line.worker == worker]
        if mine and mine[-1].what == mark and _units(lines, worker, mine[-1].run) >= units:
            return mine[-1]
        await anyio.sleep(0.005)


async def _kill(play: Play, worker: str, units: int) -> None:
    line = await _at(play, worker, units, "asked")
    os.kill(play.processes[worker].pid, signal.SIGKILL)
    await _blow(play, line.run, worker, Mark.DIED)
    play.killed = line.run
    held = await _line(play, lambda x: (x.what, x.worker, x.run) == ("granted", worker, line.run))
    play.say(clock_s(play), f"kill -9 {worker:<12} held {line.run} under grant #{held.said['ordinal']}")


async def _freeze(play: Play, worker: str, units: int) -> None:
    line = await _at(play, worker, units, "returned" if play.fence else "checked")
    os.kill(play.processes[worker].pid, signal.SIGSTOP)
    while not await _writable(play):
        # It sleeps with the file's write lock: on one file everybody would sleep with it. Let it go, and try again.
        os.kill(play.processes[worker].pid, signal.SIGCONT)
        await anyio.sleep(0.05)
        line = await _at(play, worker, units, "returned" if play.fence else "checked")
        os.kill(play.processes[worker].pid, signal.SIGSTOP)
    await _blow(play, line.run, worker, Mark.ASLEEP)
    play.frozen = line.run
    play.say(clock_s(play), f"freeze {worker:<13} held {line.run}, {_where(play)}")
    taken = await _line(play, lambda x: x.what == "granted" and x.run == line.run and x.worker != worker)
    if play.fence:
        await anyio.sleep(0.3)
    else:
        await _completed(play, line.run)
    os.kill(play.processes[worker].pid, signal.SIGCONT)
    play.say(
        clock_s(play), f"thaw {worker:<15} {line.run} is {taken.worker}'s now, under grant #{taken.said['ordinal']}"
    )


def _where(play: Play) -> str:
    if play.fence:
        return "after a tool had returned and before that was recorded"
    return "after a save was checked and before it was written"


async def _writable(play: Play) -> bool:
    with anyio.move_on_after(0.3):
        await play.store.raise_ttl(1)
        return True
    return False


async def _blow(play: Play, run_id: str, worker: str, mark: Mark) -> None:
    play.blows.append((run_id, worker, mark, (await play.store.facts()).now_ms))


async def _completed(play: Play, run_id: str) -> None:
    while (run := await play.store.load(run_id)) is None or run.status not in TERMINAL:  # noqa: ASYNC110 - another process
        await anyio.sleep(0.05)


async def _ended(play: Play) -> None:
    # Not over before the one who slept has tried: it is what the play is about.
    woke = ("refused", "landed", "unanswered", "stopped") if play.fence else ("checked",)
    while True:
        runs = [await play.store.load(run_id) for run_id in play.runs]
        if all(run is not None and run.status in TERMINAL for run in runs) and play.frozen and play.killed:
            lines = book.read(play.folder)
            if not play.fence or any(
                x.worker == "carol" and x.run == play.frozen and x.what in woke[:3] for x in lines
            ):
                return
        await anyio.sleep(0.05)


async def _narrate(play: Play) -> None:
    told = 0
    while True:
        lines = book.read(play.folder)
        for line in lines[told:]:
            _say(play, line)
        told = len(lines)
        await anyio.sleep(0.03)


def _say(play: Play, line: Line) -> None:
    said = line.said
    if line.what == "granted" and said["attempt"] > 1:
        play.say(
            clock_s(play), f"{line.worker} takes over {line.run:<7} grant #{said['ordinal']}, attempt {said['attempt']}"
        )
    elif line.what == "stopped":
        play.say(clock_s(play), f"{line.worker} stops itself      its lease on {line.run} is over ({said['reason']})")
    elif line.what == "refused":
        play.say(
            clock_s(play),
            f"{line.worker} writes all the same: REFUSED ({said['why']}), the current grant is #{said['ordinal']}",
        )
    elif line.what == "landed":
        play.say(clock_s(play), f"{line.worker} writes all the same: LANDED")
