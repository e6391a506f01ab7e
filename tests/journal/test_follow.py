"""Following a run: events as they land, each once, over restarts of the store, until the run has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from journal.kit import walk
from tenure import Ledger, RunNotFound, Status, Store, open_store
from tenure.cli.exits import Exit
from tenure.testing.servers import VALKEY9


async def _addresses(ledger: Ledger, run_id: str) -> list[str]:
    return [address async for address, _ in ledger.handle(run_id).events()]


async def test_a_follower_sees_each_event_once_as_it_lands_and_stops_at_the_end(ledger: Ledger) -> None:
    await ledger.submit("own", 0, id="r1")
    seen: list[str] = []
    read = anyio.Event()

    async def follow() -> None:
        async for address, event in ledger.handle("r1").events(follow=True):
            seen.append(address)
            if event.get("value") == 2:
                read.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            async with ledger.hold("r1") as lease:
                for n in range(3):
                    await lease.checkpoint(n)
                await read.wait()  # before the run has ended
                await lease.settle(Status.COMPLETED)
    assert seen == await _addresses(ledger, "r1")


async def test_following_begins_after_an_address_and_ends_with_a_run_that_was_set_aside(ledger: Ledger) -> None:
    await walk(ledger)
    every = await _addresses(ledger, "w1")
    after_commit = [address for address in every if int(address.partition(".")[0]) > 7]
    for after, later in ((every[4], every[5:]), ("0", every), (7, after_commit), ("99.0", [])):
        assert [address async for address, _ in ledger.handle("w1").events(after=after, follow=True)] == later
    await ledger.submit("own", 0, id="r1")
    async with ledger.hold("r1") as lease:
        await lease.quarantine("to be looked at")
    with anyio.fail_after(60):
        assert [a async for a, _ in ledger.handle("r1").events(follow=True)] == ["1.0"]
    with pytest.raises(RunNotFound):
        _ = [a async for a, _ in ledger.handle("nobody").events(follow=True)]


@pytest.mark.slow
async def test_a_follower_goes_on_when_the_store_comes_back(start_redis: Any, namespace: str) -> None:
    server = start_redis(VALKEY9, appendonly="yes", appendfsync="always")
    seen: list[str] = []
    first = anyio.Event()

    async def follow(store: Store) -> None:
        async with Ledger(store) as ledger:
            async for address, _ in ledger.handle("r1").events(follow=True):
                seen.append(address)
                first.set()

    with anyio.fail_after(100):
        async with (
            open_store(server.url, namespace=namespace) as store,
            open_store(server.url, namespace=namespace) as own,
            Ledger(own, ttl=60) as ledger,
            anyio.create_task_group() as tasks,
        ):
            await ledger.submit("own", 0, id="r1")
            tasks.start_soon(follow, store)
            await first.wait()
            await anyio.to_thread.run_sync(server.restart)
            async with ledger.hold("r1", wait=60) as lease:
                await lease.checkpoint("after the restart")
                await lease.settle(Status.COMPLETED)
            every = await _addresses(ledger, "r1")
    assert seen == every
    assert len(seen) > 2


@pytest.mark.slow
async def test_tail_prints_what_lands_in_another_process_and_ends_with_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_store(url) as store, Ledger(store, ttl=60) as ledger:
        await ledger.submit("own", 0, id="r1")
        async with ledger.hold("r1") as lease:
            await lease.checkpoint("first")
            arguments = [sys.executable, "-m", "tenure", "tail", "r1", "-f", "-o", "jsonl"]
            env = {**os.environ, "TENURE_STORE": url}
            async with await anyio.open_process(arguments, env=env, stderr=subprocess.PIPE) as tailing:
                assert tailing.stdout is not None
                lines: list[Any] = []
                with anyio.fail_after(100):
                    data = b""
                    async for piece in tailing.stdout:
                        data += piece
                        lines = [json.loads(line) for line in data.splitlines() if line.endswith(b"}")]
                        if len(lines) == 3 and not lease.over:
                            await lease.checkpoint("while it looks")
                            await lease.settle(Status.COMPLETED, "done")
                    assert await tailing.wait() == 0
        assert [line["at"] for line in lines] == await _addresses(ledger, "r1")
        assert [line["event"].get("value") for line in lines][2:4] == ["first", "while it looks"]


@pytest.mark.slow
async def test_tail_ends_clean_when_it_is_interrupted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_store(url) as store, Ledger(store) as ledger:
        await ledger.submit("own", 0, id="r1")
        arguments = [sys.executable, "-m", "tenure", "tail", "r1", "-f", "-o", "jsonl"]
        env = {**os.environ, "TENURE_STORE": url}
        async with await anyio.open_process(arguments, env=env, stderr=subprocess.PIPE) as tailing:
            assert tailing.stdout is not None
            assert tailing.stderr is not None
            with anyio.fail_after(100):
                assert json.loads(await tailing.stdout.receive())["at"] == "1.0"
                tailing.send_signal(signal.SIGINT)
                assert await tailing.wait() == Exit.INTERRUPTED
                said = b"".join([piece async for piece in tailing.stderr])
        assert said == b"", "no traceback"
