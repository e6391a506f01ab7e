"""`submit`, `retry`, `cancel`, `evict`, `release`: what they do to the store and what they print."""

import io
import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from cli.kit import Console, Writer
from tenure.cli.ends import who
from tenure.cli.exits import UsageError
from tenure.cli.reading import read_instant, read_seconds
from tenure.core import canonical, journal
from tenure.core.run import Outcome, Run, Status
from tenure.store import Store


def _load(console: Console, run_id: str) -> Run:
    async def load(store: Store) -> Run:
        found = await store.load(run_id)
        assert found is not None
        return found

    found: Run = console.do(load)
    return found


def _input(console: Console, run_id: str) -> object:
    async def tail(store: Store) -> object:
        return journal.events_of((await store.tail(run_id))[0])[0]["input"]

    return console.do(tail)


def test_submit_prints_the_id_and_nothing_else(console: Console) -> None:
    said = console("submit", "research", '{"question": "why"}')
    assert (said.code, said.err) == (0, "")
    run_id = said.out.strip()
    assert said.out == run_id + "\n"
    assert _load(console, run_id).kind == "research"
    assert _input(console, run_id) == {"question": "why"}


def test_submit_takes_a_name_a_time_a_place_in_the_queue_and_tags(console: Console) -> None:
    said = console(
        *("submit", "research", "1", "--id", "r-1", "--at", "+2h", "--priority", "7"),
        *("--tag", "team=blue", "--tag", "env=a=b", "-o", "json"),
    )
    value = said.json
    assert value["tags"] == {"team": "blue", "env": "a=b"}
    assert value["priority"] == 7
    assert value["due_ms"] - value["created_ms"] == pytest.approx(7_200_000, abs=5_000)
    assert value["id"] == "r-1"


def test_submit_again_is_the_same_run(console: Console) -> None:
    for _ in range(2):
        assert console("submit", "research", "[1,2]", "--id", "same").out == "same\n"
    assert len(console("runs", "-o", "jsonl").lines) == 1


def test_submit_reads_a_file_and_stdin(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input.json"
    path.write_text('{"from": "a file"}\n')
    run_id = console("submit", "research", f"@{path}").out.strip()
    assert _input(console, run_id) == {"from": "a file"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('{"from": "stdin ü"}'.encode())))
    run_id = console("submit", "research", "-").out.strip()
    assert _input(console, run_id) == {"from": "stdin ü"}
    path.write_text("not json")
    said = console("submit", "research", f"@{path}")
    assert said.code == 2
    assert f"{path} is not JSON" in said.err
    assert "not json" not in said.err, "an error carries no payload"


@pytest.fixture
def worker(console: Console) -> Iterator[threading.Event]:
    """A thread that claims what is due of `research` and answers it, until it is told to stop."""
    stop = threading.Event()

    async def serve(store: Store) -> None:
        writer = Writer(store)
        while not stop.is_set():
            for hint in await store.due(["research"]):
                grant = await writer.claim(hint.run)
                result = b'{"answer":42}'
                end = journal.event(journal.RUN_END, status="completed")
                await writer.commit(
                    grant,
                    end,
                    status=Status.COMPLETED,
                    outcome=Outcome(result=canonical.digest(result)),
                    blobs=[result],
                )
            await anyio.sleep(0.02)

    thread = threading.Thread(target=lambda: console.do(serve))
    thread.start()
    yield stop
    stop.set()
    thread.join()


@pytest.mark.usefixtures("worker")
def test_wait_prints_the_result_as_json(console: Console) -> None:
    said = console("submit", "research", "1", "--wait", "--timeout", "20")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out) == {"answer": 42}


def test_cancel_ends_a_run_and_its_children_and_says_why(console: Console) -> None:
    async def fill(store: Store) -> None:
        writer = Writer(store)
        await writer.create("parent")
        await writer.create("child", parent="parent")

    console.do(fill)
    said = console("cancel", "parent", "--reason", "not needed")
    assert said.out == "parent is cancelled\n"
    run = _load(console, "parent")
    assert run.status is Status.CANCELLED
    assert run.outcome is not None
    assert (run.outcome.message, run.outcome.by) == ("not needed", who())
    assert _load(console, "child").status is Status.CANCELLED


def test_cancel_with_grace_asks_first(filled: Console) -> None:
    said = filled("cancel", "held", "--reason", "later", "--grace", "60")
    assert said.out == "held is asked to end and is cancelled after 60 s at the latest\n"
    run = _load(filled, "held")
    assert run.status is Status.RUNNING
    assert run.cancel_by_ms is not None
    assert "cancelled in" in filled("runs", "--owner", "bravo").out


def test_evict_ends_the_lease_and_queues_the_run(filled: Console) -> None:
    said = filled("evict", "held", "--reason", "stuck", "-o", "json")
    assert said.json["status"] == "queued"
    run = _load(filled, "held")
    assert (run.grants[-1].ended, run.grants[-1].reason, run.grants[-1].by) == ("evict", "stuck", who())
    assert "stuck; by" in filled("show", "held").out


def test_release_queues_what_was_set_aside(filled: Console) -> None:
    assert filled("release", "poison", "--reason", "fixed").out == "poison is queued again\n"
    run = _load(filled, "poison")
    assert (run.status, run.crashes) == (Status.QUEUED, 0)
    assert "signal SIGSEGV" in filled("show", "poison").out, "the evidence stays"


def test_fork_queues_a_run_that_begins_after_a_step(filled: Console) -> None:
    assert filled("fork", "done", "--at", "1", "--id", "other").out == "other\n"
    assert filled("fork", "done", "--at", "1", "--id", "other").code == 0
    assert filled("fork", "done", "--at", "0", "--id", "other").code == 9
    run = _load(filled, "other")
    assert (run.kind, run.status, run.tags) == ("research", Status.QUEUED, {"team": "blue"})
    assert filled("verify", "other").code == 0
    assert filled("fork", "done", "--at", "2").code == 2
    assert filled("fork", "nobody", "--at", "0").code == 3
    assert filled("retry", "done", "--from", "1").out == "done-retry-1\n"
    assert filled("retry", "held", "--from", "1").code == 9


def test_retry_queues_the_same_input_under_a_new_id(filled: Console) -> None:
    for _ in range(2):
        assert filled("retry", "bad").out == "bad-retry\n"
    run = _load(filled, "bad-retry")
    assert (run.kind, run.status) == ("refund", Status.QUEUED)


@pytest.mark.parametrize(
    "text, seconds", [("30", 30), ("30s", 30), ("1.5m", 90), ("2h", 7_200), ("1d", 86_400), ("0", 0)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 weeks", "nan", "inf", "1e99"])
def test_lengths_of_time_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no length of time"):
        read_seconds(text)


def test_instants() -> None:
    now = datetime(2030, 1, 31, 8, tzinfo=UTC)
    assert read_instant("+90s", now=now) - now == timedelta(seconds=90)
    assert read_instant("2030-01-31T08:00:00Z") == now
    assert read_instant("2030-01-31T08:00:00") == now
    assert read_instant("2030-01-31T10:00:00+02:00") == now


def test_a_text_may_begin_with_the_mark_that_editors_put_before_it(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_bytes(b'\xef\xbb\xbf{"a":1}')
    assert console("submit", "k", f"@{path}", "--id", "marked").code == 0
    for data in (b"\xff\xfe", '{"a":1}'.encode("utf-16"), b'{"a":1e400}', b'{"a":1,"a":2}', b"[" * 100):
        path.write_bytes(data)
        said = console("submit", "k", f"@{path}")
        assert (said.code, said.out) == (2, "")
        assert "INVALID_CONTENT" in said.err


def test_a_tag_that_is_given_twice_is_refused(console: Console) -> None:
    said = console("submit", "k", "1", "--tag", "a=1", "--tag", "a=2")
    assert (said.code, said.out) == (2, "")
    assert "'a' is given twice" in said.err


@pytest.mark.parametrize("url", ["memory://", "memory://shelf-of-nobody"])
@pytest.mark.parametrize("namespace", ["default", "far"])
def test_what_would_end_with_the_command_takes_no_runs(
    console: Console, filled: Console, url: str, namespace: str, tmp_path: Path
) -> None:
    exported = tmp_path / "runs.jsonl"
    assert filled("store", "export", "--file", str(exported)).code == 0
    for command in (
        ["submit", "k", "1"],
        ["submit", "k", "1", "--wait"],
        ["store", "import", str(exported)],
    ):
        where = f"{url}-{namespace}-{command[0]}{len(command)}" if url != "memory://" else url
        said = console(*command, "--namespace", namespace, url=where)
        assert (said.code, said.out) == (2, ""), said
        assert "memory:// ends with this process" in said.err
        assert "sqlite:///runs.db" in said.err
