"""The app of a rolling deploy: its version, and which others it accepts, stand in the environment."""

import os
import time
from pathlib import Path

import anyio

from tenure import ActiveRun, App

ROOM = Path(os.environ["FLEET_DIR"])
VERSION, *ACCEPTS = os.environ["ROLLING_VERSION"].split()

app = App(version=VERSION, accepts=ACCEPTS)


@app.kind("voyage")
async def voyage(run: ActiveRun[str], input: str) -> list[str]:
    """Steps of about a second, until a file is there; each says which version took it."""
    with (ROOM / "notes").open("a") as notes:
        notes.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {os.getpid()} call {run.id} {VERSION}\n")

    async def leg() -> tuple[str, bool]:
        await anyio.sleep(1)
        return VERSION, (ROOM / input).exists()

    log: list[str] = []
    while True:
        by, there = await run.step(f"leg-{len(log)}", leg)
        log.append(by)
        if there:
            return log
