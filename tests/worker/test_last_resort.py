"""What a process does about a run that nothing stops, and that a worker is no matter of which loop it runs on."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tenure import ActiveRun, App, Retry, Status
from worker.kit import opened, until, working

PROGRAM = """
import sys, time, anyio
from tenure import ActiveRun, App, Ledger, Worker, open_store

app = App()

@app.kind("deaf")
async def deaf(run: ActiveRun[None], _: None) -> None:
    if sys.argv[1] == "thread":
        await run.step("sleeps", time.sleep, 60)
    time.sleep(60)

async def main():
    store = open_store("memory://")
    async with store, Ledger(store, ttl=1, max_stall=1) as ledger:
        async with Worker(app, ledger, drain=0, last_resort="exit"):
            await ledger.submit(deaf, None, id="r")
            while (await ledger.load("r")).token == 0:
                await anyio.sleep(0.01)
            await anyio.sleep(0.2)
            if sys.argv[1] == "thread":
                await ledger.cancel("r", reason="test")
            await anyio.sleep(60)

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "loop"])
def test_i5_as_a_last_resort_the_process_ends_when_a_run_goes_on_after_its_lease(where: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    ended = subprocess.run(
        [sys.executable, str(program), where], check=False, capture_output=True, text=True, timeout=40
    )
    assert ended.returncode == 70, ended.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_handlers_steps_threads_and_drains_are_alike_on_both_loops(anyio_backend: str) -> None:
    app, tries = App(), []

    def flaky(n: int) -> int:
        tries.append(n)
        if len(tries) < 2:
            raise OSError("again")
        return n + 1

    @app.kind("k")
    async def handler(run: ActiveRun[int], input: int) -> int:
        found = await run.step("thread", flaky, input, retry=Retry(attempts=2, wait=0.001))
        await run.submit("child", child, found)
        return found

    @app.kind("child")
    def child(run: ActiveRun[int], input: int) -> int:
        return input * 2

    async with opened() as ledger:
        async with working(app, ledger) as worker:
            handle = await ledger.submit(handler, 1, id="r")
            assert await handle.result(timeout=10) == 2
            assert await ledger.handle("r.child", child).result(timeout=10) == 4
            await until(lambda: worker.leader.leading)
        runs: list[Any] = [run async for run in ledger.find()]
        assert {run.status for run in runs} == {Status.COMPLETED}
    assert tries == [1, 1]
