"""The workers' own call logs: files outside the store, one for each worker, written before and after each call.

Times are nanoseconds since boot, which every process of one machine reads alike, a frozen one included.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.clock import SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a call log."""

    worker: str
    what: str
    at_ns: int
    run: str
    said: dict[str, Any]


class Book:
    """The call log of one worker; a line is on the disk before the call that it tells of goes on."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.worker = worker
        self._clock = SystemClock()
        self._file = os.open(folder / f"{worker}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, run: str, **said: Any) -> None:
        """Append one line."""
        line = {"worker": self.worker, "what": what, "at_ns": self._clock.boot_ns(), "run": run, "said": said}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)


def read(folder: Path) -> list[Line]:
    """Return the lines of all workers in the order of time; a line cut by a kill is passed over."""
    lines: list[Line] = []
    for file in sorted(folder.glob("*.log")):
        for text in file.read_text().splitlines():
            try:
                lines.append(Line(**json.loads(text)))
            except ValueError:
                continue
    return sorted(lines, key=lambda line: line.at_ns)
