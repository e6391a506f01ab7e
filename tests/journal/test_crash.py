"""Deaths at each store call of an agent whose context is replaced, with calls side by side and an approval."""

from __future__ import annotations

import pytest

from journal import voyage
from tenure.testing import crash_everywhere


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_m_ck42_m_ck45_i14_at_any_death_no_landed_answer_summary_or_result_is_made_again() -> None:
    report = crash_everywhere(voyage.voyage, "home", approve=True)
    assert report.deaths == report.boundaries
    assert report.ok, str(report)
    assert dict(report.clean.effects) == {"sailed": 1}
    summaries = [name for name in report.clean.calls if name.startswith("context:")]
    assert summaries, "its context was replaced"
    assert report.clean.outcome
