"""The bars of lossy promotions, restarts and partitions, in short; and that they find what they look for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def _said(program: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, BENCH / program, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_i10_twelve_promotions_that_lose_what_was_acknowledged_let_nothing_stale_land() -> None:
    code, said = _said("promotions.py", "--promotions", "12", "--seeds", "2")
    assert code == 0, said
    assert "12 of 12 promotions, 0 violations" in said
    counts = re.search(r"were lost: (\d+); stale writes refused: (\d+), landed: 0; .* loss: (\d+);", said)
    assert counts is not None, said
    assert min(map(int, counts.groups())) > 0, "something was lost, and who wrote on was told"


@pytest.mark.slow
def test_i10_without_its_defence_the_same_promotions_are_found_out() -> None:
    code, said = _said("promotions.py", "--promotions", "3", "--seeds", "1", "--history", "off")
    assert code == 1, said
    assert "VIOLATION" in said
    assert "C was let in while A could trust its lease" in said


@pytest.mark.slow
def test_i10_a_restart_that_loses_nothing_leaves_every_run_with_its_holder() -> None:
    code, said = _said("redis_restart.py", "--runs", "30", "--kind", "valkey9", "--within", "45")
    assert code == 0, said
    assert "lost 0" in said


@pytest.mark.slow
def test_i09_a_partition_loses_nothing_that_replicas_acknowledged() -> None:
    code, said = _said("sentinel_partition.py", "--runs", "1", "--kind", "redis8")
    assert code == 0, said
    assert re.search(
        r"^1 partitions, [1-9]\d* acknowledged commits at replicated, 0 lost, 0 violations", said, re.MULTILINE
    )
