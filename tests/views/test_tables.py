"""Tables and heads for people: the kept answers, what fits, and that no text steers the terminal."""

import dataclasses
import io

import pytest
from rich.console import Console, RenderableType

from tenure.core.text import count
from tenure.store import Finding, Grade
from tenure.views import findings, tables, values
from tenure.views.figures import ago, clean, clock_time, cut, duration, instant, short_id
from tenure.views.record import head
from views.golden import assert_golden
from views.samples import BEGIN_MS, ITEMS, NOW_MS, POISONED, REFUSED, RUNNING, RUNS

SERVED = frozenset({"research", "a-kind-with-a-rather-long-name"})


def _drawn(*parts: RenderableType, width: int = 20_000) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    for part in parts:
        console.print(part, soft_wrap=not isinstance(part, tables.Table), markup=False)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def test_the_listing_is_the_kept_one() -> None:
    assert_golden("runs.txt", _drawn(tables.rich_table(tables.runs(RUNS, now_ms=NOW_MS, served=SERVED))))


def test_the_sheets_are_the_kept_ones() -> None:
    calls = {36: ("tool:boom",)}
    parts: list[RenderableType] = []
    for one in RUNS:
        parts += [
            *head(one, now_ms=NOW_MS, served=SERVED),
            tables.rich_table(tables.grants(one.grants, open_calls=calls)),
            "",
        ]
    parts += [
        tables.rich_table(tables.refused(REFUSED, ordinals={10: 1, 20: 2})),
        tables.rich_table(tables.requests(RUNNING, now_ms=NOW_MS)),
        tables.rich_table(tables.inbox(ITEMS)),
    ]
    assert_golden("sheets.txt", _drawn(*parts))


def test_findings_are_the_kept_ones() -> None:
    found = [
        Finding(name="version", level=Grade.OK, text="valkey 9.1.2"),
        Finding(name="appendonly", level=Grade.PROBLEM, text="off", fix="CONFIG SET appendonly yes"),
        Finding(name="ttl", level=Grade.WARNING, text="5s is short", fix="TENURE_TTL=15"),
    ]
    assert_golden("findings.txt", _drawn(*findings.lines(found, url="valkey://cache:6379/0", namespace="default")))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_table_fits_a_terminal_and_keeps_ids_whole(width: int) -> None:
    table = tables.fitted(tables.runs(RUNS, now_ms=NOW_MS, served=SERVED), width)
    shown = _drawn(tables.rich_table(table, room=width), width=width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert all(one.id in shown for one in RUNS)
    assert "RUN" in table.head
    assert "STATUS" in table.head
    assert table.head[-1] == "NOTE"


def test_a_wide_terminal_leaves_nothing_out() -> None:
    table = tables.runs(RUNS, now_ms=NOW_MS, served=SERVED)
    assert tables.fitted(table, 500) is table


def test_the_nonce_is_in_no_value() -> None:
    assert RUNNING.nonce
    value = values.run_value(RUNNING, now_ms=NOW_MS)
    assert RUNNING.nonce not in str(value)
    assert "nonce" not in value
    assert set(value) == {
        *(field.name for field in dataclasses.fields(RUNNING) if field.name not in {"nonce", "touch", "grants"}),
        *("grant", "lease_left_ms"),
    }


def test_bytes_that_are_no_text_are_shown_as_escapes() -> None:
    assert values.readable(b'{"a":"\xff"}') == r'{"a":"\xff"}'


def test_a_poisoned_run_says_what_to_do() -> None:
    note, _ = tables.note_on(POISONED, now_ms=NOW_MS, served=SERVED)
    assert note == "3 takeovers without a step: tenure show, then release or cancel"


@pytest.mark.parametrize(
    "ms, shown",
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (21_449, "21.4s"),
        (59_999, "59.9s"),
        (250_000, "4m10s"),
        (11_100_000, "3h05m"),
        (187_200_000, "2d04h"),
        (-1_500, "-1.5s"),
    ],
)
def test_durations(ms: int, shown: str) -> None:
    assert duration(ms) == shown


def test_instants_are_utc_and_damage_is_no_error() -> None:
    assert instant(BEGIN_MS) == "2023-11-14 22:13:20Z"
    assert clock_time(BEGIN_MS + 7) == "22:13:20.007"
    assert instant(10**18).startswith("1970-01-01")
    assert (ago(BEGIN_MS, NOW_MS), ago(NOW_MS, BEGIN_MS)) == ("6.1s ago", "in 6.1s")


def test_short_ids_keep_their_end() -> None:
    assert short_id("run-1") == "run-1"
    assert short_id(RUNNING.id) == "0198c…e2f-a1b2c3d4e5f6"
    assert len(short_id("x" * 128)) == 22


def test_text_is_cleaned_cut_and_counted() -> None:
    assert clean("a\x1b[2J\x9b\u202e\ud800\U000e0001ü") == "a\\x1b[2J\\x9b\\u202e\\ud800\\U000e0001ü"
    assert (cut("abcdef", 4), cut("abc", 4)) == ("abc…", "abc")
    assert (count(1, "crash"), count(2, "crash"), count(1_234, "run")) == ("1 crash", "2 crashes", "1,234 runs")
