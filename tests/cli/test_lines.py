"""What people read beside the tables: log lines that name their run, and a run's result."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tenure import Ledger, open_store
from tenure.cli import run
from tenure.cli.lines import LineFormatter


def test_a_log_line_of_a_run_names_it() -> None:
    record = logging.makeLogRecord(
        {"name": "tenure.run", "levelname": "INFO", "msg": "hello", "run_id": "r1", "attempt": 2, "ordinal": 3}
    )
    assert LineFormatter(worker="w").format(record).endswith("INFO w tenure.run [r1 attempt 2 #3]: hello")
    bare = logging.makeLogRecord({"name": "tenure.store", "levelname": "INFO", "msg": "hello"})
    assert LineFormatter().format(bare).endswith("INFO tenure.store: hello")


async def _settled(url: str) -> None:
    async with open_store(url) as store, Ledger(store) as ledger:
        await ledger.submit("count", None, id="r1")
        async with ledger.hold("r1") as lease:
            await lease.settle("completed", {"sum": 6})


def test_show_prints_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    anyio.run(_settled, url)
    assert run(["show", "r1", "--store", url]) == 0
    assert 'result {"sum":6}' in capsys.readouterr().out


def test_a_worker_looks_for_its_app_before_it_starts_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run(["worker", "no_such_module_here:app", "--store", f"sqlite:///{tmp_path}/runs.db"])
    said = capsys.readouterr().err
    assert code != 0
    assert "no module" in said
    assert not (tmp_path / "runs.db").exists()


APP = """from tenure import App

app = App()


@app.kind("greet")
async def greet(run, name):
    return name
"""


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_worker_says_once_that_it_is_ready(tmp_path: Path, processes: str, *, terminal: bool) -> None:
    (tmp_path / "waiting_app.py").write_text(APP)
    store = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-m", "tenure", "--store", store, "worker", "waiting_app:app", "--processes", processes]
    ours, theirs = os.openpty() if terminal else os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as hears:
        worker = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = b""
        while b"\n" not in said:
            more = hears.read(1000)
            assert more, f"it ended, having said {said!r}"
            said += more
        assert anyio.run(_workers, store) > 0, "it has looked for runs"
        worker.terminate()
        assert worker.wait(timeout=60) == 0
        if not terminal:
            said += hears.read()
    how = "in this process" if processes == "0" else "with 1 process"
    ready = f"tenure: ready: waiting_app:app waits for runs on {store}, namespace default, {how}"
    first, *others = said.decode().splitlines()
    assert first == ready + "; Ctrl-C stops it" * terminal
    assert [line for line in others if "ready" in line] == []


async def _workers(url: str) -> int:
    async with open_store(url) as store:
        return len(await store.beats())
