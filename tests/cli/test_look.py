"""`runs`, `show` and `timeline`: what they say to people, and that machines can read it."""

import json
import uuid
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cli.kit import Console, Writer
from tenure.core import journal
from tenure.store import Store
from tenure.stores.memory import _SHARED

ALL = {"done", "held", "bad", "asks", "poison", "next"}


def test_runs_are_listed_newest_first_with_who_holds_them(filled: Console) -> None:
    said = filled("runs")
    lines = said.out.splitlines()
    assert lines[0].split() == [
        "RUN",
        "KIND",
        "STATUS",
        "OWNER",
        "GRANT",
        "ATTEMPT",
        "STEP",
        "LEASE",
        "UPDATED",
        "NOTE",
    ]
    assert {line.split()[0] for line in lines[1:]} == ALL
    held = next(line for line in lines if line.startswith("held"))
    assert "bravo" in held
    assert "#1" in held
    assert "▓▓▓▓▓▓" in held
    assert said.err == ""


def test_runs_marks_kinds_that_no_live_worker_serves(filled: Console) -> None:
    marked = [line for line in filled("runs").out.splitlines() if "no live worker serves this kind" in line]
    assert [line.split()[0] for line in marked] == ["next"]
    served = {run["id"]: run["served"] for run in filled("runs", "-o", "json").json}
    assert served == {**dict.fromkeys(ALL, True), "next": False}


@pytest.mark.parametrize(
    "arguments, found",
    [
        (["--status", "running,queued"], {"held", "next"}),
        (["--status", "running", "--status", "failed"], {"held", "bad"}),
        (["--kind", "refund"], {"bad", "asks", "poison"}),
        (["--owner", "bravo"], {"held"}),
        (["--tag", "team=blue"], {"done"}),
        (["--parent", "done"], set()),
        (["--kind", "research", "--tag", "team=red"], {"held"}),
    ],
)
def test_runs_are_narrowed(filled: Console, arguments: list[str], found: set[str]) -> None:
    assert {run["id"] for run in filled("runs", *arguments, "-o", "json").json} == found


def test_json_and_jsonl_say_the_same(filled: Console) -> None:
    whole, lines = filled("runs", "-o", "json").json, filled("runs", "-o", "jsonl").lines
    for run in (*whole, *lines):
        run.pop("lease_left_ms")  # time went on
    assert whole == lines
    assert len(whole) == len(ALL)


def test_an_empty_store_lists_nothing_and_says_so_to_people_only(console: Console) -> None:
    nothing = f"no runs in namespace default of {console.url}\n"
    assert console("runs").err == nothing
    assert console("timeline").err == nothing
    assert console("verify", "--all").err == nothing
    assert console("runs", "--kind", "greet").err == "no such run is in the store\n"
    assert console("timeline", "--since", "2h").err == "no such run is in the store\n"
    assert console("runs", "--namespace", "far").err == f"no runs in namespace far of {console.url}\n"
    assert console("runs", "-o", "json").json == []
    assert console("runs", "-o", "jsonl").out == ""


def test_a_limit_is_kept_and_told(filled: Console) -> None:
    said = filled("runs", "--limit", "2", "-o", "jsonl")
    assert len(said.lines) == 2
    assert "--limit 0 lists all" in said.err
    assert "--limit" not in filled("runs", "--limit", "6").err


def test_a_long_listing_is_read_in_pages_under_one_head(console: Console) -> None:
    async def many(store: Store) -> None:
        writer = Writer(store)
        for number in range(250):
            await writer.create(f"run-{number:03d}")

    console.do(many)
    lines = console("runs", "--limit", "0").out.splitlines()
    assert len(lines) == 251
    assert [line for line in lines if line.startswith("RUN")] == lines[:1]
    assert len(console("runs", "--limit", "120", "-o", "jsonl").lines) == 120
    assert len(console("runs").out.splitlines()) == 51


def test_show_tells_all_of_a_run(filled: Console) -> None:
    out = filled("show", "held").out
    assert out.startswith("research held   running   attempt 1   grant #1   owner bravo (")
    assert "grants (1)" in out
    assert "tool:c2" in out, "the open call is evidence"
    assert "tool:c1" not in out, "its result landed"
    assert "refused writes (1)" in out
    assert "token 7" in out
    assert "#1" in out
    assert "tags      team=red" in out


def test_show_tells_why_a_run_was_set_aside(filled: Console) -> None:
    out = filled("show", "poison").out
    assert "quarantined" in out
    assert "signal SIGSEGV" in out
    assert "tool:boom" in out
    assert "forfeit" in out


def test_show_tells_what_a_run_waits_for(filled: Console) -> None:
    out = filled("show", "asks").out
    assert "note      waits for pay" in out
    assert "open requests (1)" in out
    assert '{"say":"go on"}' in out


def test_show_tells_how_a_run_ended(filled: Console) -> None:
    assert "outcome   STEP_FAILED: no such account" in filled("show", "bad").out
    assert "outcome   completed" in filled("show", "done").out


def test_show_as_json_has_every_part(filled: Console) -> None:
    value = filled("show", "held", "-o", "json").json
    assert set(value) == {"run", "grants", "refused", "inbox"}
    assert value["grants"][0]["open_calls"] == ["tool:c2"]
    assert value["refused"][0]["token"] == 7
    with_events = filled("show", "held", "--events", "-o", "json").json
    assert [one["event"]["type"] for one in with_events["events"]] == ["run/start", "call/started", "record"]
    assert with_events["events"][1]["at"] == "2.0"
    lines = filled("show", "held", "--events", "-o", "jsonl").lines
    assert [next(iter(line)) for line in lines] == ["run", "grant", "refused", "event", "event", "event"]


def test_m_ck_l1_show_at_tells_what_a_run_had_come_to(filled: Console) -> None:
    assert filled("show", "done", "--at", "0").out.splitlines() == [
        "research done   queued then   at 1.0, 0 steps",
        '  input     {"question": "why"}',
    ]
    assert '  last      {"found": 1}' in filled("show", "done", "--at", "1").out
    value = filled("show", "held", "--at", "2.0", "-o", "json").json
    assert (value["at"], value["status"], value["in_doubt"]) == ("2.0", "running", ["tool:c1", "tool:c2"])
    later = filled("show", "held", "--at", "3.0", "-o", "json").json
    assert (later["in_doubt"], [record["name"] for record in later["records"]]) == (["tool:c2"], ["tool:c1"])
    assert filled("show", "held", "--at", "7").code == 2
    assert filled("show", "held", "--at", "soon").code == 2


def test_tail_prints_each_event_and_ends_with_a_run_that_has_ended(filled: Console) -> None:
    said = filled("tail", "done", "-f")
    lines = said.out.splitlines()
    assert lines[0].split() == ["AT", "TIME", "TYPE", "SCOPE", "NAME", "CONTENT"]
    assert [line.split()[0] for line in lines[1:]] == ["1.0", "2.0", "2.1", "3.0"]
    assert lines[0].index("TYPE") == lines[1].index("run/start") == lines[4].index("run/end")
    assert said.err == "run done is completed\n"
    assert [line["at"] for line in filled("tail", "done", "--after", "2.0", "-o", "jsonl").lines] == ["2.1", "3.0"]
    assert filled("tail", "held").code == 0, "without -f it ends where the journal ends"
    assert filled("tail", "nobody").code == 3


def test_show_lists_events_for_people(filled: Console) -> None:
    out = filled("show", "done", "--events").out
    assert "events (3 commits)" in out
    assert '{"input": {"question": "why"}' in out.replace('"code_version": "", ', "")
    assert "run/end" in out


def test_the_nonce_is_never_shown(filled: Console) -> None:
    async def nonce(store: Store) -> str:
        found = await store.load("held")
        assert found is not None
        return found.nonce

    secret = filled.do(nonce)
    assert len(secret) == 32
    for arguments in (["show", "held"], ["show", "held", "--raw"], ["show", "held", "--events"], ["runs"]):
        for shape in ("table", "json", "jsonl"):
            assert secret not in filled(*arguments, "-o", shape).out


def test_raw_prints_what_is_stored(filled: Console) -> None:
    said = filled("show", "held", "--raw")
    assert said.code == 0
    assert "status          running" in said.out
    assert said.out.count("\ncommit ") == 3
    lines = filled("show", "held", "--raw", "-o", "jsonl").lines
    assert lines[0]["record"]["id"] == "held"
    assert [line["commit"]["seq"] for line in lines[1:]] == [1, 2, 3]


def _damage(console: Console, run_id: str) -> None:
    from dataclasses import replace

    space = _SHARED[console.url.removeprefix("memory://"), "default"]
    shelf = space.shelves[run_id]
    shelf.rows[1] = replace(shelf.rows[1], body=b"\xff\x00 torn")


def test_damage_is_shown_as_it_is_and_hides_nothing_else(filled: Console) -> None:
    _damage(filled, "held")
    said = filled("show", "held", "--events")
    assert said.code == 6
    assert "CORRUPT_RECORD" in said.err
    assert "--raw" in said.err
    assert "grants (1)" in said.out
    raw = filled("show", "held", "--raw")
    assert raw.code == 0
    assert r"\xff" in raw.out
    assert filled("show", "done").code == 0


def test_what_is_stored_cannot_steer_the_terminal(console: Console) -> None:
    async def fill(store: Store) -> None:
        writer = Writer(store)
        await writer.create("sly", tags={"x": "[red]y"}, value="\x1b[2J\u202e[bold]")
        grant = await writer.claim("sly", owner="a\u202eb")
        await writer.commit(grant, journal.event(journal.CHECKPOINT, value="\x9b31m"), step=1)

    console.do(fill)
    for arguments in (["runs"], ["show", "sly", "--events"], ["show", "sly", "--raw"], ["timeline"]):
        out = console(*arguments).out
        assert not {"\x1b", "\x9b", "\u202e"} & set(out)
    assert "x=[red]y" in console("show", "sly").out


def test_timeline_draws_every_run(filled: Console) -> None:
    out = filled("timeline").out
    assert all(f"\n{run_id} " in out for run_id in ALL)
    assert "#1 bravo" in out
    assert "! refused" in out


def test_timeline_of_named_runs_in_the_order_named(filled: Console) -> None:
    value = filled("timeline", "held", "done", "held", "-o", "json").json
    assert [run["id"] for run in value["runs"]] == ["held", "done"]
    assert value["runs"][0]["bars"][-1]["owner"] == "bravo"


def test_timeline_writes_an_svg(filled: Console, tmp_path: Path) -> None:
    path = tmp_path / "leases.svg"
    said = filled("timeline", "--svg", str(path), "--width", "700")
    assert said.code == 0
    assert said.out == ""
    assert ET.fromstring(path.read_text()).get("width") == "700"
    assert filled("timeline", "held", "--svg", "-").out.startswith("<svg ")


def test_a_long_journal_needs_few_dots(console: Console) -> None:
    from tenure.cli import timeline

    async def many(store: Store) -> list[int]:
        writer = Writer(store)
        await writer.create("long")
        grant = await writer.claim("long")
        for number in range(40):
            await writer.commit(grant, journal.event(journal.CHECKPOINT, value=number), step=1)
        run = await store.load("long")
        assert run is not None
        return [one.seq for one in await timeline._landed(store, run, apart_ms=10**9)]

    assert console.do(many) == [1, 2, 41]


def test_the_place_may_stand_before_or_after_the_command(filled: Console, capsys: pytest.CaptureFixture[str]) -> None:
    from tenure.cli import run

    assert run(["runs", "--store", filled.url, "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(ALL)
    assert run(["runs", "--store", filled.url, "--namespace", "other", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_settings_come_from_the_environment(
    filled: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tenure.cli import run

    monkeypatch.setenv("TENURE_STORE", filled.url)
    assert run(["runs", "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(ALL)
    monkeypatch.setenv("TENURE_NAMESPACE", f"n-{uuid.uuid4().hex}")
    assert run(["runs", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    monkeypatch.setenv("TENURE_TTL", "5000")
    assert run(["runs"]) == 2
    assert "TENURE_TTL" in capsys.readouterr().err
