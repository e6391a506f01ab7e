"""The table of events on the page is the one that the code writes; codes of the verification stand there too."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

from tenure.core import verify
from tenure.core.lineage import CONTEXT
from tenure.core.loop import TOOL
from tenure.journal_file import TORN

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "journal.md").read_text()
SOURCE = ROOT / "src" / "tenure"


def _written() -> set[str]:
    """The types that are given to `event` and `restatement` anywhere in the package."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        name = ".".join(("tenure", *path.relative_to(SOURCE).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called, first = ast.unparse(node.func), ast.unparse(node.args[0])
            if called in ("event", "journal.event", "restatement", "journal.restatement") and first != "type_":
                scope = vars(importlib.import_module(name))
                found.add(str(eval(first, scope)))
    return found


def test_m_jr12_the_table_names_every_event_that_is_written_and_no_other() -> None:
    told = re.findall(r"(?m)^\| `([a-z/]+)` \| ", PAGE.partition("## Lineage")[0])
    assert len(told) == len(set(told))
    written = _written()
    assert "context/replace" in written
    assert set(told) == written


def test_every_code_of_a_verification_is_explained() -> None:
    codes = {value for name, value in vars(verify).items() if name.isupper() and isinstance(value, str)} - {
        verify.NO_LINEAGE,
        verify.NOT_REPRODUCIBLE,
    }
    chain = re.findall(r'_find\("([A-Z_]+)"', (SOURCE / "core" / "journal.py").read_text())
    told = set(re.findall(r"`([A-Z_]+)`", PAGE.partition("## Verifying")[2].partition("## Forks")[0]))
    assert told == {*codes, *chain, TORN} - {CONTEXT, TOOL}
