"""What opening a new file makes, and that processes that open one in the same moment all have it."""

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenure import StoreNotFound, open_store

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


async def test_a_folder_that_was_made_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure.stores.sqlite")
    folder = tmp_path / "a" / "b"
    with pytest.raises(StoreNotFound):
        async with open_store(f"sqlite:///{folder}/t.db?create=off"):
            pass
    assert (caplog.messages, (tmp_path / "a").exists()) == ([], False)
    for _ in range(2):
        async with open_store(f"sqlite:///{folder}/t.db"):
            pass
    async with open_store(f"sqlite:///{folder}/other.db"):
        pass
    assert caplog.messages == [f"the folder {folder} was not there, and was made for t.db"]
