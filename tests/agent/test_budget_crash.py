"""Deaths at each store call of a run with a budget: what was lost is one reservation, and it stays spent."""

from __future__ import annotations

import pytest

from agent import spending
from tenure.testing import crash_everywhere


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_m_bu02_i14_at_any_death_a_run_needs_at_most_one_reservation_more() -> None:
    # To the journal a death before a change is the death after the one before it.
    report = crash_everywhere(spending.with_one_more, "go", sides=("after",))
    assert report.ok, str(report)
    assert report.clean.outcome
    assert report.deaths == report.boundaries


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_m_bu02_a_takeover_cannot_reset_what_a_lost_question_took() -> None:
    report = crash_everywhere(spending.exact, "go", sides=("after",))
    out = [line for line in report.wrong if "OUT_OF_BUDGET" in line or "failed" in line]
    # After each of the three reservations the question is lost; at any other boundary nothing is.
    assert len(report.wrong) == len(out) == spending.TURNS, str(report)
