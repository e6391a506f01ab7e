"""Every guarantee names a test, and the test exists."""

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROWS = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| ")]


@functools.cache
def _defined() -> frozenset[str]:
    return frozenset(
        name
        for folder in ("tests", "src/tenure/testing")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    )


def test_every_row_names_a_test_that_exists() -> None:
    rows = [row for row in ROWS if not row.startswith(("| | Guaranteed", "| Not |"))]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= _defined(), row


def test_every_invariant_that_a_test_names_has_a_row() -> None:
    listed = {int(number) for number in re.findall(r"\| I(\d+) \|", "\n".join(ROWS))}
    assert listed == set(range(1, 29))


def test_every_line_of_parity_names_a_test_that_exists_and_none_stands_twice() -> None:
    rows = [line for line in (ROOT / "docs" / "parity.md").read_text().splitlines() if re.match(r"\| [A-Z]", line)]
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= _defined(), row
    ids = [one for row in rows for one in row.split("|")[1].strip().split(", ")]
    assert sorted(ids) == sorted(set(ids))
    assert {f"O-{n:02}" for n in range(1, 35)} | {f"O-L{n}" for n in range(1, 13)} <= set(ids)
    assert {f"M-RS{n:02}" for n in range(1, 32)} | {f"M-RS-F{n}" for n in range(1, 17)} <= set(ids)
