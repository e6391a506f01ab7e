"""The state diagram of a run, drawn from the law's own table."""

from __future__ import annotations

from tenure.core.rules import NEXT, TERMINAL


def mermaid() -> str:
    """Return the transitions of `NEXT` as a Mermaid state diagram, in the table's order."""
    lines = ["stateDiagram-v2", "    [*] --> queued"]
    for status, after in NEXT.items():
        lines.extend(f"    {status.value} --> {other.value}" for other in NEXT if other in after)
    lines.extend(f"    {status.value} --> [*]" for status in NEXT if status in TERMINAL)
    return "\n".join(lines)
