"""How log lines read on a terminal; loads nothing, because every child process begins with it."""

from __future__ import annotations

import logging


class LineFormatter(logging.Formatter):
    """Log lines for people; a line of a run names the run, its attempt and its grant."""

    def __init__(self, *, worker: str = "") -> None:
        super().__init__(f"%(asctime)s %(levelname)s {worker + ' ' if worker else ''}%(name)s%(about)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; `about` is empty for a line of no run."""
        run_id = getattr(record, "run_id", "")
        parts = [f"{name} {found}" for name in ("attempt",) if (found := getattr(record, name, None)) is not None]
        parts += [f"#{found}" for name in ("ordinal",) if (found := getattr(record, name, None)) is not None]
        record.about = f" [{' '.join([str(run_id), *parts])}]" if run_id else ""
        return super().format(record)


class SettingOnce(logging.Filter):
    """Lets what a store says of how it is set pass once: each loop of a process opens it and finds the same.

    With `said` it passes not at all: who started this process has said it.
    """

    def __init__(self, *, said: bool = False) -> None:
        super().__init__()
        self._said = said
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        if not getattr(record, "setting", False):
            return True
        text = record.getMessage()
        fresh = not self._said and text not in self._seen
        self._seen.add(text)
        return fresh
