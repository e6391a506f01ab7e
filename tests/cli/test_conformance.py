"""`tenure conformance`: what holds on a real server, what a broken store is told, and what is left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """
import tenure.core.rules as rules

plain = rules.holds
rules.holds = lambda run, grant: run.epoch == grant.epoch
"""


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(path), env["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-m", "tenure", "conformance", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_live_server_keeps_the_contract_through_a_chaos_and_is_left_as_it_was(valkey_url: str) -> None:
    done = run(valkey_url, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {part["part"]: part for part in json.loads(done.stdout)}
    assert {"chaos", "claims", "ends", "fence", "history", "inbox", "reads", "sequences"} <= set(found)
    assert found["chaos"]["held"] == 5
    assert sum(part["held"] for part in found.values()) > 120
    assert all(part["ok"] and not part["failed"] for part in found.values())
    import redis

    with redis.Redis.from_url(valkey_url) as client:
        assert list(client.scan_iter("tenure:{scratch-*")) == []


@pytest.mark.slow
def test_a_store_that_lets_a_stale_holder_write_fails_by_name(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    done = run("Memory://", path=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    assert "test_i01_only_the_recorded_grant_writes" in done.stdout
    assert "fails" in done.stdout
    assert "it lives in one process, so nothing can be killed beside it" in done.stdout
    assert "(exit 6)" in done.stdout.splitlines()[-1]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pytest.py").write_text("raise ModuleNotFoundError(\"No module named 'pytest'\", name='pytest')\n")
    done = run("memory://", path=tmp_path)
    assert done.returncode == 2
    assert (
        "MISSING_EXTRA: conformance needs the package 'pytest'; install tenure with the extra `testing`" in done.stderr
    )


def test_a_server_that_is_not_there_is_said_as_by_any_command() -> None:
    assert run("redis://127.0.0.1:1").returncode == 7
    assert run("http://127.0.0.1").returncode == 2
