"""Tables for people: rows of cells from records, grants, refused writes, inbox items and events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tenure.core.rules import TERMINAL
from tenure.core.run import GrantLine, Item, Run, Status
from tenure.core.text import count
from tenure.store import Refused
from tenure.views.figures import ago, clean, clock_time, cut, duration, instant
from tenure.views.values import left_ms, readable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

BAR_CELLS = 6
GAP = 2
LAST_COLUMN = 24
"""The last column may be cut to this before others are left out."""
TEXT_WIDTH = 160
STATUS_STYLE = {
    Status.QUEUED: "",
    Status.RUNNING: "cyan",
    Status.SUSPENDED: "yellow",
    Status.QUARANTINED: "bold red",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text and its style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A head and rows of cells; `right` names the columns of numbers.

    On a narrow terminal the last column is cut, and then those in `optional` are left out, the first one first.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()
    optional: tuple[str, ...] = ()


def fitted(table: Table, width: int, /) -> Table:
    """Return the table without the optional columns that have no room in `width` characters."""
    for name in table.optional:
        *firm, last = widths_of(table)
        if sum(firm) + GAP * len(firm) + min(last, LAST_COLUMN) <= width:
            break
        place = table.head.index(name)
        table = replace(
            table,
            head=table.head[:place] + table.head[place + 1 :],
            rows=tuple(row[:place] + row[place + 1 :] for row in table.rows),
        )
    return table


def rich_table(
    table: Table, /, *, widths: Sequence[int] = (), room: int | None = None, show_head: bool = True
) -> RichTable:
    """Return the table for a console; its columns are as wide as what is in them, or as `widths`.

    In `room` characters the last one is cut. (Left to itself rich takes as much from each column, and the narrow ones
    are gone.)
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    *firm, last = widths or widths_of(table)
    most = None if room is None else max(1, room - sum(firm) - GAP * len(firm))
    shown = RichTable(box=None, show_header=show_head, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for name, least in zip(table.head, (*firm, last if most is None else min(last, most)), strict=True):
        justify: Literal["right", "left"] = "right" if name in table.right else "left"
        edge = most if name == table.head[-1] else None
        shown.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", min_width=least, max_width=edge)
    for row in table.rows:
        shown.add_row(*(Text(clean(cell.text), style=cell.style) for cell in row))
    return shown


def widths_of(table: Table, /) -> list[int]:
    """Return the width of each column, so that the next page of a listing stands under this one."""
    from rich.cells import cell_len

    return [max(cell_len(text) for text in column) for column in _columns(table)]


def _columns(table: Table) -> list[list[str]]:
    return [[name, *(clean(row[i].text) for row in table.rows)] for i, name in enumerate(table.head)]


def runs(found: Iterable[Run], /, *, now_ms: int, served: frozenset[str] | None) -> Table:
    """Return a listing of runs; `served`: the kinds of live workers, None where nobody asked."""
    return Table(
        head=("RUN", "KIND", "STATUS", "OWNER", "GRANT", "ATTEMPT", "STEP", "LEASE", "UPDATED", "NOTE"),
        rows=tuple(_run(run, now_ms, served) for run in found),
        right=frozenset({"GRANT", "ATTEMPT", "STEP"}),
        optional=("ATTEMPT", "STEP", "GRANT", "UPDATED", "KIND", "OWNER", "LEASE"),
    )


def _run(run: Run, now_ms: int, served: frozenset[str] | None) -> tuple[Cell, ...]:
    note, style = note_on(run, now_ms=now_ms, served=served)
    return (
        Cell(run.id),
        Cell(run.kind),
        Cell(run.status.value, STATUS_STYLE[run.status]),
        Cell(run.owner if run.status is Status.RUNNING and run.owner else "-"),
        Cell(f"#{run.ordinal}" if run.ordinal else "-"),
        Cell(str(run.attempt)),
        Cell(str(run.step)),
        Cell(lease(run, now_ms)),
        Cell(ago(run.updated_ms, now_ms)),
        Cell(note, style),
    )


def lease(run: Run, now_ms: int, /) -> str:
    """Return what is left of a lease, with a bar of its share of the whole."""
    if run.status is not Status.RUNNING:
        return "-"
    if (left := left_ms(run, now_ms)) == 0:
        return "ran out"
    full = min(BAR_CELLS, -(-left * BAR_CELLS // max(1, run.granted_ttl_ms)))
    return f"{duration(left)} {'▓' * full}{'░' * (BAR_CELLS - full)}"


def note_on(run: Run, /, *, now_ms: int, served: frozenset[str] | None) -> tuple[str, str]:
    """Return what somebody should know about a run, and its style."""
    if run.status is Status.QUARANTINED:
        return f"{count(run.crashes, 'takeover')} without a step: tenure show, then release or cancel", "bold red"
    if run.status in TERMINAL:
        return (run.outcome.code if run.outcome is not None else ""), ""
    held = run.status is Status.RUNNING and left_ms(run, now_ms) > 0
    alone = served is not None and run.kind not in served and run.status is not Status.SUSPENDED
    cancelled = f"cancelled {ago(run.cancel_by_ms, now_ms)}" if run.cancel_by_ms is not None else ""
    later = run.status is Status.QUEUED and run.due_ms is not None and run.due_ms > now_ms
    due = f"due {ago(run.due_ms, now_ms)}" if later and run.due_ms is not None else ""
    if alone and not held:
        return ", ".join(filter(None, ("no live worker serves this kind", cancelled or due))), "yellow"
    if cancelled:
        return cancelled, "yellow"
    if run.status is Status.SUSPENDED:
        waits = [f"for {', '.join(run.wants)}"] if run.wants else []
        until = [f"until {instant(run.due_ms)}"] if run.due_ms is not None else []
        return f"waits {', or '.join([*waits, *until]) or 'for nothing'}", "yellow"
    if due:
        return due, "dim"
    if run.crashes:
        return f"{count(run.crashes, 'takeover')} since its last step", "yellow"
    if run.failures:
        return f"{count(run.failures, 'failure')}, tried again", "yellow"
    return (f"driven by {run.owner}, no worker serves this kind" if alone else ""), "dim"


def grants(lines: Iterable[GrantLine], /, *, open_calls: Mapping[int, tuple[str, ...]] | None = None) -> Table:
    """Return the grant log, the latest last; `open_calls` go by token."""
    calls = open_calls or {}
    return Table(
        head=("GRANT", "OWNER", "FROM", "HELD", "ENDED", "STEP", "TOKEN", "OPEN CALLS", "EVIDENCE"),
        rows=tuple(_grant(line, calls.get(line.token, ())) for line in lines),
        right=frozenset({"GRANT", "HELD", "STEP"}),
        optional=("TOKEN", "HELD", "STEP", "FROM"),
    )


def _grant(line: GrantLine, open_calls: tuple[str, ...]) -> tuple[Cell, ...]:
    ended = line.ended or "-"
    evidence = "; ".join(filter(None, (line.reason, f"by {line.by}" if line.by else "")))
    return (
        Cell(f"#{line.ordinal}"),
        Cell(line.owner),
        Cell(instant(line.from_ms)),
        Cell(duration(line.until_ms - line.from_ms) if line.ended else "-"),
        Cell(ended, "red" if ended in {"expired", "forfeit", "evict", "quarantine"} else ""),
        Cell(str(line.step) if line.ended else "-"),
        Cell(str(line.token), "dim"),
        Cell(cut(", ".join(open_calls), 60) or "-"),
        Cell(cut(evidence, TEXT_WIDTH) or "-"),
    )


def refused(lines: Iterable[Refused], /, *, ordinals: Mapping[int, int] | None = None) -> Table:
    """Return refused writes; `ordinals` turns tokens into grant numbers."""
    known = ordinals or {}

    def grant(token: int) -> Cell:
        return Cell(f"#{known[token]}" if token in known else f"token {token}")

    return Table(
        head=("AT", "OWNER", "GRANT", "WHAT", "WHY", "CURRENT"),
        rows=tuple(
            (
                Cell(clock_time(one.at_ms)),
                Cell(one.owner),
                grant(one.token),
                Cell(one.what),
                Cell(one.why, "red"),
                grant(one.current_token) if one.current_token else Cell("-"),
            )
            for one in lines
        ),
    )


def requests(run: Run, /, *, now_ms: int) -> Table:
    """Return the open requests of a run."""
    return Table(
        head=("REQUEST", "DIGEST", "EXPIRES", "WAKES"),
        rows=tuple(
            (
                Cell(name),
                Cell(request.digest),
                Cell("never" if request.expires_ms is None else ago(request.expires_ms, now_ms)),
                Cell("yes" if name in run.wants else "no"),
            )
            for name, request in sorted(run.requests.items())
        ),
    )


def inbox(items: Iterable[Item], /, *, ended: bool = False) -> Table:
    """Return inbox items; a consumed one has no body any more, and a run that has ended consumes nothing."""
    unread = "not read" if ended else "new"
    return Table(
        head=("SEQ", "AT", "ASK", "NAME", "STATE", "ITEM", "SAYS"),
        rows=tuple(
            (
                Cell(str(item.seq)),
                Cell(clock_time(item.at_ms)),
                Cell(item.ask.value),
                Cell(item.name),
                Cell("consumed" if item.consumed else unread),
                Cell(item.id),
                Cell("(in the journal)" if item.consumed else cut(readable(item.body), TEXT_WIDTH)),
            )
            for item in items
        ),
        right=frozenset({"SEQ"}),
        optional=("ITEM", "SEQ"),
    )


def events(found: Iterable[Mapping[str, Any]], /) -> Table:
    """Return events (as `event_value` gives them), each with what it carries cut to one line."""
    return Table(
        head=("AT", "TIME", "TYPE", "SCOPE", "NAME", "CONTENT"),
        rows=tuple(_event(one["at"], one["at_ms"], one["event"]) for one in found),
        optional=("SCOPE", "TIME"),
    )


def _event(at: str, at_ms: int, event: Mapping[str, Any]) -> tuple[Cell, ...]:
    content = {name: value for name, value in event.items() if name not in {"type", "scope", "name"}}
    shown = json.dumps(content, ensure_ascii=False, sort_keys=True) if content else ""
    return (
        Cell(at),
        Cell(clock_time(at_ms)),
        Cell(str(event.get("type", ""))),
        Cell(str(event.get("scope", "")) or "-"),
        Cell(str(event.get("name", "")) or "-"),
        Cell(cut(shown, TEXT_WIDTH)),
    )
