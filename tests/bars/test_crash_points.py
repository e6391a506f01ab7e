"""The bar of the crash points, in its short form: real servers, real deaths, on every store."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.testing.servers import REDIS7, REDIS8, VALKEY9

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.slow
def test_i14_no_death_at_any_point_on_any_store_repeats_what_had_landed(
    redis7_url: str, redis8_url: str, valkey_url: str
) -> None:
    env = {kind.url_variable: url for kind, url in ((REDIS7, redis7_url), (REDIS8, redis8_url), (VALKEY9, valkey_url))}
    done = subprocess.run(
        [sys.executable, BENCH / "crash_points.py", "--points", "60", "--seed", "7"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"^60 of 60 points hit, 0 violations", done.stdout, re.MULTILINE), said
    by_store = re.search(r"^points +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +60$", done.stdout, re.MULTILINE)
    assert by_store is not None, said
    assert min(map(int, by_store.groups()[:4])) >= 12, "every store that processes share has its share"
