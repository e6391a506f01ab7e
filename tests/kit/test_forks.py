"""The processes of a fault campaign: what they are told reaches them from their first moment on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio

PROGRAM = """
import signal, sys
from pathlib import Path
import anyio
from tenure.testing.chaos.stage import stage

async def main():
    async with stage("tenure.testing.chaos.gate") as forks:
        for _ in range(20):
            process = await forks.fork("asyncio:sleep", 30, errors=Path(sys.argv[1]))
            await process.send(signal.SIGTERM)
            print(await process.ended())

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as who plays a campaign does, and whoever it starts inherits
anyio.run(main)
"""


async def test_a_process_that_is_told_to_end_as_soon_as_it_is_forked_ends(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        done = await anyio.run_process([sys.executable, "-c", PROGRAM, str(tmp_path / "errors")], check=True)
    assert done.stdout.split() == [b"%d" % -signal.SIGTERM] * 20
