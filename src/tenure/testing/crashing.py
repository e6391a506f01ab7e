"""Deaths on order: a run that dies before, after or inside any of its writes, model calls and tool calls.

The run is the walker's: three answers of a model, three calls of a tool, two of them side by side. What it did stands
in a call log outside the store; `account` and `violations` hold it against the journal.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import anyio
import anyio.lowlevel

from tenure.agent.agent import Agent
from tenure.agent.model import ModelReply, ModelRequest
from tenure.agent.tool import ToolContext, tool
from tenure.core import journal
from tenure.core.messages import AssistantMessage, ToolCall, ToolMessage, assistant
from tenure.core.run import Answer, Change, Claim, Commit, Create, Row, Run, Status, Verdict
from tenure.core.verify import verify_run
from tenure.errors import OutcomeUnknown, TenureError
from tenure.store import Store
from tenure.testing.faults import FaultStore
from tenure.testing.models import CallLog, FunctionModel

DIED = 9
"""How a process ends at its point."""
NOT_ALREADY = 10
"""How it ends where the store did not know a request that it had taken."""
NOT_INSIDE = 12
"""How it ends where a write did not come by the place at which to die inside it."""
KIND = "walker"
PROMPT = "go"
EXPECTED = {"seen": 3, "worth": 42}
CALLED = ("model:1", "tool:c1", "tool:c2", "model:2", "tool:c3", "model:3")
UNITS = ("create", "claim", *CALLED, "end")
"""What the walker writes, in order; the second and third call are made side by side."""


class Side(StrEnum):
    """Where the process dies: for a write also when its reply was lost, and when it has been asked again."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"
    LOST = "lost"
    AGAIN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place to die: at the `write` of a unit, or at its call."""

    unit: str
    write: bool
    side: Side

    def __str__(self) -> str:
        """Return the point as one line, which `parse` reads."""
        return f"{'write' if self.write else 'call'} {self.unit} {self.side.value}"

    @classmethod
    def parse(cls, text: str, /) -> Self:
        """Return the point of a line."""
        what, unit, side = text.split()
        return cls(unit=unit, write=what == "write", side=Side(side))

    @property
    def sort(self) -> str:
        """Return the kind of point, for counts."""
        if not self.write:
            return f"{self.unit.partition(':')[0]} call {self.side.value}"
        return f"{self.unit if self.unit in ('create', 'claim') else 'commit'} {self.side.value}"

    @property
    def flying(self) -> set[str]:
        """Return the calls that may be in flight when the process dies here; what of them landed is not repeated."""
        if self.unit in ("tool:c1", "tool:c2"):
            return {"tool:c1", "tool:c2"}
        return {self.unit} & set(CALLED)


def points() -> list[Point]:
    """Return every point there is."""
    writes = [Point(unit=unit, write=True, side=side) for unit in UNITS for side in Side]
    sides = (Side.BEFORE, Side.INSIDE, Side.AFTER)
    calls = [Point(unit=unit, write=False, side=side) for unit in CALLED for side in sides]
    return writes + calls


async def exit_process(code: int) -> None:
    """Die as a killed process does: nothing is flushed, closed or handed back."""
    os._exit(code)


@dataclass(slots=True, kw_only=True)
class Fuse:
    """Ends a run's process at a point. `inside` is how far into a write it gets, 0 to 1.

    A `blow` after which the process goes on falls once, `before` or `after`.
    """

    run_id: str
    point: Point
    inside: float = 0.5
    blow: Callable[[int], Awaitable[object]] = exit_process
    burnt: bool = False

    def meets(self, change: Change) -> bool:
        """Return whether this is the write at which to die."""
        if self.burnt or not self.point.write or change.run != self.run_id:
            return False
        match change:
            case Create():
                return self.point.unit == "create"
            case Claim():
                return self.point.unit == "claim"
            case Commit():
                return self.point.unit in _named(change.row)
            case _:
                return False

    async def at(self, unit: str, side: Side) -> None:
        """Die if this is the call and its side."""
        if not self.burnt and self.point == Point(unit=unit, write=False, side=side):
            await self.burn(DIED)

    async def burn(self, code: int) -> None:
        """Let the blow fall."""
        self.burnt = True
        await self.blow(code)


def _named(row: Row) -> set[str]:
    events = journal.events_of(row)
    names = {str(event["name"]) for event in events if event["type"] in ("assistant/message", journal.RECORD)}
    return names | {"end" for event in events if event["type"] == journal.RUN_END}


class DyingStore(FaultStore):
    """Ends its process at the write that the fuse is for."""

    def __init__(self, store: Store, fuse: Fuse) -> None:
        super().__init__(store)
        self.fuse = fuse
        self._lost = False

    async def _one(self, change: Change) -> Answer | TenureError:
        fuse, side = self.fuse, self.fuse.point.side
        if self.down or not fuse.meets(change):
            return await super()._one(change)
        if side is Side.BEFORE:
            await fuse.burn(DIED)
            return await self.inner.commit(change)
        if side is Side.LOST and self._lost:
            await fuse.burn(DIED)
        met = None
        if side is Side.INSIDE:
            from tenure.testing._inside import die_inside

            met = die_inside(self.inner, change, fuse.inside, lambda: os._exit(DIED))
        answer = await self.inner.commit(change)
        if not answer.ok:
            return answer  # not granted yet: the point is the one that is
        if side in (Side.INSIDE, Side.AFTER):
            await fuse.burn(DIED if met is None or met() else NOT_INSIDE)
            return answer
        if self._lost:
            await fuse.burn(DIED if answer.verdict is Verdict.ALREADY else NOT_ALREADY)
        self._lost = True
        return OutcomeUnknown("the reply was lost; it was ordered so")


class _DyingModel(FunctionModel):
    def __init__(self, log: CallLog, fuse: Fuse | None) -> None:
        super().__init__(self._answer, name="walker-rules", log=log)
        self._fuse = fuse

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        await _at(self._fuse, f"model:{request.step}", Side.BEFORE)
        reply = await super().ask(request)
        await _at(self._fuse, f"model:{request.step}", Side.AFTER)
        return reply

    async def _answer(self, request: ModelRequest) -> AssistantMessage | str:
        await _at(self._fuse, f"model:{request.step}", Side.INSIDE)
        await anyio.lowlevel.checkpoint()
        if request.step == 1:
            calls = [ToolCall(id=f"c{n}", name="look", arguments={"at": n}) for n in (1, 2)]
            return assistant("two places", *calls)
        if request.step == 2:
            return assistant("one more", ToolCall(id="c3", name="look", arguments={"at": 3}))
        found = [part.content for m in request.messages if isinstance(m, ToolMessage) for part in m.parts]
        return f'{{"seen": {len(found)}, "worth": {sum(result["worth"] for result in found)}}}'


def walker(log: CallLog, fuse: Fuse | None = None, *, seed: str = "") -> Agent[dict[str, Any]]:
    """Return the agent, which writes each call to the log and dies where the fuse says."""

    @tool
    async def look(context: ToolContext, at: int) -> dict[str, int]:
        unit = f"tool:{context.call_id}"
        await _at(fuse, unit, Side.BEFORE)
        log.write("tool/made", run=context.run_id, call=context.call_id, attempt=context.attempt)
        await _at(fuse, unit, Side.INSIDE)
        # Which of two calls ends first, and whether their records share a commit, is the seed's.
        await anyio.sleep(random.Random(f"{seed}{context.run_id}{unit}").choice((0, 0, 0.001, 0.003)))
        await _at(fuse, unit, Side.AFTER)
        return {"at": at, "worth": at * 7}

    return Agent(_DyingModel(log, fuse), name=KIND, tools=[look], output=dict[str, Any])


async def _at(fuse: Fuse | None, unit: str, side: Side) -> None:
    if fuse is not None:
        await fuse.at(unit, side)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What landed of a run's calls, by attempt, and how often each was made, by attempt."""

    landed: Mapping[str, int]
    twice: Sequence[str]
    made: Sequence[tuple[str, int]]

    @property
    def again(self) -> list[str]:
        """Return the calls that were made by a later attempt than the one in which they had landed."""
        return [name for name, by in self.made if by > self.landed.get(name, by)]

    @property
    def repeated(self) -> list[str]:
        """Return the calls that were made more than once, landed or not."""
        return [name for name, times in Counter(name for name, _ in self.made).items() if times > 1]


def account(rows: Iterable[Row], lines: Iterable[Mapping[str, Any]]) -> Account:
    """Return the account of one run: its journal, and its lines of the call log."""
    attempt, landed, twice = 0, dict[str, int](), list[str]()
    for event in (event for row in rows for event in journal.events_of(row)):
        if event["type"] == journal.ATTEMPT_START:
            attempt = event["attempt"]
        elif event["type"] in ("assistant/message", journal.RECORD):
            twice += [event["name"]] if event["name"] in landed else []
            landed.setdefault(event["name"], attempt)
    made = [
        (f"model:{line['step']}" if "step" in line else f"tool:{line['call']}", line["attempt"])
        for line in lines
        if line["what"] in ("model/asked", "tool/made")
    ]
    return Account(landed=landed, twice=twice, made=made)


def violations(run: Run, rows: Sequence[Row], result: Any, calls: Account, died: Iterable[Point] | None) -> list[str]:
    """Return what is not as promised of a run that died at these points and was recovered.

    `died` is None where a lease may have ended anywhere, so that any call may have been in flight.
    """
    found: list[str] = []
    if run.status is not Status.COMPLETED or run.step != 3:
        found.append(f"it is {run.status.value} at step {run.step}, not completed at 3")
    if not (verified := verify_run(run, rows)).ok:
        found.append(f"its journal does not verify: {verified.failures}")
    if result != EXPECTED:
        found.append(f"its output is {result!r}")
    if (tokens := [line.token for line in run.grants]) != sorted(set(tokens)):
        found.append(f"its tokens do not rise: {tokens}")
    if set(calls.landed) != set(CALLED) or calls.twice:
        found.append(f"what landed is {sorted(calls.landed)}, and {calls.twice} twice")
    if {name for name, _ in calls.made} != set(CALLED):
        found.append(f"what was made is {sorted(set(calls.made))}")
    if calls.again:
        found.append(f"{calls.again} had landed and was made again")
    flying = set[str]().union(*(point.flying for point in died)) if died is not None else set(CALLED)
    if beyond := set(calls.repeated) - flying:
        found.append(f"{sorted(beyond)} was not in flight at a death and was repeated")
    if (most := max(Counter(calls.made).values(), default=0)) > 1:
        found.append(f"a call was made {most} times in one attempt")
    return found
