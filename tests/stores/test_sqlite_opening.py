"""Processes that open a new file in the same moment: one makes it, and all of them have it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

OPENS = """
import sys, time
import anyio
from tenure import open_store

async def main() -> None:
    while time.time() < float(sys.argv[2]):
        pass
    async with open_store(sys.argv[1]) as store:
        await store.facts()

anyio.run(main)
"""


@pytest.mark.slow
def test_processes_that_open_a_new_file_together_wait_for_each_other(tmp_path: Path) -> None:
    for number in range(6):
        together = str(time.time() + 1.0)
        opening = [
            subprocess.Popen(
                [sys.executable, "-c", OPENS, f"sqlite:///{tmp_path}/{number}.db", together],
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        said = [process.communicate(timeout=60)[1] for process in opening]
        assert [process.returncode for process in opening] == [0] * 4, said
