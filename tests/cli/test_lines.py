"""What people read beside the tables: log lines that name their run, and a run's result."""

import logging
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
