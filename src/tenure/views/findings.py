"""What the doctor found, as lines: a sign, a name, what is, and for what is wrong the line that fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenure.core.text import count
from tenure.store import Finding, Grade
from tenure.views.figures import clean

if TYPE_CHECKING:
    from rich.text import Text

_SIGN = {Grade.OK: ("✓", "green"), Grade.WARNING: ("!", "yellow"), Grade.PROBLEM: ("✗", "bold red")}


def lines(findings: Sequence[Finding], /, *, url: str, namespace: str) -> list[Text]:
    """Return the lines: the store, one finding each with its fix below, the sum."""
    from rich.text import Text

    width = max((len(one.name) for one in findings), default=0)
    shown = [Text(f"store {clean(url)}, namespace {namespace}", style="bold")]
    for one in findings:
        sign, style = _SIGN[one.level]
        shown.append(Text.assemble((sign, style), f" {clean(one.name):<{width}}  {clean(one.text)}"))
        if one.fix:
            shown.append(Text(f"  {'':<{width}}  → {clean(one.fix)}", style=style))
    problems = sum(one.level is Grade.PROBLEM for one in findings)
    warnings = sum(one.level is Grade.WARNING for one in findings)
    ending = " (exit 8)" if problems else ""
    shown.append(Text(f"{count(problems, 'problem')}, {count(warnings, 'warning')}{ending}", style="bold"))
    return shown
