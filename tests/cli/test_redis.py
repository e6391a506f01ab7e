"""The console on real servers: what is unreachable, what is unsafe, and the same answers as on any store."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from cli.kit import Console, fill
from conftest import StartRedis
from tenure.testing.servers import VALKEY9

SECRET = "hunter2-never-shown"
APP = """
from tenure import ActiveRun, App

app = App()


@app.kind("greet")
async def greet(run: ActiveRun[str], name: str) -> str:
    return name
"""


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.parametrize("command", [["runs"], ["show", "r"], ["submit", "k", "1"], ["timeline"]])
def test_7_a_server_that_is_not_there(console: Console, closed_port: int, command: list[str]) -> None:
    said = console(*command, url=f"redis://user:{SECRET}@127.0.0.1:{closed_port}/0")
    assert said.code == 7
    assert said.err.startswith("tenure: STORE_UNAVAILABLE: ")
    assert f"127.0.0.1:{closed_port}" in said.err
    assert SECRET not in said.err + said.out
    assert said.out == ""


def test_7_is_a_finding_of_the_doctor(console: Console, closed_port: int) -> None:
    said = console("doctor", "-o", "json", url=f"redis://user:{SECRET}@127.0.0.1:{closed_port}/0")
    assert (said.code, said.json["problems"], SECRET in said.out + said.err) == (7, 1, False)
    (one,) = said.json["findings"]
    assert (one["name"], "cannot be reached" in one["text"]) == ("store", True)
    assert one["fix"].startswith("look whether the server runs there")


def test_8_a_server_that_would_drop_runs(console: Console, start_redis: StartRedis) -> None:
    with start_redis(VALKEY9, maxmemory_policy="allkeys-lru") as server:
        said = console("runs", url=server.url)
        assert said.code == 8
        assert said.err.startswith("tenure: STORE_UNSAFE: ")
        said = console("doctor", url=server.url)
        assert said.code == 8
        assert "✗ store" in said.out
        assert "→ CONFIG SET maxmemory-policy noeviction" in said.out


def test_the_same_answers_on_a_server(capsys: pytest.CaptureFixture[str], valkey_url: str, namespace: str) -> None:
    console = Console(capsys, f"{valkey_url}?namespace={namespace}")
    console.do(fill)
    assert len(console("runs", "-o", "jsonl").lines) == 6
    assert "tool:boom" in console("show", "poison").out
    assert console("show", "poison", "--raw").code == 0
    assert "#1 bravo" in console("timeline", "held").out
    assert console("cancel", "held", "--reason", "enough").out == "held is cancelled\n"
    said = console("doctor")
    assert "1 run set aside, last poison" in said.out
    assert "round trip" in said.out
    assert said.out.count(" level ") == 1
    assert console("submit", "research", "1", "--id", "done").code == 9


def test_a_password_is_never_printed(capsys: pytest.CaptureFixture[str], start_redis: StartRedis) -> None:
    with start_redis(VALKEY9) as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", SECRET)
        port = server.url.rpartition(":")[2].partition("/")[0]
        console = Console(capsys, f"redis://:{SECRET}@127.0.0.1:{port}/0")
        console.do(fill)
        for command in (["runs"], ["show", "held"], ["doctor"], ["doctor", "-o", "json"], ["show", "nobody"]):
            said = console(*command)
            assert said.code in {0, 3, 8}
            assert SECRET not in said.out + said.err
        said = console("runs", url=f"redis://:wrong-{SECRET}@127.0.0.1:{port}/0")
        assert said.code in {7, 8}
        assert SECRET not in said.err


def test_a_worker_says_once_that_its_server_keeps_no_log(tmp_path: Path, redis7_url: str, namespace: str) -> None:
    (tmp_path / "greeting.py").write_text(APP)
    tenure = [sys.executable, "-m", "tenure", "--store", redis7_url, "--namespace", namespace]
    errors = tmp_path / "errors"
    with errors.open("w") as said:
        worker = subprocess.Popen([*tenure, "worker", "greeting:app", "--processes", "2"], cwd=tmp_path, stderr=said)
    try:
        submit = [*tenure, "submit", "greet", '"Ada"', "--wait", "--timeout", "60"]
        done = subprocess.run(submit, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=60)
    assert errors.read_text().count("keeps no append-only file") == 1
