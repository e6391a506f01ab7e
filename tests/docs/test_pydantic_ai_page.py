"""The page on Pydantic AI: its programs run."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tenure.testing import run_inline

PAGE = Path(__file__).parents[2] / "docs" / "pydantic-ai.md"


def test_the_clerk_of_the_page_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["clerk.py", "pay.py", "walker.py"]
    assert len(re.findall(r"```python\n", PAGE.read_text())) == len(blocks)
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        clerk, pay = import_module("clerk"), import_module("pay")
        assert run_inline(clerk.clerk, "tea and cake?") == "that is 7"
        assert set(pay.tools.tools) == {"price", "pay"}
        assert run_inline(import_module("walker").walker, "tea and cake?") == "that is 7"
    finally:
        for name, _ in blocks:
            sys.modules.pop(name.removesuffix(".py"), None)
