"""The bar of restarts that lose nothing, in short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tenure.testing._parent import dying_with_parent

BENCH = Path(__file__).parents[2] / "bench"


def _said(program: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        dying_with_parent([sys.executable, str(BENCH / program), *arguments]),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_i10_a_restart_that_loses_nothing_leaves_every_run_with_its_holder() -> None:
    code, said = _said("redis_restart.py", "--runs", "30", "--kind", "valkey9", "--within", "45")
    assert code == 0, said
    assert "lost 0" in said
