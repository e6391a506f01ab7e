"""The report: one canonical JSON file, the same bytes whoever did the work, and one table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.license_audit.records import Finding
from examples.license_audit.replay import Numbers
from tenure.core import canonical

Findings = Mapping[str, Finding | str]
"""By id of the distribution; where its run ended badly, the code of the error."""

_STYLES = {"high": "green", "medium": "yellow", "low": "red", "none": "red"}


def report(findings: Findings, /) -> bytes:
    """Return the report: no times, no owners, no attempts, sorted by distribution."""
    found = {dist: one for dist, one in sorted(findings.items()) if isinstance(one, Finding)}
    content = {
        "distributions": {dist: one.model_dump(mode="json") for dist, one in found.items()},
        "failed": {dist: one for dist, one in sorted(findings.items()) if isinstance(one, str)},
        "licences": dict(Counter(one.spdx for one in found.values())),
    }
    return canonical.encode(content) + b"\n"


def show(findings: Findings, console: Console, /) -> None:
    """Print the table."""
    table = Table(title=f"Licences of {len(findings)} distributions", title_justify="left")
    for name in ("distribution", "licence", "confidence", "evidence", "notes"):
        table.add_column(name, overflow="fold")
    for dist, one in sorted(findings.items()):
        if isinstance(one, str):
            table.add_row(Text(dist), Text(one, style="red"))
            continue
        first = next((found for found in one.evidence if found.says), None)
        table.add_row(
            Text(dist),
            Text(one.spdx),
            Text(one.confidence, style=_STYLES[one.confidence]),
            Text(f"{first.file}:{first.line}" if first else ""),
            Text("; ".join(one.notes)),
        )
    console.print(table)


def lines(numbers: Numbers, /) -> list[str]:
    """Return the numbers in words."""
    return [
        f"runs {numbers.runs}, completed {numbers.completed}, journals that verify {numbers.verified}",
        f"model turns of a run, median {numbers.median_turns:g}; turns with calls side by side {numbers.side_by_side}",
        f"takeovers {numbers.takeovers}",
        f"model answers that landed {numbers.answers}, asked for {numbers.asked} times",
        f"tool results recorded {numbers.results}, called {numbers.called} times",
        f"calls in flight at a death, made again {numbers.repeated}",
        f"landed model answers sent again {numbers.answers_asked_again}",
        f"recorded tools run again {numbers.results_called_again}",
    ]
