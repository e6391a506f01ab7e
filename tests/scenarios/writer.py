"""A worker that is killed: `python writer.py URL NAMESPACE SEED` saves, suspends and completes runs until then.

It prints each run it was told had landed, as JSON: what was acknowledged has to be there.
"""

import json
import random
import sys

import anyio

from tenure.core import build
from tenure.core.run import Ask, Outcome, Request, Run, Status, Verdict
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.contract_case import claim, grant_of, write


async def main(url: str, namespace: str, seed: str) -> None:
    draw = random.Random(seed)
    async with open_store(url, namespace=namespace) as store, anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(work, store, f"{seed}.{number}", draw)


async def work(store: Store, name: str, draw: random.Random) -> None:
    for number in range(100_000):
        run_id = f"r.{name}.{number}"
        await tell(store, build.create(run=run_id, kind="k", value=number))
        run = await tell(store, claim(run_id))
        for step in range(draw.randrange(1, 4)):
            size = draw.choice([10, 10, 100_000])
            asked = {"q": Request(digest="d")} if draw.random() < 0.5 else None
            run = await tell(store, write(grant_of(run), run, "x" * size, step=1, requests=asked, blobs=[b"%d" % step]))
        if draw.random() < 0.5:
            change = write(grant_of(run), run, status=Status.SUSPENDED, wants=["go"], inbox_seq=run.inbox_seq)
            await tell(store, change)
            await tell(store, build.post(run=run_id, item="i", name="go", ask=Ask.SIGNAL))
            run = await tell(store, claim(run_id))
        done = Outcome(result="d")
        await tell(store, write(grant_of(run), run, status=Status.COMPLETED, outcome=done, blobs=[b"result"]))


async def tell(store: Store, change: object) -> Run:
    answer = await store.commit(change)  # type: ignore[arg-type]
    assert answer.verdict is Verdict.LANDED, answer
    run = answer.run or await store.load(change.run)  # type: ignore[attr-defined]
    assert run is not None
    print(json.dumps([run.id, run.last_seq, run.version, run.status]), flush=True)
    return run


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
