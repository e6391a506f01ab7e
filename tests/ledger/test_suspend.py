"""What wakes a suspended run, and what is retried."""

from collections.abc import AsyncIterator

import anyio
import pytest

from tenure import Ledger, Request, RunConflict, RunSuspended, open_store
from tenure.core import build
from tenure.core.run import Ask, Item


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    async with open_store("memory://") as store, Ledger(store, ttl=1) as ledger:
        yield ledger


async def test_a_request_that_expires_wakes_the_run_that_waits_for_it(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1")
    expires_ms = (await ledger.store.facts()).now_ms + 150
    async with ledger.hold("r1") as lease:
        asked = {"ok?": Request(digest="0" * 64, expires_ms=expires_ms)}
        assert await lease.suspend(until=60, requests=asked) == []
    with pytest.raises(RunSuspended):
        async with ledger.hold("r1"):
            pass
    await anyio.sleep(0.2)
    async with ledger.hold("r1") as lease:
        assert lease.run.due_ms == expires_ms


async def test_only_what_has_ended_is_retried(ledger: Ledger) -> None:
    await ledger.submit("count", None, id="r1", at=3600)
    with pytest.raises(RunConflict, match="goes on by itself"):
        await ledger.retry("r1")
    await ledger.cancel("r1")
    assert (await ledger.retry("r1")).id == "r1-retry"


async def test_of_an_inbox_only_what_was_not_consumed_is_read_again(ledger: Ledger) -> None:
    asked: list[int] = []
    read = ledger.store.inbox

    async def inbox(run_id: str, /, *, after: int = 0) -> list[Item]:
        asked.append(after)
        return await read(run_id, after=after)

    await ledger.submit("count", None, id="r1")
    async with ledger.hold("r1") as lease:
        for number in range(3):
            await ledger.ask(build.post(run="r1", item=f"i{number}", name="n", ask=Ask.SIGNAL, value=number))
        lease._store.inbox = inbox  # type: ignore[method-assign]
        first = await lease.inbox()
        await lease.consume([first[0], first[2]])
        (left,) = await lease.inbox()
        await lease.consume([left])
        assert await lease.inbox() == []
        assert await lease.inbox() == []
        assert (lease.inbox_read, asked) == (3, [0, 0, 1, 3])
        await ledger.ask(build.post(run="r1", item="i3", name="n", ask=Ask.SIGNAL, value=3))
        assert [item.id for item in await lease.inbox()] == ["i3"]
