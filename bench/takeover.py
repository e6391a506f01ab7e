"""How long a run stands still when its worker dies or freezes: real processes and signals, times of the store's clock.

    python bench/takeover.py [--kills 30] [--store valkey|sqlite]
    python bench/takeover.py --frozen [--freezes 10]

Killed: from the end of the process to the survivor's grant, under one supervisor, ttl 30 s; bar: median under 100 ms,
worst under 1 s. Frozen: from SIGSTOP to the grant of another of 4 workers, ttl 2 s; bar: all under ttl + 500 ms.
"""

import argparse
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio

from tenure import Ledger, Store, open_store
from tenure.testing.servers import VALKEY9, start_server

APP = """
import os
from pathlib import Path
import anyio
from tenure import ActiveRun, App

app = App()

@app.kind("hold")
async def hold(run: ActiveRun[None], _: None) -> int:
    Path(run.id).write_text(str(os.getpid()))
    while not Path(run.id + ".go").exists():
        await anyio.sleep(0.02)
    return await run.step("only", os.getpid)
"""

SETTLED_S = 1.5
FROZEN_TTL_S = 2.0


class Stage:
    """A folder, a store, and worker services."""

    def __init__(self, room: Path, url: str) -> None:
        self.room = room
        self.url = url
        self.services: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, ttl: float) -> None:
        """Start one service."""
        env = {**os.environ, "TENURE_STORE": self.url, "TENURE_TTL": str(ttl), "TENURE_LOG": "error"}
        env["PYTHONPATH"] = os.pathsep.join([*sys.path, str(self.room)])
        command = [sys.executable, "-m", "tenure", "worker", "takeover_app:app", *options]
        log = (self.room / "log").open("ab")
        self.services.append(subprocess.Popen(command, env=env, cwd=self.room, stderr=log))
        log.close()

    async def holder(self, run_id: str, *, other_than: int = 0) -> int:
        """Wait until a process works on a run, and return its pid."""
        path = self.room / run_id
        with anyio.fail_after(30):
            while True:
                if path.exists() and (text := path.read_text()) and int(text) != other_than:
                    return int(text)
                await anyio.sleep(0.005)


@contextmanager
def stage(kind: str) -> Iterator[Stage]:
    """A stage whose services are gone when the block ends."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (room / "takeover_app.py").write_text(APP)
        if kind == "sqlite":
            url = f"sqlite:///{room}/takeover.db"
        else:
            url = stack.enter_context(start_server(VALKEY9, options={"appendonly": "yes"})).url
        made = Stage(room, url)
        try:
            yield made
        finally:
            for service in made.services:
                service.send_signal(signal.SIGCONT)
                service.send_signal(signal.SIGINT)
            for service in made.services:
                service.wait(60)


async def store_now_ms(store: Store) -> float:
    """The store's time as of this moment: its answer, less half of what it took to arrive."""
    before = time.monotonic()
    facts = await store.facts()
    return facts.now_us / 1000 + (time.monotonic() - before) * 500


async def killed(kind: str, kills: int) -> list[float]:
    """Kill the holder `kills` times; return the milliseconds until the survivor's grant."""
    took = []
    with stage(kind) as made:
        made.start("--processes", "2", ttl=30)
        async with open_store(made.url) as store, Ledger(store) as ledger:
            for number in range(kills):
                run_id = f"k{number}"
                # Both children idle: what is measured is a takeover and not a start.
                await _idle(store, workers=2)
                await ledger.submit("hold", None, id=run_id)
                pid = await made.holder(run_id)
                await anyio.sleep(0.2)
                watched = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
                select.select([watched], [], [])
                ended_ms = await store_now_ms(store)
                os.close(watched)
                await made.holder(run_id, other_than=pid)
                run = await ledger.load(run_id)
                took.append(run.grants[1].from_ms - ended_ms)
                (made.room / f"{run_id}.go").touch()
                await ledger.handle(run_id).result(timeout=30)
    return took


async def _idle(store: Store, *, workers: int) -> None:
    with anyio.fail_after(60):
        while True:
            rows = await store.beats()
            if sum(_lives(row.pid) and row.busy == 0 for row in rows) >= workers:
                break
            await anyio.sleep(0.1)
    await anyio.sleep(SETTLED_S)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def frozen(kind: str, freezes: int) -> list[float]:
    """Freeze the holder `freezes` times; return the milliseconds until another one's grant."""
    took = []
    with stage(kind) as made:
        for _ in range(4):
            made.start("--processes", "0", ttl=FROZEN_TTL_S)
        async with open_store(made.url) as store, Ledger(store) as ledger:
            await _idle(store, workers=4)
            for number in range(freezes):
                run_id = f"f{number}"
                await ledger.submit("hold", None, id=run_id)
                pid = await made.holder(run_id)
                await anyio.sleep(0.5)
                frozen_ms = await store_now_ms(store)
                os.kill(pid, signal.SIGSTOP)
                try:
                    await made.holder(run_id, other_than=pid)
                    run = await ledger.load(run_id)
                    took.append(run.grants[1].from_ms - frozen_ms)
                finally:
                    os.kill(pid, signal.SIGCONT)
                (made.room / f"{run_id}.go").touch()
                await ledger.handle(run_id).result(timeout=30)
                await anyio.sleep(SETTLED_S)
    return took


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--freezes", type=int, default=10)
    parser.add_argument("--store", choices=("valkey", "sqlite"), default="valkey")
    asked = parser.parse_args()
    took = (
        anyio.run(frozen, asked.store, asked.freezes) if asked.frozen else anyio.run(killed, asked.store, asked.kills)
    )
    median, worst = statistics.median(took), max(took)
    print("ms:", *(f"{ms:.0f}" for ms in sorted(took)))
    if asked.frozen:
        bar_ms = FROZEN_TTL_S * 1000 + 500
        print(f"{len(took)} workers frozen: median {median:.0f} ms, worst {worst:.0f} ms (bar: under {bar_ms:.0f})")
        return 0 if worst < bar_ms else 1
    print(
        f"{len(took)} workers killed: median {median:.0f} ms (bar: under 100), worst {worst:.0f} ms (bar: under 1000)"
    )
    return 0 if median < 100 and worst < 1000 else 1


if __name__ == "__main__":
    sys.exit(main())
