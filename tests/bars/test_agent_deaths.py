"""The bar of an agent's deaths, in its short form: real processes that end at store calls drawn from a seed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.testing._parent import dying_with_parent

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_i14_i15_m_bu02_no_death_of_an_agent_with_calls_an_approval_a_sleep_and_a_replaced_context_costs_more() -> None:
    done = subprocess.run(
        dying_with_parent([sys.executable, str(BENCH / "agent_deaths.py"), "--points", "24", "--seed", "4"]),
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    met = re.search(
        r"^24 of 24 places met, tide-first: (\d+) of \d+, tide-last: (\d+) of \d+$", done.stdout, re.MULTILINE
    )
    assert met is not None, said
    assert min(map(int, met.groups())) >= 3, "both orders have their share"
    assert len(re.findall(r"^[a-z ]+: 0$", done.stdout, re.MULTILINE)) == 8, said
