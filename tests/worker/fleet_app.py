"""The app that real worker processes of the tests execute; what it did stands in the files of FLEET_DIR."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from tenure import ActiveRun, App

ROOM = Path(os.environ["FLEET_DIR"])

app = App(version="1")


def note(what: str) -> None:
    """Append one line; short ones are written whole by any number of processes."""
    with (ROOM / "notes").open("a") as notes:
        notes.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {os.getpid()} {what}\n")


@app.kind("steps")
async def steps(run: ActiveRun[dict[str, Any]], input: dict[str, Any]) -> int:
    """`count` steps of `seconds` each; step n writes a note before and after."""
    note(f"call {run.id}")

    async def work(n: int) -> int:
        note(f"start {run.id} {n}")
        await anyio.sleep(input.get("seconds", 0))
        note(f"end {run.id} {n}")
        return n

    done = 0
    for n in range(input.get("count", 1)):
        done += await run.step(f"s{n}", work, n)
    return done


@app.kind("gate")
async def gate(run: ActiveRun[str], input: str) -> str:
    """One step, then a step that waits for a file."""
    note(f"call {run.id}")
    await run.step("first", note, f"first {run.id}")

    async def wait() -> str:
        note(f"wait {run.id}")
        while not (ROOM / input).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.005)
        return run.id

    return await run.step("wait", wait)


@app.kind("ticks")
async def ticks(run: ActiveRun[str], input: str) -> str:
    """Short steps, until a file is there."""
    note(f"call {run.id}")

    async def tick() -> bool:
        await anyio.sleep(0.2)
        return (ROOM / input).exists()

    n = 0
    while not await run.step(f"tick-{n}", tick):
        n += 1
    return run.id


@app.kind("hold")
async def hold(run: ActiveRun[str], input: str) -> str:
    """Waits for a file before its first step lands."""
    note(f"call {run.id}")
    while not (ROOM / input).exists():  # noqa: ASYNC110 - another process makes it
        await anyio.sleep(0.005)
    return await run.step("only", lambda: run.id)


@app.kind("dies")
async def dies(run: ActiveRun[str], input: str) -> None:
    """Takes its process with it, in one of several ways."""
    note(f"call {run.id}")
    if input.startswith("exit"):
        os._exit(int(input.removeprefix("exit") or 137))
    os.kill(os.getpid(), getattr(signal, input))
    await anyio.sleep(10)


@app.kind("blocks")
async def blocks(run: ActiveRun[float], input: float) -> str:
    """Blocks the loop inside a step."""
    note(f"call {run.id}")

    async def blocked() -> str:
        time.sleep(input)  # noqa: ASYNC251 - that is the point
        return "done"

    return await run.step("blocked", blocked)


@app.kind("deaf")
async def deaf(run: ActiveRun[float], input: float) -> None:
    """A thread that nothing can stop."""
    note(f"call {run.id}")

    def sleeps() -> None:
        time.sleep(input)
        note(f"awake {run.id}")

    await run.step("sleeps", sleeps)


@app.kind("spawns")
async def spawns(run: ActiveRun[None], _: None) -> None:
    """Leaves a program of its own in the process group, and dies."""
    import subprocess

    left = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    note(f"left {left.pid}")
    os._exit(3)


@app.kind("quits")
async def quits(run: ActiveRun[str], input: str) -> None:
    """Calls sys.exit: itself, in a step, in a step of a task of its own, or in a thread."""
    note(f"call {run.id}")

    async def leave() -> None:
        sys.exit(0)

    match input:
        case "handler":
            await leave()
        case "step":
            await run.step("leave", leave)
        case "thread":
            await run.step("leave", sys.exit, 0)
        case _:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.step, "leave", leave)
