"""The bench that lets sweepers of real processes boot together, with fewer runs than its bar."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "sweep_race.py"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "valkey", "postgres"])
def test_b031_i12_sweepers_that_boot_together_execute_each_dead_run_once_and_touch_no_fresh_one(store: str) -> None:
    raced = subprocess.run(
        [sys.executable, str(BENCH), "--runs", "50", "--sweepers", "8", "--store", store],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert raced.returncode == 0, raced.stdout + raced.stderr
    assert "50 executions of 50 runs, 50 claims, 50 completed in attempt 2; 8 of 8 fresh runs untouched" in raced.stdout
