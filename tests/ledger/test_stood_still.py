"""What the log says of a loop that stood still: who blocked it, or that the process did."""

import signal
import subprocess
import sys
import time

import anyio
import pytest

from tenure import ActiveRun, App, Ledger, Worker, open_store
from tenure.testing._parent import dying_with_parent

HOLDER = """
import logging, anyio
from tenure import Ledger, open_store

async def main():
    logging.basicConfig()
    async with open_store("memory://") as store, Ledger(store, ttl=3) as ledger:
        await ledger.submit("count", None, id="r1")
        async with ledger.hold("r1") as lease:
            print("held", flush=True)
            with anyio.move_on_after(5):
                while not ledger.pulse.late_renewals:
                    await anyio.sleep(0.02)
            await lease.settle("completed")

anyio.run(main)
"""


def test_a_process_that_was_stopped_is_not_told_to_move_blocking_work() -> None:
    command = dying_with_parent([sys.executable, "-c", HOLDER])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.8)
        process.send_signal(signal.SIGCONT)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 0, said
    assert "stood still for 1." in said
    assert "runs r1; most likely the whole process did" in said
    assert "move blocking work" not in said


@pytest.mark.anyio
async def test_a_handler_that_blocks_from_its_first_line_is_told_where(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.kind("k")
    async def handler(run: ActiveRun[None], _: None) -> None:
        time.sleep(2.5)  # noqa: ASYNC251 - that is the fault

    async with open_store("memory://") as store, Ledger(store, ttl=3) as ledger, Worker(app, ledger, drain=0):
        await (await ledger.submit("k", None, id="r1")).result(timeout=20)
        with anyio.fail_after(5):
            while not ledger.pulse.late_renewals:  # noqa: ASYNC110 - another task counts
                await anyio.sleep(0.02)
    said = caplog.text
    assert "was blocked for 2." in said
    assert "time.sleep(2.5)" in said
    assert "most likely" not in said
