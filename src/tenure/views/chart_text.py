"""The lease timeline in a terminal: one line of characters a run, and under it who held the run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from tenure.core.text import count
from tenure.views.figures import clean, cut, duration, instant, short_id
from tenure.views.timeline import Bar, Chart, Dot, Lane, Mark, Span

if TYPE_CHECKING:
    from rich.text import Text

GUTTER = 24
NARROWEST = 50
_SPAN = {Span.LEASED: "-", Span.RUNNING_OUT: ".", Span.SUSPENDED: "~"}
_MARK = {
    Mark.COMMIT: "#",
    Mark.DIED: "X",
    Mark.ASLEEP: "Z",
    Mark.REFUSED: "!",
    Mark.ENDED: "|",
    Mark.EVICTED: "E",
    Mark.COMPLETED: "*",
    Mark.FAILED: "F",
    Mark.CANCELLED: "C",
    Mark.QUARANTINED: "Q",
    Mark.LIVE: ">",
}
_MARK_STYLE = {
    Mark.DIED: "bold red",
    Mark.ASLEEP: "bold magenta",
    Mark.REFUSED: "bold red",
    Mark.EVICTED: "bold red",
    Mark.COMPLETED: "bold green",
    Mark.FAILED: "bold red",
    Mark.CANCELLED: "bold",
    Mark.QUARANTINED: "bold red",
}
OWNER_STYLES = ("blue", "cyan", "green", "magenta", "yellow", "bright_blue", "bright_cyan", "bright_magenta")


def draw(chart: Chart, /, *, width: int = 100) -> list[Text]:
    """Return the lines of a chart: the axis, two lines a run, the legend; `width` in characters."""
    from rich.text import Text

    columns = max(NARROWEST, width) - GUTTER
    styles = {owner: OWNER_STYLES[i % len(OWNER_STYLES)] for i, owner in enumerate(chart.owners)}
    lines = [Text(_axis(chart, columns), style="dim")]
    for lane in chart.lanes:
        lines += [_lane(lane, chart, columns, styles), _holders(lane, chart, columns, styles), Text("")]
    lines += [Text(line, style="dim") for line in (*_legend(chart, width), _span_of_time(chart))]
    return lines


def _span_of_time(chart: Chart) -> str:
    length = duration(chart.until_ms - chart.from_ms)
    return f"{count(len(chart.lanes), 'run')} · {length} from {instant(chart.from_ms)}"


def column(ms: int, chart: Chart, columns: int) -> int:
    """Return the column of an instant, 0 to columns - 1; what lies outside the chart sticks to its edge."""
    place = (ms - chart.from_ms) * (columns - 1) // max(1, chart.until_ms - chart.from_ms)
    return max(0, min(columns - 1, place))


def _axis(chart: Chart, columns: int) -> str:
    cells = [" "] * columns
    end = duration(chart.until_ms - chart.from_ms)
    for step in range(4):
        text = duration((chart.until_ms - chart.from_ms) * step // 4) if step else "0"
        place = (columns - 1) * step // 4
        if place + len(text) + 1 < columns - len(end):
            cells[place : place + len(text)] = text
    cells[columns - len(end) :] = end
    return " " * GUTTER + "".join(cells)


def _lane(lane: Lane, chart: Chart, columns: int, styles: dict[str, str]) -> Text:
    from rich.text import Text

    cells = [(" ", "")] * columns
    # Leases last: what touches one may not cover the only column that a short lease has.
    for bar in sorted(lane.bars, key=lambda bar: bar.span is Span.LEASED):
        if bar.span is Span.WAITING or bar.until_ms < chart.from_ms:
            continue
        style = styles.get(bar.owner, "") if bar.span is Span.LEASED else "dim"
        for place in range(column(bar.from_ms, chart, columns), column(bar.until_ms, chart, columns) + 1):
            cells[place] = (_SPAN[bar.span], style)
    for dot in lane.dots:
        if dot.mark is Mark.COMMIT and dot.at_ms >= chart.from_ms:
            cells[column(dot.at_ms, chart, columns)] = ("#", "bold")
    taken: set[int] = set()
    for dot in _told(lane.dots, chart):
        place = _free(column(dot.at_ms, chart, columns), taken, columns)
        taken.add(place)
        cells[place] = (_MARK[dot.mark], _MARK_STYLE.get(dot.mark, styles.get(dot.owner, "")))
    line = Text(f"{short_id(lane.run):<{GUTTER}}")
    for style, some in groupby(cells, key=lambda cell: cell[1]):
        line.append("".join(char for char, _ in some), style=style or None)
    line.rstrip()
    return line


def _told(dots: Iterable[Dot], chart: Chart) -> list[Dot]:
    return [dot for dot in dots if dot.mark is not Mark.COMMIT and dot.at_ms >= chart.from_ms]


def _free(place: int, taken: set[int], columns: int) -> int:
    """The nearest column without a mark: a refusal may not hide the death that explains it."""
    for away in range(columns):
        for near in (place + away, place - away):
            if 0 <= near < columns and near not in taken:
                return near
    return place


def _holders(lane: Lane, chart: Chart, columns: int, styles: dict[str, str]) -> Text:
    """Grant numbers and owners, each under the start of its bar; the owner is left out where the next one begins."""
    from rich.text import Text

    line = Text(f"  {cut(clean(lane.kind), GUTTER - 4):<{GUTTER - 2}}", style="dim")
    bars = [bar for bar in lane.bars if bar.span is Span.LEASED and bar.until_ms >= chart.from_ms]
    end = 0
    for bar, room in zip(bars, _rooms(bars, chart, columns), strict=True):
        begin = max(column(bar.from_ms, chart, columns), end)
        number, name = f"#{bar.ordinal}", clean(bar.owner)
        text = f"{number} {name}"
        if room == columns:  # the last one may begin before its bar rather than be cut at the edge
            begin = max(end, min(begin, columns - len(text)))
        if begin + len(text) > room:
            left = room - begin - len(number) - 1
            text = f"{number} {cut(name, left)}" if left >= 4 else number
        if begin + len(text) > room:
            continue
        line.append(" " * (begin - end))
        line.append(text, style=styles.get(bar.owner))
        end = begin + len(text) + 1
        line.append(" ")
    line.rstrip()
    return line


def _rooms(bars: list[Bar], chart: Chart, columns: int) -> list[int]:
    """Where each label must have ended: a space before the next bar begins, or the edge."""
    begins = [column(bar.from_ms, chart, columns) for bar in bars[1:]]
    return [*(begin - 1 for begin in begins), columns][: len(bars)]


def _legend(chart: Chart, width: int) -> list[str]:
    """What the characters mean, as far as they are drawn, in lines of at most `width`."""
    spans = {bar.span for lane in chart.lanes for bar in lane.bars}
    marks = {dot.mark for lane in chart.lanes for dot in lane.dots}
    told = [f"{_SPAN[span]} {span.value}" for span in Span if span in spans and span is not Span.WAITING]
    told += [f"{_MARK[mark]} {mark.value}" for mark in Mark if mark in marks]
    lines: list[str] = []
    for one in told:
        if lines and len(lines[-1]) + 2 + len(one) <= width:
            lines[-1] += f"  {one}"
        else:
            lines.append(one)
    return lines
