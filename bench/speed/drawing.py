"""Curves as one self-contained SVG each: logarithmic upwards, a label at the end of each curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 62, 52
COLOURS = ("#2f6fd0", "#0f8a7e", "#8a5cd6", "#b7791f", "#c2568a", "#4d7c0f", "#0e7490", "#a0522d")
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2933}.quiet{fill:#5b6875}"
    ".ground{fill:#fbfcfd}.rule{stroke:#dfe4ea}@media (prefers-color-scheme:dark){text{fill:#dde4ec}"
    ".quiet{fill:#93a1b0}.ground{fill:#12171d}.rule{stroke:#2a333d}}"
)

Points = Sequence[tuple[float, float]]


def draw(lines: Mapping[str, Points], *, title: str, across: str, up: str, log_x: bool = False) -> str:
    """Return the SVG of named curves."""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)

    def place_x(x: float) -> float:
        first, last, at = (math.log(v) for v in (min(xs), max(xs), x)) if log_x else (min(xs), max(xs), x)
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - first) / ((last - first) or 1)

    def place_y(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(y)) / ((high - low) or 1)

    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>'
        ),
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text x="16" y="26" font-weight="600">{escape(title)}</text>',
        f'<text class="quiet" x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
        f'<text class="quiet" x="16" y="{TOP - 10}">{escape(up)}</text>',
    ]
    for power in range(low, high + 1):
        y = place_y(10.0**power)
        parts.append(f'<line class="rule" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="quiet" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for x in _marks(xs, log_x=log_x):
        at = f'x="{place_x(x):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text class="quiet" {at} text-anchor="middle">{x:g}</text>')
    for number, (name, points) in enumerate(lines.items()):
        parts += _curve(name, [(place_x(x), place_y(y)) for x, y in points], number)
    return "\n".join([*_apart(parts), "</svg>"]) + "\n"


def _marks(xs: Sequence[float], *, log_x: bool) -> list[float]:
    if log_x:
        return sorted(set(xs))
    step = max(1, round(max(xs) / 4, -1))
    return [step * n for n in range(5) if min(xs) <= step * n <= max(xs)]


def _curve(name: str, places: Points, number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" style="fill:{colour}">{escape(name)}</text>',
    ]


def _apart(parts: list[str]) -> list[str]:
    """Move the labels of curves that end close together apart."""
    taken: list[float] = []
    found = []
    for part in parts:
        moved = part
        if "style=" in part and part.startswith("<text"):
            y = float(part.split('y="')[1].split('"')[0])
            at = y
            while any(abs(at - other) < 14 for other in taken):
                at -= 14
            taken.append(at)
            moved = part.replace(f'y="{y:.1f}"', f'y="{at:.1f}"')
        found.append(moved)
    return found
