"""The console on PostgreSQL: migrations by a command, the same answers as on any store, and no password shown."""

import uuid

import pytest

from cli.kit import Console, fill
from tenure.stores._postgres_migrate import KNOWN


def test_a_schema_is_made_by_the_command_that_its_refusal_names(
    capsys: pytest.CaptureFixture[str], postgres_url: str
) -> None:
    console = Console(capsys, f"{postgres_url}?schema=s_{uuid.uuid4().hex}")
    said = console("runs")
    assert (said.code, said.out) == (8, "")
    assert "tenure --store URL store migrate --apply" in said.err
    assert "tenure --store URL store migrate --apply" in console("doctor").out
    said = console("store", "migrate", "--check")
    assert (said.code, said.out.count("missing")) == (8, KNOWN)
    said = console("store", "migrate", "--apply")
    assert (said.code, said.out.count("applied")) == (0, KNOWN)
    said = console("store", "migrate", "--check")
    assert (said.code, said.out) == (0, "")
    assert console("store", "migrate").code == 2
    assert console("runs").code == 0


def test_the_same_answers_on_postgres(capsys: pytest.CaptureFixture[str], postgres_url: str, namespace: str) -> None:
    console = Console(capsys, f"{postgres_url.replace('tenure@', 'tenure:hunter2@')}?namespace={namespace}")
    console.do(fill)
    assert len(console("runs", "-o", "jsonl").lines) == 6
    assert "tool:boom" in console("show", "poison").out
    assert console("show", "poison", "--raw").code == 0
    assert "#1 bravo" in console("timeline", "held").out
    assert console("cancel", "held", "--reason", "enough").out == "held is cancelled\n"
    said = console("doctor")
    assert "1 run set aside, last poison" in said.out
    assert "round trip" in said.out
    assert "local: a commit waits for its own disk" in said.out
    assert said.out.count(" level ") == 1
    assert "hunter2" not in said.out + said.err
    assert console("submit", "research", "1", "--id", "done").code == 9


def test_other_stores_have_nothing_to_migrate(capsys: pytest.CaptureFixture[str]) -> None:
    assert Console(capsys, "memory://")("store", "migrate", "--check").code == 0
