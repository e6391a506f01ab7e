"""The lease timeline as one self-contained SVG: no script, no font, no link; readable on light and on dark ground."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from tenure.core.text import count
from tenure.views.figures import clean, cut, duration, instant, short_id
from tenure.views.timeline import Bar, Chart, Dot, Lane, Mark, Span

WIDTH = 960
GUTTER = 178
EDGE = 24
TOP = 84
LANE = 52
BAR = 16
LEGEND_LINE = 22
CHAR = 6.7
"""The width of one character of 11 px monospace, a little generous."""

# One colour an owner, light enough for dark ground and dark enough for light ground and for white text.
PALETTE = ("#2f6fd0", "#0f8a7e", "#8a5cd6", "#b7791f", "#c2568a", "#4d7c0f", "#0e7490", "#a0522d")
_NICE_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000),
    *(600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000),
)
_STYLE = """
text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2933}
.head{font-size:14px;font-weight:600}.quiet{fill:#5b6875}.ground{fill:#fbfcfd}.rule{stroke:#dfe4ea;stroke-width:1}
.out{fill:none;stroke:#8b97a4;stroke-width:1.4;stroke-dasharray:3 3}.wait{stroke:#b4bec9;stroke-width:1.4}
.asleep{fill:url(#hatch);stroke:#b7791f;stroke-width:1}.hatch{stroke:#d69e2e;stroke-width:2}
.dot{fill:#fff;stroke:#1f2933;stroke-width:.8}.bad{stroke:#d02f3a;stroke-width:2.6;fill:none;stroke-linecap:round}
.flag{fill:#d02f3a}.good{fill:#15803d}.grey{fill:#6b7785}.edge{stroke:#1f2933;stroke-width:2}.glyph{font-weight:700;fill:#fff}
@media (prefers-color-scheme:dark){text{fill:#dde4ec}.quiet{fill:#93a1b0}.ground{fill:#12171d}.rule{stroke:#2a333d}
.wait{stroke:#465260}.dot{stroke:#12171d}.edge{stroke:#dde4ec}.bad{stroke:#ff6b74}.flag{fill:#ff6b74}.good{fill:#35b065}}
""".replace("\n", "")

_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The geometry that everything is drawn in."""

    chart: Chart
    width: int
    colours: dict[str, str]

    def x(self, ms: int) -> float:
        """Return the place of an instant; what lies before the chart sticks to its left edge."""
        room = self.width - GUTTER - EDGE
        share = (ms - self.chart.from_ms) / max(1, self.chart.until_ms - self.chart.from_ms)
        return GUTTER + room * max(0.0, min(1.0, share))


def draw(chart: Chart, /, *, width: int = WIDTH, title: str = "") -> str:
    """Return the SVG of a chart; the same chart gives the same bytes."""
    frame = _Frame(
        chart=chart,
        width=max(width, 480),
        colours={owner: PALETTE[i % len(PALETTE)] for i, owner in enumerate(chart.owners)},
    )
    floor = TOP + LANE * len(chart.lanes)
    legend, legend_height = _legend(frame, floor + 20)
    height = floor + 20 + legend_height
    title = title or f"Who could write {count(len(chart.lanes), 'run')}, and when"
    size = f'viewBox="0 0 {frame.width} {height}" width="{frame.width}" height="{height}"'
    when = f"{duration(chart.until_ms - chart.from_ms)} from {instant(chart.from_ms)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_text(title)}">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style>",
        _HATCH,
        f'<rect class="ground" width="{frame.width}" height="{height}" rx="8"/>',
        f'<text class="head" x="16" y="26">{_text(title)}</text>',
        f'<text class="quiet" x="16" y="44">{_text(when)}</text>',
        *_axis(frame, floor),
    ]
    for place, lane in enumerate(chart.lanes):
        parts += _lane(frame, lane, TOP + LANE * place)
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


def _text(text: str) -> str:
    return escape(clean(text), quote=True)


def _axis(frame: _Frame, floor: int) -> Iterator[str]:
    length = frame.chart.until_ms - frame.chart.from_ms
    most = (frame.width - GUTTER - EDGE) // 80
    step = next((ms for ms in _NICE_MS if length / ms <= most), max(1, length // most))
    for ms in range(0, length + 1, step):
        x = frame.x(frame.chart.from_ms + ms)
        yield f'<line class="rule" x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{floor}"/>'
        when = duration(ms) if ms else "0"
        yield f'<text class="quiet" x="{x:.1f}" y="{TOP - 16}" text-anchor="middle">{when}</text>'


def _lane(frame: _Frame, lane: Lane, top: int) -> Iterator[str]:
    y = top + 16
    yield f'<text x="16" y="{y + 8}"><title>{_text(lane.run)}</title>{_text(short_id(lane.run))}</text>'
    yield f'<text class="quiet" x="16" y="{y + 22}">{_text(cut(f"{lane.kind} · {lane.status.value}", 23))}</text>'
    for bar in sorted(lane.bars, key=lambda bar: bar.span is Span.LEASED):
        if bar.until_ms >= frame.chart.from_ms:
            yield _bar(frame, bar, y)
    yield from _labels(frame, lane, y - 5)
    yield from _dots(frame, lane, y)


def _bar(frame: _Frame, bar: Bar, y: int) -> str:
    x, end = frame.x(bar.from_ms), frame.x(bar.until_ms)
    width, middle = max(2.0, end - x), y + BAR / 2
    told = f"<title>{_text(_told(bar))}</title>"
    match bar.span:
        case Span.LEASED:
            fill = frame.colours.get(bar.owner, PALETTE[0])
            return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" fill="{fill}">{told}</rect>'
        case Span.RUNNING_OUT:
            box = f'x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{BAR - 2}"'
            return f'<rect class="out" {box} rx="3">{told}</rect>'
        case Span.SUSPENDED:
            box = f'x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{BAR - 6}"'
            return f'<rect class="asleep" {box} rx="2">{told}</rect>'
        case _:
            return f'<line class="wait" x1="{x:.1f}" y1="{middle}" x2="{end:.1f}" y2="{middle}">{told}</line>'


def _told(bar: Bar) -> str:
    who = f"#{bar.ordinal} {bar.owner}: " if bar.ordinal else ""
    return f"{who}{bar.span.value} {duration(bar.until_ms - bar.from_ms)} from {instant(bar.from_ms)}"


def _labels(frame: _Frame, lane: Lane, y: int) -> Iterator[str]:
    """Grant number and owner over each lease, as much as fits before the next label."""
    bars = [bar for bar in lane.bars if bar.span is Span.LEASED and bar.until_ms >= frame.chart.from_ms]
    ends = [*(frame.x(bar.from_ms) for bar in bars[1:]), float(frame.width - 8)]
    free = 0.0
    for bar, end in zip(bars, ends, strict=False):
        x = max(frame.x(bar.from_ms), free)
        number, name = f"#{bar.ordinal}", clean(bar.owner)
        if bar is bars[-1]:  # it may begin before its bar rather than be cut at the edge
            x = max(free, min(x, end - (len(number) + 1 + len(name)) * CHAR - 7))
        room = int((end - x - 6) / CHAR)
        left = room - len(number) - 1
        label = f"{number} {name}" if len(name) <= left else f"{number} {cut(name, left)}" if left >= 4 else number
        if len(label) > room:
            continue
        free = x + len(label) * CHAR + 6
        yield f'<text x="{x:.1f}" y="{y}">{_text(label)}</text>'


def _dots(frame: _Frame, lane: Lane, y: int) -> Iterator[str]:
    shown = [dot for dot in lane.dots if dot.at_ms >= frame.chart.from_ms]
    last = -10.0
    for dot in (dot for dot in shown if dot.mark is Mark.COMMIT):
        x = frame.x(dot.at_ms)
        if x - last >= 2.0:  # closer than that they are one dot to the eye
            last = x
            yield _glyph(dot, x, y)
    room: dict[bool, float] = {}
    for dot in (dot for dot in shown if dot.mark is not Mark.COMMIT):
        x = frame.x(dot.at_ms)
        below = dot.mark is Mark.REFUSED
        x = max(x, room.get(below, 0.0))  # two ends at one instant stand side by side
        room[below] = x + 13
        yield _glyph(dot, x, y)


def _glyph(dot: Dot, x: float, y: float) -> str:
    """One mark: its shape around the middle of a bar whose top is `y`."""
    middle = y + BAR / 2
    who = f"{dot.owner}: " if dot.owner else ""
    text = f" ({dot.text})" if dot.text else ""
    told = f"<title>{_text(f'{who}{dot.mark.value}{text}, {instant(dot.at_ms)}')}</title>"
    match dot.mark:
        case Mark.COMMIT:
            return f'<circle class="dot" cx="{x:.1f}" cy="{middle}" r="2.7">{told}</circle>'
        case Mark.DIED | Mark.EVICTED:
            path = f"M{x - 5:.1f} {middle - 5}l10 10m0 -10l-10 10"
            return f'<path class="bad" d="{path}">{told}</path>'
        case Mark.REFUSED:
            path = f"M{x:.1f} {y + BAR + 2}l5.5 9.5h-11z"
            return f'<path class="flag" d="{path}">{told}</path>'
        case Mark.ENDED:
            return f'<path class="edge" d="M{x:.1f} {y - 2}v{BAR + 4}">{told}</path>'
        case Mark.LIVE:
            return f'<path class="good" d="M{x:.1f} {middle - 7}l10 7l-10 7z">{told}</path>'
        case _:
            kind, sign = _BADGE[dot.mark]
            return (
                f'<g><circle class="{kind}" cx="{x:.1f}" cy="{middle}" r="7.5"/><text class="glyph" x="{x:.1f}" '
                f'y="{middle + 3.8}" text-anchor="middle">{sign}</text>{told}</g>'
            )


_BADGE = {
    Mark.ASLEEP: ("grey", "z"),
    Mark.COMPLETED: ("good", "✓"),
    Mark.FAILED: ("flag", "F"),
    Mark.CANCELLED: ("grey", "C"),
    Mark.QUARANTINED: ("flag", "Q"),
}


def _legend(frame: _Frame, top: int) -> tuple[list[str], int]:
    """The legend of what is drawn, and its height."""
    spans = {bar.span for lane in frame.chart.lanes for bar in lane.bars}
    marks = {dot.mark for lane in frame.chart.lanes for dot in lane.dots}
    parts: list[str] = []
    x, y = 16.0, top
    for sample, label, wide in (*_samples_of_spans(spans), *_samples_of_marks(marks)):
        width = wide + 8 + len(label) * CHAR + 20
        if x + width > frame.width - 8:
            x, y = 16.0, y + LEGEND_LINE
        parts.append(f'<g transform="translate({x:.1f} {y})">{sample}</g>')
        parts.append(f'<text class="quiet" x="{x + wide + 8:.1f}" y="{y + 12}">{_text(label)}</text>')
        x += width
    return parts, y - top + LEGEND_LINE + 8


def _samples_of_spans(spans: Iterable[Span]) -> Iterator[tuple[str, str, int]]:
    found = set(spans)
    box = f'width="26" height="{BAR - 4}" y="2" rx="3"'
    if Span.LEASED in found:
        yield f'<rect {box} fill="{PALETTE[0]}"/>', "leased (colour: owner)", 26
    if Span.RUNNING_OUT in found:
        yield f'<rect class="out" {box}/>', "lease running out", 26
    if Span.SUSPENDED in found:
        yield f'<rect class="asleep" {box}/>', "suspended", 26
    if Span.WAITING in found:
        yield '<line class="wait" x1="0" y1="8" x2="26" y2="8"/>', "waiting", 26


def _samples_of_marks(marks: Iterable[Mark]) -> Iterator[tuple[str, str, int]]:
    found = set(marks)
    for mark in Mark:
        if mark in found:
            y = -13 if mark is Mark.REFUSED else 0
            yield (
                _glyph(Dot(mark=mark, at_ms=0), 8 if mark is not Mark.LIVE else 4, y).replace(_tooltip(mark), ""),
                mark.value,
                16,
            )


def _tooltip(mark: Mark) -> str:
    return f"<title>{_text(f'{mark.value}, {instant(0)}')}</title>"
