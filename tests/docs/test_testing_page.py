"""The page on testing: its app and its tests run as they stand, and the test that should fail fails as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def _files() -> dict[str, str]:
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(blocks)


def _run(folder: Path, test: str) -> tuple[int, str]:
    for name, text in _files().items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "anyio", "-p", "tenure.testing.plugin"]
    command += ["-p", "no:cacheprovider", test]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_program_on_the_page_is_played() -> None:
    assert set(_files()) == {"orders.py", "test_orders.py", "test_careless.py"}
    assert len(re.findall(r"```python\n", PAGE.read_text())) == len(_files())


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    code, words = _run(tmp_path, "test_orders.py")
    assert code == 0, words
    assert "4 passed" in words


@pytest.mark.slow
def test_the_test_that_should_fail_fails_as_the_page_says(tmp_path: Path) -> None:
    code, words = _run(tmp_path, "test_careless.py")
    assert code == 1, words
    (shown,) = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert shown in words
