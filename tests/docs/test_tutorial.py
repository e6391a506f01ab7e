"""The tutorial, as it stands: what is killed goes on, two workers share the runs, and Redis changes nothing."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@contextlib.contextmanager
def worker(folder: Path, log: Path, store: str = "") -> Iterator[None]:
    env = {**os.environ, **({"TENURE_STORE": store} if store else {})}
    with log.open("a") as out:
        command = [sys.executable, "-m", "tenure", *COMMANDS[0].split()[1:]]
        started = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=env)
        try:
            yield
            assert started.poll() in (None, -signal.SIGKILL), "it ended by itself"
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(timeout=60)


def run(folder: Path, line: str, store: str = "") -> str:
    env = {**os.environ, **({"TENURE_STORE": store} if store else {})}
    command = [sys.executable, "-m", "tenure", *line.split()[1:]]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def fetched(log: Path) -> Counter[str]:
    return Counter(re.findall(r"fetching page (\d+)", log.read_text()))


def owner(folder: Path, log: Path) -> int:
    """Return the pid of the worker that has fetched some pages of the long run, and fetches more."""
    until = time.monotonic() + 60
    while True:
        assert time.monotonic() < until, log.read_text()
        found = re.search(r"(?m)^r2 .* running .*-(\d+)\.\d+/", run(folder, "tenure runs"))
        if found is not None and fetched(log)["5"]:
            return int(found[1])


@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(PROGRAM)
    log = tmp_path / "log"
    with worker(tmp_path, log):
        assert "4 pages" in run(tmp_path, "tenure submit report 4 --id r1 --wait")
        assert fetched(log) == Counter("1234"), "what was recorded is not fetched again"
        assert run(tmp_path, "tenure show r1 --events").count("attempt/start") == 2
        assert "r1" in run(tmp_path, "tenure timeline r1")
        assert "the death counts against it\n" in log.read_text()
        with worker(tmp_path, log):
            until = time.monotonic() + 60
            # Two workers of two processes each.
            while "4 live workers" not in (said := run(tmp_path, "tenure doctor")):
                assert time.monotonic() < until, said
            with ThreadPoolExecutor() as beside:
                told = beside.submit(run, tmp_path, "tenure submit report 30 --id r2 --wait")
                os.kill(owner(tmp_path, log), signal.SIGKILL)
                assert "30 pages" in told.result()
            assert sum(fetched(log).values()) < 4 + 30 + 5, "of what was recorded nothing is fetched again"
            said = run(tmp_path, "tenure runs")
            assert "r1" in said
            assert "r2" in said


@pytest.mark.slow
def test_redis_is_another_url_and_nothing_else(tmp_path: Path, valkey_url: str, namespace: str) -> None:
    (tmp_path / "report.py").write_text(PROGRAM)
    store = f"{valkey_url}?namespace={namespace}"
    with worker(tmp_path, tmp_path / "log", store=store):
        assert "4 pages" in run(tmp_path, "tenure submit report 4 --id r1 --wait", store)
    assert fetched(tmp_path / "log") == Counter("1234")


def test_each_command_of_the_page_is_one_that_is_run() -> None:
    tried = Path(__file__).read_text()
    known = [*re.findall(r'"(tenure [a-z][^"]*)"', tried), "tenure worker report:app", "export TENURE_STORE"]
    known.append("redis-server --port 6379 ")
    assert [line for line in COMMANDS if not any(line.startswith(one) for one in known)] == []
