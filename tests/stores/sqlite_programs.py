"""Programs that tests of the SQLite store run as processes of their own: `python sqlite_programs.py NAME ARGUMENTS`."""

import inspect
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from stores.changes import claim, step
from tenure.core import build
from tenure.core.canonical import digest
from tenure.core.run import Ask, Commit, End, How, Outcome, Run, Status, Verdict
from tenure.core.verify import verify_run
from tenure.errors import NotAllowed
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores.sqlite import SqliteStore


def say(**said: Any) -> None:
    """One line to who started this process, at once."""
    os.write(1, (json.dumps(said) + "\n").encode())


async def hammer(url: str, name: str, rounds: str, runs: str) -> None:
    """Take runs from others, write some steps, hand them back; say every grant and every step that landed."""
    async with open_store(url) as store, anyio.create_task_group() as tasks:
        for number in range(int(runs)):
            tasks.start_soon(_hammer_one, store, f"run-{number}", name, int(rounds))


async def _hammer_one(store: Store, run_id: str, name: str, rounds: int) -> None:
    while rounds:
        answer = await store.commit(claim(run_id, owner=name, max_crashes=0))
        if not answer.ok:
            await anyio.sleep(random.uniform(0, 0.01))
            continue
        rounds -= 1
        run = answer.run
        assert run is not None
        say(run=run_id, token=run.token)
        for number in range(random.randrange(1, 4)):
            answer = await store.commit(step(run, [name, rounds, number]))
            assert answer.ok, answer
            run = answer.run
            assert run is not None
            say(run=run_id, seq=run.last_seq, head=run.head)
        if random.random() < 0.5:
            answer = await store.commit(End(run=run_id, how=How.YIELD, token=run.token, nonce=run.nonce))
        else:
            answer = await store.commit(step(run, "bye", status=Status.QUEUED))
            assert answer.run is not None
            say(run=run_id, seq=answer.run.last_seq, head=answer.run.head)
        assert answer.ok, answer


async def victim(url: str, runs: str) -> None:
    """Write steps with a blob each, and eat the inbox, until killed; say what was acknowledged."""
    async with open_store(url) as store, anyio.create_task_group() as tasks:
        for number in range(int(runs)):
            tasks.start_soon(_victim_one, store, f"run-{number}")


async def _victim_one(store: Store, run_id: str) -> None:
    await store.commit(build.create(run=run_id, kind="k", value=run_id))
    run = (await store.commit(claim(run_id))).run
    number = 0
    while run is not None:
        number += 1
        item = f"item-{number}"
        await store.commit(build.post(run=run_id, item=item, name="s", ask=Ask.SIGNAL, value=number))
        answer = await store.commit(
            step(run, "x" * 1500, consume=[item], blobs=[f"{run_id} {run.last_seq + 1}".encode()])
        )
        assert answer.verdict is Verdict.LANDED
        run = answer.run
        assert run is not None
        say(run=run_id, seq=run.last_seq, head=run.head)


async def _suspend(store: SqliteStore, run: Run) -> Commit:
    await store.commit(build.post(run=run.id, item="i", name="s", ask=Ask.SIGNAL, value=1))
    return step(run, 1, status=Status.SUSPENDED, wants=["s"], inbox_seq=1, consume=["i"], blobs=[b"b"])


async def _complete(store: SqliteStore, run: Run) -> Commit:
    return step(run, 1, status=Status.COMPLETED, outcome=Outcome(result="r"), blobs=[b"b"])


async def _save(store: SqliteStore, run: Run) -> Commit:
    return step(run, 1, blobs=[b"b"])


CUTS: dict[str, Callable[[SqliteStore, Run], Any]] = {"save": _save, "suspend": _suspend, "complete": _complete}


def cut(url: str, what: str) -> None:
    """Die at the first, second, .. statement of a commit, each time in a new process; a third one looks every time."""
    for number in range(1, 100):
        run_id = f"{what}-{number}"
        died = _in_child(partial(anyio.run, _cut_one, url, what, run_id, number))
        assert died in {0, 9}, died
        looked = _in_child(partial(anyio.run, _look, url, run_id))
        assert looked in {0, 1}, "torn"
        say(at=number, died=died == 9, landed=bool(looked))
        if died == 0:
            return


def _in_child(body: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 77
        try:
            code = body() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _cut_one(url: str, what: str, run_id: str, number: int) -> int:
    async with open_store(url) as store:
        assert isinstance(store, SqliteStore)
        await store.commit(build.create(run=run_id, kind="k", value=1))
        run = (await store.commit(claim(run_id))).run
        assert run is not None
        change = await CUTS[what](store, run)
        left = number

        def count(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)

        await store._written(lambda t: t.connection.set_trace_callback(count))
        left = number
        await store.commit(change)
        left = 0
    return 0


async def _look(url: str, run_id: str) -> int:
    """1 if the commit is there with all it did, 0 if nothing of it is."""
    async with open_store(url) as store:
        run = await store.load(run_id)
        assert run is not None
        rows = await store.tail(run_id)
        assert verify_run(run, rows).ok
        landed = len(rows) == 2
        parts = {
            run.last_seq == 2,
            run.step == 1,
            await store.blob(run_id, digest(b"b")) is not None,
            *(item.consumed for item in await store.inbox(run_id)),
            (run.status is not Status.RUNNING) if not run_id.startswith("save") else landed,
        }
        assert parts == {landed}, parts
        return int(landed)


async def fork(url: str) -> None:
    """Fork with the store open: the child is refused by every call, the parent goes on."""
    store = open_store(url)
    async with store:
        run = (await store.commit(build.create(run="a", kind="k", value=1))).run
        assert run is not None

        def refused() -> int:
            calls = [
                store.load("a"),
                store.commit(claim("a")),
                store.wake("x"),
                store.woken(["x"], timeout=1),
                store.find(),
                store.raise_ttl(1),
                store.__aenter__(),
            ]
            for call in calls:
                with pytest.raises(NotAllowed, match="before a fork"):
                    call.send(None)
            return 0

        say(child=_in_child(refused))
        assert (await store.commit(claim("a"))).ok
    say(parent="closed")


def unopened(url: str) -> None:
    """Fork with a store that was made but not opened: the child may open it."""
    store = open_store(url)
    say(child=_in_child(partial(anyio.run, _open, store)))


async def _open(store: Store) -> int:
    async with store:
        return 0 if (await store.commit(build.create(run="a", kind="k", value=1))).ok else 1


async def anew(url: str, linked: str, elsewhere: str) -> None:
    """Fork while the file is open and when it is closed again, and open stores in the children."""
    async with open_store(url) as store:
        await store.raise_ttl(1)
        say(open=[_in_child(partial(_in_thread, to)) for to in (url, linked, elsewhere)])
        await store.raise_ttl(2)
    say(closed=[_in_child(partial(_in_thread, to)) for to in (url, linked, elsewhere)])


def _in_thread(url: str) -> int:
    with ThreadPoolExecutor(1) as pool:  # the thread that was forked seems to be in a loop still
        return pool.submit(anyio.run, _tried, url).result()


async def _tried(url: str) -> int:
    try:
        async with open_store(url) as store:
            return 0 if (await store.commit(build.create(run=uuid.uuid4().hex, kind="k", value=1))).ok else 1
    except NotAllowed as error:
        return 3 if "was open in the process that this one was forked from" in error.message else 4


async def wait(url: str, topic: str) -> None:
    """Say when a wake-up for the topic comes; quiet ones first."""
    async with open_store(url) as store:
        say(quiet=await store.woken([topic], timeout=0.2))
        say(waiting=True)
        begun = time.monotonic()
        say(woken=await store.woken([topic], timeout=30), after_s=time.monotonic() - begun)


if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    if inspect.iscoroutinefunction(program):
        anyio.run(program, *sys.argv[2:])
    else:
        program(*sys.argv[2:])
