"""The lease timeline as values: who could write a run and when, what landed, what was refused, how it ended.

`lane` turns one record with its commits and refused writes into bars and marks; text and SVG draw the same chart. What
the record cannot say exactly is inferred once, here: a lease that ran out was last renewed one ttl before its end, and
a holder whose write was refused later had not died but slept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tenure.core.rules import TERMINAL
from tenure.core.run import GrantLine, How, Run, Status
from tenure.store import Refused


class Span(StrEnum):
    """What a stretch of a lane is."""

    LEASED = "leased"
    RUNNING_OUT = "lease running out"
    SUSPENDED = "suspended"
    WAITING = "waiting"


class Mark(StrEnum):
    """What happened at an instant."""

    COMMIT = "commit"
    DIED = "died or lost"
    ASLEEP = "frozen"
    REFUSED = "refused"
    ENDED = "handed back"
    EVICTED = "evicted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    LIVE = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One stretch of a lane; `ordinal` is the grant's number, 0 where nobody holds the run."""

    span: Span
    from_ms: int
    until_ms: int
    owner: str = ""
    ordinal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One instant of a lane."""

    mark: Mark
    at_ms: int
    owner: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One run: its bars in order, and its marks in order."""

    run: str
    kind: str
    status: Status
    bars: tuple[Bar, ...]
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lanes over one stretch of time; `owners` in the order of their first grant, for colours."""

    from_ms: int
    until_ms: int
    lanes: tuple[Lane, ...]
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """One commit, as far as a timeline needs it."""

    at_ms: int
    token: int
    seq: int


_TERMINAL_MARK = {
    Status.COMPLETED: Mark.COMPLETED,
    Status.FAILED: Mark.FAILED,
    Status.CANCELLED: Mark.CANCELLED,
    Status.QUARANTINED: Mark.QUARANTINED,
}
_ENDED_MARK = {
    How.EVICT.value: Mark.EVICTED,
    How.YIELD.value: Mark.ENDED,
    Status.QUEUED.value: Mark.ENDED,
}
SURE = (Mark.DIED, Mark.ASLEEP)
"""What somebody saw happen to a holder may be given to `lane`, which else infers it."""


def chart(lanes: Sequence[Lane], /, *, from_ms: int | None = None) -> Chart:
    """Return lanes on one axis, from the first thing they show (or `from_ms`) to the last."""
    shown = [ms for lane in lanes for bar in lane.bars for ms in (bar.from_ms, bar.until_ms)]
    shown += [dot.at_ms for lane in lanes for dot in lane.dots]
    begin = from_ms if from_ms is not None else min(shown, default=0)
    grants = sorted((bar.from_ms, bar.owner) for lane in lanes for bar in lane.bars if bar.owner)
    return Chart(
        from_ms=begin,
        until_ms=max([*shown, begin + 1]),
        lanes=tuple(lanes),
        owners=tuple(dict.fromkeys(owner for _, owner in grants)),
    )


def lane(
    run: Run,
    /,
    *,
    landed: Iterable[Landed] = (),
    refused: Iterable[Refused] = (),
    seen: Iterable[Dot] = (),
    now_ms: int,
) -> Lane:
    """Return the lane of a run at the store's `now_ms`; `seen` holds deaths and freezes that somebody witnessed."""
    commits = sorted(landed, key=lambda one: (one.at_ms, one.seq))
    told = sorted((one for one in refused if one.run == run.id), key=lambda one: one.at_ms)
    witnessed = [dot for dot in seen if dot.mark in SURE]
    bars: list[Bar] = []
    dots = [Dot(mark=Mark.COMMIT, at_ms=one.at_ms, text=f"commit {one.seq}") for one in commits]
    dots += [Dot(mark=Mark.REFUSED, at_ms=one.at_ms, owner=one.owner, text=f"{one.what}: {one.why}") for one in told]
    stop_ms = run.updated_ms if run.status in _TERMINAL_MARK else max(now_ms, run.updated_ms)
    begin_ms, between = run.created_ms, Span.WAITING
    for place, line in enumerate(run.grants):
        following_ms = run.grants[place + 1].from_ms if place + 1 < len(run.grants) else stop_ms
        _gap(bars, between, begin_ms, line.from_ms)
        held, marks = _held(
            run,
            line,
            following_ms=following_ms,
            commits=commits,
            told=told,
            witnessed=witnessed,
            now_ms=now_ms,
        )
        bars += held
        dots += marks
        begin_ms = held[-1].until_ms
        between = Span.SUSPENDED if line.ended == Status.SUSPENDED.value else Span.WAITING
    _gap(bars, between, begin_ms, stop_ms)
    if (mark := _TERMINAL_MARK.get(run.status)) is not None:
        reason = run.outcome.code if run.outcome is not None and run.status in TERMINAL else ""
        dots.append(Dot(mark=mark, at_ms=stop_ms, text=reason))
    dots.sort(key=lambda dot: dot.at_ms)
    return Lane(run=run.id, kind=run.kind, status=run.status, bars=tuple(bars), dots=tuple(dots))


def _gap(bars: list[Bar], span: Span, from_ms: int, until_ms: int) -> None:
    if until_ms > from_ms:
        bars.append(Bar(span=span, from_ms=from_ms, until_ms=until_ms))


def _held(
    run: Run,
    line: GrantLine,
    *,
    following_ms: int,
    commits: Sequence[Landed],
    told: Sequence[Refused],
    witnessed: Sequence[Dot],
    now_ms: int,
) -> tuple[list[Bar], list[Dot]]:
    """The bars of one grant, and the mark at its end."""
    open_ = line.ended == "" and run.status is Status.RUNNING
    end_ms = run.lease_until_ms if line.ended == "" else line.until_ms
    if open_ and end_ms > now_ms:
        left = f"{end_ms - now_ms} ms left"
        return [_leased(line, now_ms)], [Dot(mark=Mark.LIVE, at_ms=now_ms, owner=line.owner, text=left)]
    end_ms = max(line.from_ms, min(end_ms, following_ms))
    seen = next((dot for dot in witnessed if line.from_ms <= dot.at_ms <= end_ms and dot.owner == line.owner), None)
    if line.ended == How.FORFEIT.value:
        return [_leased(line, end_ms)], [seen or Dot(mark=Mark.DIED, at_ms=end_ms, owner=line.owner, text=line.reason)]
    if line.ended not in {"", "expired"}:
        mark = _ENDED_MARK.get(line.ended)
        dots = [Dot(mark=mark, at_ms=end_ms, owner=line.owner, text=line.reason)] if mark is not None else []
        return [_leased(line, end_ms)], dots
    heard_ms = max([line.from_ms, end_ms - run.granted_ttl_ms, *(c.at_ms for c in commits if c.token == line.token)])
    heard_ms = min(heard_ms, end_ms)
    if seen is None:
        slept = any(one.token == line.token and one.owner == line.owner for one in told)
        seen = Dot(mark=Mark.ASLEEP if slept else Mark.DIED, at_ms=heard_ms, owner=line.owner, text="last heard of")
    out = Bar(span=Span.RUNNING_OUT, from_ms=seen.at_ms, until_ms=end_ms, owner=line.owner, ordinal=line.ordinal)
    return [_leased(line, seen.at_ms), out], [seen]


def _leased(line: GrantLine, until_ms: int) -> Bar:
    until_ms = max(until_ms, line.from_ms)
    return Bar(span=Span.LEASED, from_ms=line.from_ms, until_ms=until_ms, owner=line.owner, ordinal=line.ordinal)


def chart_value(found: Chart, /) -> dict[str, Any]:
    """Return the chart as a JSON value."""
    return {
        "from_ms": found.from_ms,
        "until_ms": found.until_ms,
        "owners": list(found.owners),
        "runs": [
            {
                "id": lane.run,
                "kind": lane.kind,
                "status": lane.status.value,
                "bars": [{**asdict(bar), "span": bar.span.value} for bar in lane.bars],
                "marks": [{**asdict(dot), "mark": dot.mark.value} for dot in lane.dots],
            }
            for lane in found.lanes
        ],
    }
