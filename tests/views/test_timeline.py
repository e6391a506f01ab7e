"""The timeline: what is inferred from a record, and that text and SVG draw the same chart, always alike."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from tenure.core.run import Run, Status
from tenure.store import Refused
from tenure.views import chart_svg, chart_text
from tenure.views.timeline import Chart, Dot, Landed, Lane, Mark, Span, chart, chart_value, lane
from views.golden import assert_golden
from views.samples import (
    BEGIN_MS,
    CANCELLED,
    FROZEN,
    KILLED,
    NOW_MS,
    POISONED,
    REFUSED,
    RUNNING,
    WAITING,
    grant,
    landed,
    run,
    whole_chart,
)


def _lane(record: Run, *, refused: tuple[Refused, ...] = (), seen: tuple[Dot, ...] = ()) -> Lane:
    return lane(record, landed=landed(record.id), refused=refused, seen=seen, now_ms=NOW_MS)


def _bars(found: Lane) -> list[tuple[str, int, int, int]]:
    return [(bar.span.name, bar.from_ms - BEGIN_MS, bar.until_ms - BEGIN_MS, bar.ordinal) for bar in found.bars]


def _marks(found: Lane) -> list[tuple[str, int]]:
    return [(dot.mark.name, dot.at_ms - BEGIN_MS) for dot in found.dots if dot.mark is not Mark.COMMIT]


def test_a_lease_that_ran_out_was_last_renewed_one_ttl_before_its_end() -> None:
    found = _lane(KILLED)
    assert _bars(found)[:4] == [
        ("WAITING", 0, 120, 0),
        ("LEASED", 120, 600, 1),
        ("RUNNING_OUT", 600, 1_600, 1),
        ("WAITING", 1_600, 1_850, 0),
    ]
    assert _marks(found) == [("DIED", 600), ("COMPLETED", 5_600)]


def test_a_commit_after_the_last_renewal_shows_that_the_holder_was_there_still() -> None:
    late = Landed(at_ms=BEGIN_MS + 1_200, token=11, seq=9)
    found = lane(KILLED, landed=[late], now_ms=NOW_MS)
    assert _bars(found)[1:3] == [("LEASED", 120, 1_200, 1), ("RUNNING_OUT", 1_200, 1_600, 1)]


def test_a_holder_that_was_refused_later_had_been_asleep() -> None:
    assert _marks(_lane(FROZEN, refused=REFUSED)) == [("ASLEEP", 700), ("REFUSED", 2_100), ("COMPLETED", 6_000)]
    assert _marks(_lane(FROZEN)) == [("DIED", 700), ("COMPLETED", 6_000)]


def test_refusals_of_other_runs_are_not_this_runs() -> None:
    assert _marks(_lane(KILLED, refused=REFUSED)) == _marks(_lane(KILLED))


def test_what_somebody_saw_goes_before_what_is_inferred() -> None:
    seen = Dot(mark=Mark.ASLEEP, at_ms=BEGIN_MS + 650, owner="bravo", text="SIGSTOP")
    found = _lane(KILLED, seen=(seen,))
    assert _marks(found)[0] == ("ASLEEP", 650)
    assert _bars(found)[2] == ("RUNNING_OUT", 650, 1_600, 1)


def test_a_certain_death_ends_the_lease_at_once() -> None:
    found = _lane(RUNNING)
    assert ("LEASED", 2_500, 2_900, 2) in _bars(found)
    assert Span.RUNNING_OUT not in {bar.span for bar in found.bars}
    assert ("DIED", 2_900) in _marks(found)


def test_suspended_and_handed_back_are_no_deaths() -> None:
    found = _lane(RUNNING)
    assert ("SUSPENDED", 900, 2_500, 0) in _bars(found)
    assert ("ENDED", 3_500) in _marks(found)


def test_a_live_lease_reaches_to_now_and_says_what_is_left() -> None:
    found = _lane(RUNNING)
    assert _bars(found)[-1] == ("LEASED", 4_000, 6_100, 4)
    assert found.dots[-1] == Dot(mark=Mark.LIVE, at_ms=NOW_MS, owner="alpha", text="800 ms left")


def test_a_lease_that_ran_out_and_that_nobody_took_over_is_no_live_lease() -> None:
    record = run("r", "k", Status.RUNNING, 0, 100, grant(1, 5, "alpha", 100), lease_until_ms=BEGIN_MS + 2_000, token=5)
    found = lane(record, now_ms=NOW_MS)
    assert _bars(found)[1:] == [
        ("LEASED", 100, 1_000, 1),
        ("RUNNING_OUT", 1_000, 2_000, 1),
        ("WAITING", 2_000, 6_100, 0),
    ]
    assert _marks(found) == [("DIED", 1_000)]


def test_a_poisoned_run_shows_each_death_and_its_end() -> None:
    assert _marks(_lane(POISONED)) == [("DIED", 800), ("DIED", 1_300), ("DIED", 2_990), ("QUARANTINED", 3_000)]


def test_a_run_that_nobody_ever_held_waits_until_now() -> None:
    assert _bars(_lane(WAITING)) == [("WAITING", 50, 6_100, 0)]
    assert _marks(_lane(WAITING)) == []


def test_a_cancelled_run_ends_where_it_was_cancelled() -> None:
    assert _bars(_lane(CANCELLED))[-1] == ("LEASED", 500, 2_000, 1)
    assert _marks(_lane(CANCELLED)) == [("CANCELLED", 2_000)]


def test_bars_of_a_lane_never_overlap_and_leave_no_hole() -> None:
    for found in whole_chart().lanes:
        for one, following in zip(found.bars, found.bars[1:], strict=False):
            assert one.until_ms == following.from_ms
            assert one.from_ms <= one.until_ms


def test_an_empty_chart_is_drawn() -> None:
    assert chart_text.draw(chart([]))
    ET.fromstring(chart_svg.draw(chart([])))


def test_the_text_is_the_kept_one() -> None:
    assert_golden("timeline.txt", "".join(line.plain + "\n" for line in chart_text.draw(whole_chart(), width=110)))


@pytest.mark.parametrize("width", [50, 80, 200])
def test_no_line_of_a_lane_is_wider_than_was_asked_for(width: int) -> None:
    lines = chart_text.draw(whole_chart(), width=width)
    assert max(len(line.plain) for line in lines) <= width


def test_marks_that_fall_into_one_column_stand_side_by_side() -> None:
    narrow = "\n".join(line.plain for line in chart_text.draw(whole_chart(), width=50))
    poisoned = next(line for line in narrow.splitlines() if line.startswith("run-4"))
    assert poisoned.count("X") == 3
    assert poisoned.count("Q") == 1


def test_text_and_svg_show_the_same_marks() -> None:
    found = whole_chart()
    told = {dot.mark.value for one in found.lanes for dot in one.dots}
    legend = chart_text.draw(found, width=400)[-2].plain
    assert all(value in legend for value in told)
    svg = chart_svg.draw(found)
    assert all(f">{value}</text>" in svg for value in told)


def test_the_svg_is_the_kept_one_and_always_the_same() -> None:
    svg = chart_svg.draw(whole_chart())
    assert svg == chart_svg.draw(whole_chart())
    assert_golden("timeline.svg", svg)


def test_the_svg_is_well_formed_and_self_contained() -> None:
    svg = chart_svg.draw(whole_chart())
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"<(script|image|foreignObject|a)\b|href|@import|url\((?!#)", svg)
    assert svg.count("http") == 1, "the one address is the name of the format"
    assert "prefers-color-scheme:dark" in svg


def test_the_svg_escapes_what_people_typed() -> None:
    record = run("r", '<script>"&', Status.RUNNING, 0, 1, grant(1, 5, '"<b>&\x1b[31m', 100), lease_until_ms=NOW_MS + 1)
    svg = chart_svg.draw(chart([lane(record, now_ms=NOW_MS)]), title="<&>")
    ET.fromstring(svg)
    assert "<script>" not in svg
    assert "<b>" not in svg
    assert "\x1b" not in svg


@pytest.mark.parametrize("width", [480, 960, 1_600])
def test_nothing_in_the_svg_stands_outside_of_it_and_no_label_covers_another(width: int) -> None:
    root = ET.fromstring(chart_svg.draw(whole_chart(), width=width))
    name = "{http://www.w3.org/2000/svg}"
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in root.iter(f"{name}text"):
        if text.get("class") in {"glyph", "head"} or text.get("text-anchor"):
            continue
        shown = "".join(text.itertext()).replace(text.findtext(f"{name}title") or "", "", 1) or "".join(text.itertext())
        x = float(text.get("x", "0"))
        lines.setdefault(float(text.get("y", "0")), []).append((x, x + len(shown) * chart_svg.CHAR))
    for spans in lines.values():
        ordered = sorted(spans)
        assert ordered[-1][1] <= width
        for (_, end), (begin, _) in itertools.pairwise(ordered):
            assert end <= begin


def test_the_owner_of_a_short_last_lease_is_named_whole() -> None:
    record = run(
        "r", "k", Status.RUNNING, 0, 6_090, grant(1, 5, "a-long-name", 6_090), lease_until_ms=NOW_MS + 9, token=5
    )
    found = chart([lane(record, now_ms=NOW_MS)])
    assert chart_text.draw(found, width=80)[2].plain.endswith(" #1 a-long-name")
    assert ">#1 a-long-name</text>" in chart_svg.draw(found)


def test_the_chart_as_json_names_every_bar_and_mark() -> None:
    value = chart_value(whole_chart())
    assert [one["id"] for one in value["runs"]] == ["run-1", "run-2", RUNNING.id, "run-4", "run-5", "run-6"]
    assert value["owners"] == ["carol", "bravo", "alpha", "bravo-with-a-long-name"]
    assert value["runs"][0]["marks"][-1]["mark"] == "completed"


def test_a_window_cuts_what_was_before_it() -> None:
    found: Chart = chart([_lane(FROZEN, refused=REFUSED)], from_ms=BEGIN_MS + 2_000)
    line = chart_text.draw(found, width=110)[1].plain
    assert "Z" not in line
    assert "!" in line
    assert "." not in line
