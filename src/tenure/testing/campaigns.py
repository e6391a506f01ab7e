"""Long campaigns: a file of what was judged that outlives a stop, signals that ask for one, and the evidence page."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import Any

import tenure
from tenure.testing._parent import die_with_parent

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "evidence.md"
MEMORY = Path("/dev/shm")  # noqa: S108 - with a folder of our own in it
PATIENCE_S = 10.0
STOPPED = 130
"""The exit code of a campaign that was stopped before its end."""


class CampaignRefused(Exception):
    """The state file is of another campaign, or of other code; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some seeds that were judged: from `first` on, how many, what was seen in them and what was wrong."""

    first: int
    histories: int
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The first seed behind it."""
        return self.first + self.histories


class Campaign:
    """What a campaign has judged so far, in a file of JSON lines if it has one.

    `bar` and `plan` name what is judged, so that one file never adds up two things; `plan` holds every setting that
    changes a history of a seed. A batch is written whole or not at all: a torn last line is one that nobody judged.
    """

    def __init__(self, path: Path | None = None, *, bar: str, plan: str = "", across_versions: bool = False) -> None:
        self.batches: list[Batch] = []
        self.played_by: Counter[str] = Counter()
        self._path = path
        self._version = running()
        self._head = {"bar": bar, "plan": plan}
        if path is not None:
            self._read(path, across_versions=across_versions)

    @property
    def histories(self) -> int:
        """How many histories were judged."""
        return sum(batch.histories for batch in self.batches)

    @property
    def counts(self) -> Counter[str]:
        """What was seen in all of them."""
        seen: Counter[str] = Counter()
        for batch in self.batches:
            seen.update(batch.counts)
        return seen

    @property
    def violations(self) -> list[str]:
        """What was wrong, in the order of seeds."""
        return [line for batch in sorted(self.batches, key=lambda b: b.first) for line in batch.violations]

    @property
    def versions(self) -> str:
        """Return what judged how many of the histories, as words."""
        if len(self.played_by) < 2:
            return next(iter(self.played_by), self._version)
        return "; ".join(f"{version}: {count} histories" for version, count in self.played_by.items())

    def missing(self, seeds: range, /, *, size: int) -> Iterator[range]:
        """Return what of the seeds was not judged yet, in parts of at most `size`."""
        at = seeds.start
        for batch in [*sorted(self.batches, key=lambda b: b.first), Batch(first=seeds.stop, histories=0)]:
            until = min(batch.first, seeds.stop)
            while at < until:
                yield range(at, min(at + size, until))
                at = min(at + size, until)
            at = max(at, batch.end)

    def add(self, batch: Batch, /) -> None:
        """Count a batch that was judged, and write it to the file before anything else is."""
        self.batches.append(batch)
        self.played_by[self._version] += batch.histories
        self._write(asdict(batch))

    def _read(self, path: Path, *, across_versions: bool) -> None:
        lines = list(_lines(path))
        version = ""
        for line in lines:
            if "bar" not in line:
                self.batches.append(Batch(**line))
                self.played_by[version] += self.batches[-1].histories
                continue
            version = line.pop("version")
            if line != self._head:
                message = f"{path} holds another campaign: {line}, not {self._head}; name another file with --state"
                raise CampaignRefused(message)
        if version == self._version:
            return
        if version and not across_versions:
            message = f"{path} was written by {version}, and this is {self._version}: check that version out, "
            raise CampaignRefused(message + "name another file, or add --continue-across-versions")
        self._write({**self._head, "version": self._version})

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as state:
            state.write(json.dumps(line, separators=(",", ":")) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Return the whole lines of the file, and cut off a torn last one, so that the next is not added to it."""
    if not path.exists():
        return
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        path.write_bytes(whole)
    for line in whole.splitlines():
        yield json.loads(line)


@contextlib.contextmanager
def players(processes: int, /) -> Iterator[tuple[ProcessPoolExecutor, threading.Event]]:
    """Processes that play, and an event that the first SIGINT or SIGTERM sets: what they play may come to its end.

    A second one, or an error, ends them where they are. What they make stands in a folder that is gone with them.
    """
    with stop_asked() as asked, room() as folder, contextlib.suppress(BrokenOff):
        # Not forked: who plays holds loops and threads.
        spawn = get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_deaf, initargs=(folder,)) as pool:
            try:
                yield pool, asked
            except BaseException:
                for process in active_children():
                    process.kill()
                raise


class BrokenOff(BaseException):
    """A second signal: nothing but its end may hold it up."""


@contextlib.contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """Set the event at the first SIGINT or SIGTERM; the second raises BrokenOff."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape of a signal handler
        if asked.is_set():
            signal.signal(number, signal.SIG_DFL)
            raise BrokenOff
        asked.set()
        os.write(2, b"what is being played comes to its end; once more breaks it off\n")

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def room() -> Iterator[Path]:
    """Give a folder, for the temporary files of processes that may be killed; it is gone at the end."""
    found = Path(tempfile.mkdtemp(prefix="tenure-room-"))
    found.chmod(0o755)  # servers may run as somebody else
    try:
        yield found
    finally:
        # Not by rglob: it fails where a folder goes meanwhile.
        rooms = [found, *(Path(name) for name, _, _ in os.walk(found) if "tenure-room-" in Path(name).name)]
        left = [found, *(folder for inner in rooms for folder in MEMORY.glob(f"{inner.name}-*"))]
        until_s = time.monotonic() + PATIENCE_S
        while left and time.monotonic() < until_s:
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)
            left = [folder for folder in left if folder.exists()]
            if left:
                time.sleep(0.05)  # who was killed with its parent may not be through with it


def _deaf(folder: Path) -> None:
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # who asked decides what is broken off
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def running() -> str:
    """Return what runs, as words: version, commit of the checkout and whether its source was changed since, Python."""
    commit = _git("rev-parse", "--short=7", "HEAD") if PAGE.exists() else ""
    if commit and _git("status", "--porcelain", "--", "src"):
        commit += " and changes"
    version = f"tenure {tenure.__version__}" + (f" ({commit})" if commit else "")
    return f"{version}, Python {platform.python_version()}"


def _git(*words: str) -> str:
    try:
        said = subprocess.run(
            ["git", *words],  # noqa: S607 - whichever git is here
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def record(*, bar: str, seed: int | str, counts: str, ran: str, violations: int, page: Path = PAGE) -> None:
    """Append one line to the table that ends the evidence page; there is one in a checkout only."""
    if not page.exists():
        message = f"{page} is not there: records are kept in a checkout of the source"
        raise FileNotFoundError(message)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    with page.open("a", encoding="utf-8") as lines:
        lines.write(f"| {when} | {bar} | {seed} | {counts} | {ran} | {violations} |\n")
