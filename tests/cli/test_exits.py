"""Exit codes: one for every error code, each with one sentence and no traceback."""

import pytest

from cli.kit import Console
from tenure.cli.exits import EXIT, Exit, UsageError, report
from tenure.errors import Code, LeaseHeld, LeaseLost, RunFailed, StoreUnavailable, by_code


def test_every_error_code_has_an_exit_code() -> None:
    assert set(EXIT) == set(Code)
    assert {int(code) for code in Exit} == {*range(11), 130}
    assert Exit.OK not in EXIT.values()


@pytest.mark.parametrize(
    "code, number",
    [
        (Code.RUN_NOT_FOUND, 3),
        (Code.LEASE_HELD, 4),
        (Code.LEASE_LOST, 5),
        (Code.CORRUPT_RECORD, 6),
        (Code.STORE_UNAVAILABLE, 7),
        (Code.STORE_UNSAFE, 8),
        (Code.RUN_CONFLICT, 9),
        (Code.STALE_DECISION, 9),
        (Code.RUN_FAILED, 10),
        (Code.RUN_CANCELLED, 10),
    ],
)
def test_the_numbers_that_scripts_know_do_not_change(code: Code, number: int) -> None:
    assert EXIT[code] == number
    assert by_code(code).code is code


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    error = LeaseHeld("held by bravo for 21 s;\nwait, or evict it", owner="bravo", remaining_ms=21_000)
    assert report(error) == Exit.HELD
    out, err = capsys.readouterr()
    assert (out, err) == ("", "tenure: LEASE_HELD: held by bravo for 21 s; wait, or evict it\n")


def test_ours_is_told_out_of_a_group_of_errors(capsys: pytest.CaptureFixture[str]) -> None:
    lost = LeaseLost("stop", reason="expired")
    group = BaseExceptionGroup("several", [ValueError("x"), BaseExceptionGroup("inner", [lost])])
    assert report(group) == Exit.LOST
    assert "LEASE_LOST: stop" in capsys.readouterr().err


def test_a_foreign_error_names_its_type_and_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(KeyError("x")) == Exit.FAILED
    assert "KeyError: 'x'; TENURE_LOG=debug shows where" in capsys.readouterr().err


def test_a_traceback_is_shown_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    report(RunFailed("it failed", failure="X"))
    assert "Traceback" not in capsys.readouterr().err
    try:
        raise StoreUnavailable("gone; try again")  # noqa: TRY301 - it needs a place in a file
    except StoreUnavailable as error:
        report(error, debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_what_an_error_quotes_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report(UsageError("\x1b[31mred\x07"))
    assert capsys.readouterr().err == "tenure: \\x1b[31mred\\x07\n"


def test_0_ok(filled: Console) -> None:
    assert filled("runs").code == 0


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["no-such-command"], "No such command"),
        (["show"], "Missing argument"),
        (["fork", "held"], "Missing option"),
        (["runs", "-o", "yaml"], "yaml"),
        (["runs", "--status", "finished"], "'finished' is no status; use queued"),
        (["runs", "--tag", "team"], "write KEY=VALUE"),
        (["submit", "research", "hello"], "the input is not JSON"),
        (["submit", "research", "@/no/such/file"], "cannot be read (No such file or directory)"),
        (["submit", "research", "NaN"], "NaN has no place in JSON"),
        (["submit", "research", '{"a":1,"a":2}'], "the same key twice"),
        (["submit", "two words", "1"], "INVALID_ID"),
        (["submit", "research", "1", "--id", "_leader"], "ids that begin with _ are reserved"),
        (["submit", "research", "1", "--at", "tomorrow"], "is no instant"),
        (["submit", "research", "1", "--at", "+1week"], "is no length of time"),
        (["show", "a b"], "INVALID_ID"),
        (["timeline", "--since", "soon"], "is no length of time"),
        (["timeline", "--svg", "/no/such/folder/x.svg"], "cannot be written"),
        (["--ttl", "0.1", "runs"], "ttl"),
        (["--log", "loud", "runs"], "TENURE_LOG"),
        (["runs", "--namespace", "A B"], "INVALID_ID"),
    ],
)
def test_2_usage(filled: Console, arguments: list[str], sentence: str) -> None:
    said = filled(*arguments)
    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize("url", ["mysql://host/db", "nonsense", "http://[", "memory://a/b", "memory://?durable=1"])
def test_2_a_url_that_is_none(console: Console, url: str) -> None:
    said = console("runs", url=url)
    assert said.code == 2
    assert "INVALID_URL" in said.err


@pytest.mark.parametrize(
    "arguments",
    [["show"], ["show", "--raw"], ["timeline"], ["cancel", "--reason", "r"], ["evict", "--reason", "r"], ["retry"]],
)
def test_3_a_run_that_is_not_there(filled: Console, arguments: list[str]) -> None:
    said = filled(arguments[0], "nobody", *arguments[1:])
    assert said.code == 3
    assert said.err.startswith("tenure: RUN_NOT_FOUND: ")
    assert "nobody" in said.err


def test_9_conflict(filled: Console) -> None:
    assert filled("submit", "research", '{"question": "other"}', "--id", "done").code == 9
    assert filled("cancel", "done", "--reason", "late").code == 9
    assert filled("evict", "asks", "--reason", "it waits").code == 9


def test_10_a_run_that_ended_badly(filled: Console) -> None:
    for run_id, sentence in (("bad", "no such account"), ("poison", "RUN_QUARANTINED")):
        said = filled("submit", "refund", "null", "--id", run_id, "--wait")
        assert said.code == 10
        assert sentence in said.err
        assert said.out == ""


def test_8_memory_cannot_reach_a_level_that_was_named(console: Console) -> None:
    said = console("doctor", url="memory://?durability=disk")
    assert said.code == 8
    assert "STORE_UNSAFE" in said.err
