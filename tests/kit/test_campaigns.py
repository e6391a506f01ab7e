"""A campaign's file: it is continued where it was stopped, and never adds up what does not belong together."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tenure.testing import campaigns
from tenure.testing.campaigns import Batch, BrokenOff, Campaign, CampaignRefused, record, stop_asked


def _judged(path: Path | None, *firsts: int, plan: str = "", across_versions: bool = False) -> Campaign:
    campaign = Campaign(path, bar="histories", plan=plan, across_versions=across_versions)
    for first in firsts:
        campaign.add(Batch(first=first, histories=10, counts={"kill": 2}))
    return campaign


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    stopped = _judged(path, 11, 31)
    stopped.add(Batch(first=41, histories=3, counts={"cut": 1}, violations=["seed 42: I1"]))
    found = _judged(path)
    assert (found.histories, found.counts, found.violations) == (23, {"kill": 4, "cut": 1}, ["seed 42: I1"])
    assert [(part.start, part.stop) for part in found.missing(range(1, 51), size=8)] == [
        *((1, 9), (9, 11)),  # before what was judged
        *((21, 29), (29, 31)),  # between it
        (44, 51),  # behind it
    ]
    for part in found.missing(range(1, 51), size=8):
        found.add(Batch(first=part.start, histories=len(part)))
    assert list(_judged(path).missing(range(1, 51), size=8)) == []
    assert list(_judged(path).missing(range(15, 45), size=8)) == []
    assert _judged(path).histories == 50


def test_without_a_file_a_campaign_is_only_counted() -> None:
    counted = _judged(None, 1)
    assert (counted.histories, list(counted.missing(range(1, 12), size=5))) == (10, [range(11, 12)])


def test_a_torn_last_line_is_judged_again_and_nothing_is_added_to_it(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    _judged(path, 1, 11)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    found = _judged(path)
    assert [*found.missing(range(1, 21), size=100)] == [range(11, 21)]
    found.add(Batch(first=11, histories=10, counts={"kill": 2}))
    assert path.read_bytes() == whole


def test_another_campaign_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    _judged(path, 1, plan="ttl 2 s")
    with pytest.raises(CampaignRefused, match=r"another campaign.*name another file"):
        _judged(path, plan="ttl 3 s")


def test_other_code_is_refused_unless_it_is_asked_for_and_then_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.jsonl"
    monkeypatch.setattr(campaigns, "running", lambda: "tenure 1 (aaa)")
    _judged(path, 1)
    monkeypatch.setattr(campaigns, "running", lambda: "tenure 1 (bbb)")
    with pytest.raises(CampaignRefused, match=r"written by tenure 1 \(aaa\).*--continue-across-versions"):
        _judged(path)
    _judged(path, 11, 21, across_versions=True)
    found = _judged(path)  # by the code that wrote last
    assert found.versions == "tenure 1 (aaa): 10 histories; tenure 1 (bbb): 20 histories"
    assert [json.loads(line).get("version") for line in path.read_text().splitlines()].count("tenure 1 (bbb)") == 1


def test_the_first_signal_asks_and_the_second_breaks_off() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(BrokenOff), stop_asked() as asked:
        assert not asked.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_record_is_one_line_at_the_end_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    page.write_text("| head |\n")
    record(bar="histories", seed=1, counts="10 histories", ran="tenure 1", violations=0, page=page)
    assert page.read_text().splitlines()[1].endswith(" | histories | 1 | 10 histories | tenure 1 | 0 |")
    with pytest.raises(FileNotFoundError, match="checkout of the source"):
        record(bar="", seed=1, counts="", ran="", violations=0, page=tmp_path / "none.md")


def test_what_runs_is_named_with_its_commit() -> None:
    assert campaigns.running().startswith("tenure ")
    assert "Python 3." in campaigns.running()
