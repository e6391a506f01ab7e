"""The README is true: its programs run, its commands exist, its links lead somewhere."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_own_loop_counts_and_a_second_start_finds_it_ended(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(PROGRAMS[0])
    assert _run(tmp_path, "count.py") == "{'counted': 3}\n"
    again = subprocess.run([sys.executable, "count.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "RUN_CLOSED" in again.stderr


def test_the_fleet_greets(tmp_path: Path) -> None:
    (tmp_path / "fleet.py").write_text(PROGRAMS[1])
    worker = subprocess.Popen([sys.executable, "-m", "tenure", "worker", "fleet:app"], cwd=tmp_path)
    try:
        said = _run(tmp_path, "-m", "tenure", "submit", "greet", '"Ada"', "--id", "hello", "--wait", "--timeout", "40")
        assert "Hello Ada, you have 3 letters." in said
        assert "step:count" in _run(tmp_path, "-m", "tenure", "show", "hello", "--events")
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=30) == 0


def test_the_agent_answers(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAMS[2])
    assert _run(tmp_path, "agent.py") == "The book is empty.\n"


def test_each_program_is_about_fifteen_lines() -> None:
    lengths = [len([line for line in text.splitlines() if line.strip()]) for text in PROGRAMS]
    assert len(lengths) == 3
    assert max(lengths) <= 17


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", file.read_text())
    assert [link for link in links if not (file.parent / link).exists()] == []


def test_the_two_commands_are_the_ones_that_ci_knows() -> None:
    commands = re.search(r"```console\n(.*?)```", README, re.DOTALL)
    assert commands is not None
    assert commands[1] == "pip install -e '.[dev]' && tenure demo\npytest\n"
    assert "pytest" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
