"""Every guarantee names a test, and the test exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROWS = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| ")]


def test_every_row_names_a_test_that_exists() -> None:
    defined = {
        name
        for folder in ("tests", "src/tenure/testing")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    rows = [row for row in ROWS if not row.startswith(("| | Guaranteed", "| Not |"))]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= defined, row


def test_every_invariant_that_a_test_names_has_a_row() -> None:
    listed = {int(number) for number in re.findall(r"\| I(\d+) \|", "\n".join(ROWS))}
    assert listed == set(range(1, 29))
