"""A holder that is killed: `python postgres_teller.py URL NAMESPACE` tells a table each step, in the run's transaction.

It says on a line when it holds the run, and when each step is about to end; the step that comes next is in the journal.
"""

import sys

import anyio

from tenure import Ledger, open_store

STEPS = 14


async def main(url: str, namespace: str) -> None:
    async with (
        open_store(url, namespace=namespace) as store,
        Ledger(store, ttl=1) as ledger,
        ledger.hold("r1") as lease,
    ):
        print("held", flush=True)
        for step in range(lease.run.step, STEPS):
            async with lease.transaction(value=step) as connection:
                await connection.execute("INSERT INTO told (run, step) VALUES (%s, %s)", [namespace, step])
                print(step, flush=True)
        await lease.settle()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
