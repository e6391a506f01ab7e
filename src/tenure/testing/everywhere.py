"""Dying everywhere: a run of your own kind, in real processes that end at each boundary of its store calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tenure.app import App, Kind
from tenure.errors import NotAllowed
from tenure.testing.boundary import Boundary, Side

DIED = 9
"""How a process ends at its boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, and what was done on the way: effects as noted, calls of steps, tools and models."""

    status: str
    outcome: str
    effects: Mapping[str, int]
    calls: Mapping[str, int]
    again: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twice:
    """An effect that was done more often than in a run without a death; `at` is the boundary."""

    name: str
    at: str
    times: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.name}: {self.times} times, dying {self.at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """What came of dying at each boundary; `str` of it is a page for people.

    `twice` are noted effects done more often than without a death. `repeated` are steps and calls that were in flight
    at the death and were made again: that cannot be avoided, an idempotency key makes it harmless. `wrong` says which
    runs ended otherwise than without a death, or made again what had been recorded: a defect.
    """

    changes: Sequence[str]
    boundaries: int
    deaths: int
    clean: Ending
    twice: Sequence[Twice] = field(default_factory=tuple)
    repeated: Sequence[Twice] = field(default_factory=tuple)
    wrong: Sequence[str] = field(default_factory=tuple)

    @property
    def done_twice(self) -> set[str]:
        """Return the names of the effects that were done more than once."""
        return {entry.name for entry in self.twice}

    @property
    def ok(self) -> bool:
        """Return whether every run ended as without a death, with no effect done twice."""
        return not self.twice and not self.wrong

    def __str__(self) -> str:
        """Return the page."""
        lines = [f"{self.deaths} deaths at {self.boundaries} boundaries of {len(self.changes)} changes"]
        for title, entries in (("done twice", self.twice), ("made again, in flight", self.repeated)):
            lines += [f"{title}: {entry}" for entry in entries]
        return "\n".join([*lines, *(f"WRONG: {line}" for line in self.wrong)])


def crash_everywhere(
    kind: Kind[Any, Any],
    input: Any,
    /,
    *,
    sides: Sequence[str] = ("before", "after"),
    approve: bool = False,
    signals: Mapping[str, Any] | None = None,
) -> CrashReport:
    """Die at each boundary of a run of the kind, recover each in a new process, and report effects done twice.

    Processes are real and end by `os._exit`; each run has a SQLite file of its own in a temporary folder, and time that
    it waits for is skipped. The kind stands at the top level of its module, alone or in an App there (whose other kinds
    and lifespan are used), because other processes import it. Effects are what `note_effect` was told of. Where the run
    waits for a person, `approve` says yes to every request; where it waits for a signal, `signals` has it by name.
    """
    module, attribute = _place_of(kind)
    with tempfile.TemporaryDirectory(prefix="tenure-crash-") as folder, _Stage(folder) as stage:
        stage.tell(
            {
                "module": module.__name__,
                "file": getattr(module, "__file__", None),
                "attribute": attribute,
                "path": sys.path,
                "kind": kind.name,
                "input": kind.encode_input(input),
                "folder": folder,
                "approve": approve,
                "signals": dict(signals or {}),
            }
        )
        clean = stage.play("clean", "")
        clean_end = _ending(clean)
        changes: list[str] = clean["seen"]
        points = [Boundary(at=at, side=Side(side)) for at in range(1, len(changes) + 1) for side in sides]
        ends = [(point, stage.play(str(point).replace(":", "-"), str(point))) for point in points]
    deaths = sum(found["code"] == DIED for _, found in ends)
    told = [(f"{p.side.value} change {p.at} ({changes[p.at - 1].split()[0]})", _ending(found)) for p, found in ends]
    return CrashReport(
        changes=changes,
        boundaries=len(points),
        deaths=deaths,
        clean=clean_end,
        twice=[entry for at, end in told for entry in _more(end.effects, clean_end.effects, at)],
        repeated=[entry for at, end in told for entry in _more(end.calls, clean_end.calls, at)],
        wrong=[line for at, end in told for line in _wrong(at, end, clean_end)],
    )


def _more(found: Mapping[str, int], clean: Mapping[str, int], at: str) -> Iterable[Twice]:
    for name, times in sorted(found.items()):
        if times > max(1, clean.get(name, 0)):
            yield Twice(name=name, at=at, times=times)


def _wrong(at: str, end: Ending, clean: Ending) -> Iterable[str]:
    if (end.status, end.outcome) != (clean.status, clean.outcome):
        yield f"dying {at}, it is {end.status} ({end.outcome}), and without a death {clean.status} ({clean.outcome})"
    if end.again:
        yield f"dying {at}, {', '.join(end.again)} had been recorded and was made again"
    if lost := sorted(set(clean.effects) - set(end.effects)):
        yield f"dying {at}, {', '.join(lost)} never took place"


def _ending(found: Mapping[str, Any]) -> Ending:
    lines: list[dict[str, Any]] = found["lines"]
    notes = {(line["name"], line["key"] or str(n)) for n, line in enumerate(lines) if line["what"] == "effect"}
    calls = [(line["name"], line["attempt"]) for line in lines if line["what"] == "call"]
    landed: Mapping[str, int] = found["landed"]
    return Ending(
        status=found["status"],
        outcome=found["outcome"],
        effects=Counter(name for name, _ in notes),
        calls=Counter(name for name, _ in calls),
        again=sorted({name for name, attempt in calls if attempt > landed.get(name, attempt)}),
    )


def _place_of(kind: Kind[Any, Any]) -> tuple[ModuleType, str]:
    """The module whose top level holds the kind, and under which name: an App that has it goes before the kind."""
    found: list[tuple[bool, ModuleType, str]] = []
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is kind or (isinstance(value, App) and value.kinds.get(kind.name) is kind):
                home = module.__name__ == getattr(kind.fn, "__module__", "")
                found.append((home, module, name))
    if not found:
        message = (
            f"kind {kind.name} stands at the top level of no module, so no other process can import it; move it there"
        )
        raise NotAllowed(message)
    best = max(home for home, _, _ in found)
    places = [(module, name) for home, module, name in found if home is best]
    apps = [place for place in places if isinstance(vars(place[0])[place[1]], App)]
    return (apps or places)[0]


class _Stage:
    """The process that has imported the kind, and forks a fresh one for each death and each recovery."""

    def __init__(self, folder: str) -> None:
        self._errors = Path(folder) / "errors"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tenure.testing._everywhere_stage"]
        home = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
            )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def tell(self, order: Mapping[str, Any], /) -> dict[str, Any]:
        """Return the answer to an order; RuntimeError with what the process said if it has none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise self._failed("the process that should play the run has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def play(self, name: str, boundary: str) -> dict[str, Any]:
        """Return what came of one run that dies at the boundary and is recovered."""
        found = self.tell({"name": name, "boundary": boundary})
        if "status" not in found:
            raise self._failed(f"the run could not be played ({found.get('code')}), dying {boundary or 'nowhere'}")
        return found

    def _failed(self, what: str) -> RuntimeError:
        said = self._errors.read_text(errors="replace")[-4000:]
        return RuntimeError(f"{what}; it said:\n{said}")
