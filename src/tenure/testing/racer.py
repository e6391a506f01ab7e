"""A process of a race: `python -m tenure.testing.racer URL NAMESPACE TIMES RUN...` claims each run TIMES over.

It says `ready`, waits for a line, claims, and prints {run id: how many of its claims landed} as JSON.
"""

from __future__ import annotations

import json
import secrets
import sys

import anyio

from tenure.core.run import Answer, Claim, Verdict
from tenure.stores import open_store


async def race(url: str, namespace: str, times: int, runs: list[str]) -> dict[str, int]:
    """Return how many claims of each run landed."""
    landed = dict.fromkeys(runs, 0)
    async with open_store(url, namespace=namespace) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.readline)

        async def one(run: str) -> None:
            claim = Claim(run=run, nonce=secrets.token_hex(16), owner="racer", ttl_ms=60_000)
            answer = await store.commit(claim)
            assert isinstance(answer, Answer)
            landed[run] += answer.verdict is Verdict.LANDED

        async with anyio.create_task_group() as tasks:
            for _ in range(times):
                for run in runs:
                    tasks.start_soon(one, run)
    return landed


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(race, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])))
