"""The demonstration is true: real processes, a real kill and a real freeze, on the embedded default and on a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def _demo(*words: str) -> tuple[int, list[dict[str, object]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "demo", "-o", "json", *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "TENURE_LOG": "error"},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_line_of_the_demo_is_true_on_sqlite(seed: int, tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    code, claims = _demo("--seed", str(seed), "--svg", str(picture))
    assert [claim for claim in claims if not claim["ok"]] == []
    assert code == 0
    assert len(claims) == 7
    assert picture.read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_every_line_of_the_demo_is_true_on_valkey(seed: int, valkey_url: str) -> None:
    code, claims = _demo("--seed", str(seed), "--store", valkey_url)
    assert [claim for claim in claims if not claim["ok"]] == []
    assert code == 0


@pytest.mark.slow
def test_every_line_of_the_demo_is_true_on_postgresql(postgres_url: str) -> None:
    code, claims = _demo("--store", postgres_url)
    assert [claim for claim in claims if not claim["ok"]] == []
    assert code == 0


@pytest.mark.slow
def test_without_a_fence_work_that_was_committed_is_lost() -> None:
    code, claims = _demo("--no-fence")
    found = {str(claim["text"]): claim for claim in claims}
    assert not found["committed units overwritten"]["ok"]
    assert code == 0


def test_memory_is_one_process_and_the_demo_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "demo", "--store", "memory://"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "three processes" in done.stderr
