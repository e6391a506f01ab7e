"""Sweepers that boot together on dead runs: real processes, one store; every run is executed once.

    python bench/sweep_race.py [--runs 1000] [--sweepers 8] [--store valkey|sqlite|postgres]

Each process also begins a run of its own and holds it while all sweep. Exits 1 unless there are as many executions as
dead runs, one claim each, and every fresh run is still under its first grant.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio

from tenure import Lease, Ledger, Status, Store, Sweeper, Where, open_store
from tenure.core import build
from tenure.core.run import Change, Claim, How
from tenure.testing.servers import VALKEY9, PostgresServer, start_server

BATCH = 200


async def prepare(url: str, runs: int) -> None:
    """Queue runs, claim each, and end the grants as a supervisor does that saw the process die."""
    async with open_store(url) as store:
        names = [f"dead-{n:05d}" for n in range(runs)]
        await _all(store, [build.create(run=name, kind="swept", value=None) for name in names])
        claims = [Claim(run=name, nonce=os.urandom(16).hex(), owner="gone", ttl_ms=1000) for name in names]
        await store.raise_ttl(1000)
        await _all(store, claims)
        ends: list[Change] = []
        for claim in claims:
            run = await store.load(claim.run)
            if run is None:
                raise SystemExit(f"{claim.run} is gone")
            end = build.end(run=claim.run, how=How.FORFEIT, token=run.token, nonce=claim.nonce, reason="signal 9")
            ends.append(end)
        await _all(store, ends)


async def _all(store: Store, changes: Sequence[Change]) -> None:
    for at in range(0, len(changes), BATCH):
        for answer in await store.commit_many(changes[at : at + BATCH]):
            if isinstance(answer, Exception):
                raise answer
            if not answer.ok:
                raise SystemExit(f"{answer.why} while the dead runs were made")


async def sweep(url: str, room: Path, number: int) -> None:
    """Begin a run, sweep while it is held, and leave one line for each execution."""
    notes = (room / f"notes.{number}").open("w")

    async def recover(lease: Lease) -> None:
        notes.write(f"{lease.run.id}\n")
        await lease.checkpoint(number)
        await lease.settle(value=number)

    async with open_store(url) as store, Ledger(store, owner=f"sweeper-{number}") as ledger:
        await ledger.submit("fresh", None, id=f"fresh-{number}")
        async with ledger.hold(f"fresh-{number}") as lease:
            (room / f"ready.{number}").touch()
            while not (room / "go").exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(0.001)
            report = await Sweeper(ledger, recover).recover_all()
            if not report.complete:
                raise SystemExit("the store failed meanwhile")
            lease.check()
            notes.close()
            (room / f"done.{number}").touch()
            while len(list(room.glob("done.*"))) < len(list(room.glob("ready.*"))):  # noqa: ASYNC110, ASYNC240
                await anyio.sleep(0.05)


async def judge(url: str, room: Path, runs: int, sweepers: int) -> bool:
    """Print what happened, and return whether it is what should."""
    executions = [line for n in range(sweepers) for line in (room / f"notes.{n}").read_text().splitlines()]
    claims = attempts = fresh = 0
    async with open_store(url) as store, Ledger(store) as ledger:
        async for run in ledger.find(Where(kind="swept")):
            claims += len(run.grants) - 1
            attempts += run.attempt == 2 and run.status is Status.COMPLETED
        async for run in ledger.find(Where(kind="fresh")):
            fresh += len(run.grants) == 1 and run.attempt == 1
    print(
        f"{sweepers} sweepers on {runs} dead runs: {len(executions)} executions of {len(set(executions))} runs, "
        f"{claims} claims, {attempts} completed in attempt 2; {fresh} of {sweepers} fresh runs untouched"
    )
    return len(executions) == len(set(executions)) == claims == attempts == runs and fresh == sweepers


def main() -> int:
    """Race, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--sweepers", type=int, default=8)
    parser.add_argument("--store", choices=("valkey", "sqlite", "postgres"), default="valkey")
    parser.add_argument("--sweep", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.sweep:
        url, room, number = asked.sweep
        anyio.run(sweep, url, Path(room), int(number))
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{folder}/race.db"
        if asked.store == "valkey":
            url = stack.enter_context(start_server(VALKEY9, options={"appendonly": "yes"})).url
        if asked.store == "postgres":
            url = f"{stack.enter_context(PostgresServer(options={'max_connections': 200})).url}?migrate=on"
        anyio.run(prepare, url, asked.runs)
        racing = [
            subprocess.Popen([sys.executable, __file__, "--sweep", url, str(folder), str(n)])
            for n in range(asked.sweepers)
        ]
        while len(list(folder.glob("ready.*"))) < asked.sweepers:
            time.sleep(0.01)
            if any(process.poll() for process in racing):
                return 1
        before = time.monotonic()
        (folder / "go").touch()
        if any(process.wait() for process in racing):
            return 1
        print(f"{time.monotonic() - before:.1f} s")
        return 0 if anyio.run(judge, url, folder, asked.runs, asked.sweepers) else 1


if __name__ == "__main__":
    sys.exit(main())
