"""The page on writing a store: its example runs as it stands, far from this project's own fixtures."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tenure.testing.contract import ABILITIES, StoreContract

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-store.md"


def test_the_example_runs_and_passes(tmp_path: Path) -> None:
    code, words = _run(tmp_path, _example())
    assert code == 0, words
    passed = re.search(r"(\d+) passed", words)
    assert passed is not None
    assert int(passed[1]) > 120
    assert "TestMyStore lacks restart: it survives nothing" in words


def test_an_ability_that_is_neither_offered_nor_named_fails_the_suite(tmp_path: Path) -> None:
    without = re.sub(r'        "restart".*\n', "", _example())
    code, words = _run(tmp_path, without, "-k", "restart or ability")
    assert code == 1
    assert "TestMyStore neither offers restart(store) -> Store" in words
    assert "2 failed" in words


def test_a_store_that_lets_a_stale_holder_write_fails_and_says_where(tmp_path: Path) -> None:
    fault = """
import tenure.core.rules as rules

rules.holds = lambda run, grant: run.epoch == grant.epoch
"""
    code, words = _run(tmp_path, _example() + fault, "-k", "test_i01_only", "-vv")
    assert code == 1
    assert "'landed'" in words
    assert "'refused'" in words
    assert "AssertionError: assert " in words


def test_the_page_names_every_ability() -> None:
    assert [name for name in ABILITIES if f'"{name}"' not in _example()] == []


def test_every_guarantee_of_a_store_has_a_test_that_carries_its_number() -> None:
    numbers = {int(found[1]) for name in dir(StoreContract) if (found := re.match(r"test_i(\d\d)_", name))}
    assert {1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 22, 26, 27} <= numbers


def _example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def _run(folder: Path, code: str, *more: str) -> tuple[int, str]:
    (folder / "test_my_store.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-ra", "-q", "-p", "anyio", "-p", "no:cacheprovider", *more]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, done.stdout + done.stderr
