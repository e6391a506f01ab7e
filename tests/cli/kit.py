"""A console on a store of its own in this process, and runs in every state to look at."""

import json
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tenure.cli import run
from tenure.core import build, canonical, journal
from tenure.core.run import Ask, Claim, Commit, End, Grant, How, Outcome, Request, Run, Status
from tenure.store import Beat, Refused, Store
from tenure.stores import open_store

TTL_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Console:
    """The console on one store: `console("runs", "-o", "json")`."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str) -> None:
        self._capsys = capsys
        self.url = url

    def __call__(self, *arguments: str, url: str | None = None) -> Said:
        self._capsys.readouterr()
        code = run(["--store", url or self.url, *arguments])
        out, err = self._capsys.readouterr()
        return Said(code=code, out=out, err=err)

    def do(self, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """Run `work` on the opened store, in a loop of its own, and return what it returns."""

        async def opened() -> Any:
            async with open_store(self.url) as store:
                await store.raise_ttl(TTL_MS)
                return await work(store)

        return anyio.run(opened)


class Writer:
    """Makes runs by the changes that a worker would ask for."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def create(self, run_id: str, kind: str = "research", value: Any = None, **more: Any) -> Run:
        return await self._landed(self.store.commit(build.create(run=run_id, kind=kind, value=value, **more)))

    async def claim(self, run_id: str, owner: str = "alpha", *, blame: bool = True) -> Grant:
        nonce = uuid.uuid4().hex
        change = Claim(run=run_id, nonce=nonce, owner=owner, ttl_ms=TTL_MS, blame=blame)
        found = await self._landed(self.store.commit(change))
        return Grant(run=run_id, token=found.token, nonce=found.nonce, epoch=found.epoch, ttl_ms=TTL_MS, owner=owner)

    async def commit(self, grant: Grant, *events: bytes, **more: Any) -> Run:
        found = await self.store.load(grant.run)
        assert found is not None
        change: Commit = build.commit(grant, found.last_seq + 1, found.head, list(events), **more)
        await self.store.commit(change)
        after = await self.store.load(grant.run)
        assert after is not None
        assert after.last_seq == found.last_seq + 1
        return after

    async def end(self, grant: Grant, how: How, reason: str = "") -> Run:
        change = End(run=grant.run, how=how, token=grant.token, nonce=grant.nonce, reason=reason)
        return await self._landed(self.store.commit(change))

    @staticmethod
    async def _landed(asked: Awaitable[Any]) -> Run:
        answer = await asked
        assert answer.ok, answer
        found: Run = answer.run
        return found


async def fill(store: Store) -> None:
    """One run in each state: done, held, failed, waiting, poisoned, queued; a worker that serves `research`."""
    writer = Writer(store)
    await writer.create("done", value={"question": "why"}, tags={"team": "blue"})
    grant = await writer.claim("done")
    step = journal.event(journal.CHECKPOINT, value={"found": 1})
    await writer.commit(grant, journal.event(journal.ATTEMPT_START, grant=1), step, step=1)
    result = b'{"answer":42}'
    await writer.commit(
        grant,
        journal.event(journal.RUN_END, status="completed"),
        status=Status.COMPLETED,
        outcome=Outcome(result=canonical.digest(result)),
        blobs=[result],
    )
    await writer.create("held", tags={"team": "red"})
    held = await writer.claim("held", owner="bravo")
    await writer.commit(held, journal.event(journal.CALL_STARTED, names=["tool:c1", "tool:c2"]))
    await writer.commit(held, journal.event(journal.RECORD, name="tool:c1", value="ok"))
    await store.tell_refused(
        Refused(run="held", owner="carol", token=7, what="commit", why="lost", current_token=held.token)
    )
    await writer.create("bad", kind="refund")
    grant = await writer.claim("bad")
    failed = Outcome(code="STEP_FAILED", message="no such account")
    await writer.commit(grant, journal.event(journal.RUN_END, status="failed"), status=Status.FAILED, outcome=failed)
    await writer.create("asks", kind="refund")
    grant = await writer.claim("asks")
    await writer.commit(
        grant,
        journal.event(journal.REQUEST_OPENED, id="pay"),
        status=Status.SUSPENDED,
        inbox_seq=0,
        wants=["pay"],
        requests={"pay": Request(digest="d1" * 32)},
    )
    await store.commit(build.post(run="asks", item="i-1", name="hint", ask=Ask.SIGNAL, value={"say": "go on"}))
    await _poisoned(store, writer)
    await writer.create("next", kind="nobody-serves-this")
    await store.beat(
        Beat(name="alpha", host="h1", pid=12, kinds=("research", "refund"), slots=8, busy=1), ttl_ms=60_000
    )


async def _poisoned(store: Store, writer: Writer) -> None:
    await writer.create("poison", kind="refund")
    grant = await writer.claim("poison")
    await writer.commit(grant, journal.event(journal.CALL_STARTED, names=["tool:boom"]))
    await writer.end(grant, How.FORFEIT, reason="signal SIGSEGV")
    change = Claim(run="poison", nonce=uuid.uuid4().hex, owner="carol", ttl_ms=TTL_MS, max_crashes=1)
    await store.commit(change)
    found = await store.load("poison")
    assert found is not None
    assert found.status is Status.QUARANTINED
