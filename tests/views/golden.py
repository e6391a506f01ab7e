"""Answers kept beside the tests: a change of what people see is a change of a file that somebody reads."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "kept"


def assert_golden(name: str, shown: str) -> None:
    """Compare with the kept answer; TENURE_GOLDEN=write keeps the new one instead."""
    path = FOLDER / name
    if os.environ.get("TENURE_GOLDEN") == "write":
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{name} changed; TENURE_GOLDEN=write keeps the new one"
