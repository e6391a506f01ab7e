"""The command that runs tenure beside others: how it judges, draws and tells. What it measures is no test."""

import json
import zlib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import compare
from speed import drawing
from speed.bars import Bar, Found, Setting, adjacent, cost, ratio, step_of
from tenure.core import journal


async def nothing(_: Setting) -> Found:
    raise AssertionError


def bar(**limit: float) -> Bar:
    return Bar(name="some", says="something to something", measure=nothing, **limit)  # type: ignore[arg-type]


def found(number: float) -> Found:
    return Found(number=number, low=number, high=number)


def test_a_bar_is_held_at_its_least_and_missed_at_what_it_has_to_stay_under() -> None:
    assert bar(least=0.5).held(found(0.5))
    assert not bar(least=0.5).held(found(0.49))
    assert bar(under=5).held(found(4.9))
    assert not bar(under=5).held(found(5))
    assert bar().held(found(0))


def test_a_ratio_is_the_median_over_the_pairs_and_not_that_of_the_medians() -> None:
    pairs = [(1.0, 2.0), (10.0, 30.0), (100.0, 100.0)]
    assert ratio(pairs).number == 2.0
    assert cost(pairs).number == 0.5
    assert ratio(pairs, ours_per=32).number == 64.0


async def test_pairs_are_as_many_as_asked_and_each_side_is_first_every_other_time() -> None:
    order: list[str] = []

    async def ours(times: int) -> None:
        order.extend(["ours"] * bool(times))

    async def theirs(times: int) -> None:
        order.extend(["theirs"] * bool(times))

    assert len(await adjacent(ours, theirs, 4)) == 4
    assert order[-8:] == ["ours", "theirs", "theirs", "ours"] * 2


def test_a_step_is_about_three_kilobytes_and_no_two_are_the_same() -> None:
    sizes = {len(journal.event(journal.CHECKPOINT, value=step_of(number))) for number in range(450)}
    assert 2900 < min(sizes) <= max(sizes) < 3100
    assert step_of(1) != step_of(2)


def test_a_conversation_does_not_repeat_itself_so_that_who_packs_it_keeps_more_than_a_quarter() -> None:
    steps = b"".join(journal.event(journal.CHECKPOINT, value=step_of(number)) for number in range(100))
    assert len(zlib.compress(steps)) > len(steps) / 4


def test_names_are_unique_and_every_plot_has_axes() -> None:
    names = [one.name for one in compare.BARS]
    assert len(set(names)) == len(names)
    assert {one.plot for one in compare.BARS} - {""} == set(compare.AXES)


def test_a_row_without_its_peer_is_named() -> None:
    lacks = Bar(name="some", says="", measure=nothing, needs=("json", "no_such_peer.inside"))
    assert compare.lacking(lacks) == "no_such_peer.inside"
    assert not compare.lacking(bar())


def test_what_was_found_is_told_as_a_table_and_as_json() -> None:
    rows = [(bar(least=0.5), found(0.4)), (bar(under=2), found(1.0))]
    table = compare.rows_of(rows)
    assert "**missed**" in table[2]
    assert table[3].endswith("| held |")
    told = json.loads(compare.as_json(rows))
    assert [row["held"] for row in told["rows"]] == [False, True]


@pytest.mark.parametrize("log_x", [False, True])
def test_curves_are_drawn_as_xml_with_a_label_each(tmp_path: Path, log_x: bool) -> None:
    lines = {"a < b": [(1.0, 5.0), (32.0, 900.0)], "c": [(1.0, 5.0), (32.0, 901.0)]}
    text = drawing.draw(lines, title="t & t", across="runs", up="ms", log_x=log_x)
    root = ET.fromstring(text)
    labels = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "c", "t & t"} <= set(labels)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
