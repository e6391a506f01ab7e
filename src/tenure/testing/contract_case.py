"""What every part of the store contract stands on: the fixtures, the abilities, and verbs that keep its tests short."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import anyio
import pytest

from tenure.core import build, journal
from tenure.core.run import (
    Answer,
    Ask,
    Change,
    Claim,
    Commit,
    Create,
    End,
    Grant,
    How,
    Item,
    Post,
    Renew,
    Row,
    Run,
    Status,
    Verdict,
    Why,
)
from tenure.store import Store

ABILITIES: dict[str, str] = {
    "advance_ms": "(ms) moves the store's own clock; a store that lacks it is given real time",
    "turn_history": "(store) gives the store another history, as a restart or failover does",
    "lose_index_entry": "(store, run) drops the run's entry of the due index and nothing else",
    "break_record": "(store, run_id) makes the stored record unreadable",
    "restart": "(store) -> Store: ends the store (a server is killed) and opens what is left",
    "address": "(store) -> str: the URL at which another process on this machine finds the same namespace",
}
"""What a store may be able to do beyond the port; each is a method of the test class, or named in its `lacks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """All that a store holds of one run, as far as reads can see."""

    raw: Mapping[str, str]
    rows: Sequence[Row]
    items: Sequence[Item]
    due_ms: int | None


class StoreCase:
    """The base of the contract's parts: a subclass gives the fixture `store` and says what the store can do.

    `store` yields an opened store in a namespace that nobody else uses. An ability (`ABILITIES`) that is neither a
    method of the class nor a key of `lacks` (with the reason) fails the suite: nothing is left out in silence.
    """

    pytestmark = pytest.mark.anyio

    lacks: ClassVar[Mapping[str, str]] = {}
    ttl_ms: ClassVar[int] = 60_000
    """A lease time that never runs out within a test."""
    short_ms: ClassVar[int] = 80
    """A lease time that a test lets run out."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop that the tests run on; override it for another."""
        return "asyncio"

    @pytest.fixture
    def store(self) -> Store:
        """Give an opened store in a fresh namespace; every subclass has its own."""
        message = f"{type(self).__name__} has to define the fixture `store`"
        raise NotImplementedError(message)

    @pytest.fixture
    async def other_store(self, store: Store) -> AsyncIterator[Store]:
        """Yield a second handle on the same contents, with connections of its own."""
        async with store.beside() as other:
            yield other

    def ability(self, name: str, /) -> Any:
        """Return the ability, or end the test with the reason for which the store lacks it."""
        if name not in ABILITIES:
            raise KeyError(name)
        offered = getattr(self, name, None)
        if offered is not None:
            return offered
        if name not in self.lacks:
            pytest.fail(f"{type(self).__name__} neither offers {name}{ABILITIES[name]} nor names it in `lacks`")
        pytest.skip(f"{type(self).__name__} lacks {name}: {self.lacks[name]}")

    async def pass_ms(self, ms: int) -> None:
        """Let the store's time go by: by its own clock where it can be moved, else really."""
        advance = getattr(self, "advance_ms", None)
        if advance is not None:
            await advance(ms)
        else:
            await anyio.sleep((ms + 2) / 1000)

    async def run_out(self, store: Store, grant: Grant) -> None:
        """Let a live lease run out now, however long it was granted for."""
        assert (await store.commit(Renew(grant=replace(grant, ttl_ms=1)))).verdict is Verdict.LANDED
        await self.pass_ms(1)

    async def create(self, store: Store, run: str = "r1", *, value: Any = None, **more: Any) -> Answer:
        """Create a run of kind `k`."""
        return await store.commit(build.create(**{"run": run, "kind": "k", "value": value, **more}))

    async def claim(self, store: Store, run: str = "r1", **more: Any) -> tuple[Grant, Run]:
        """Claim a run, which has to land; return the grant and the run."""
        change = claim(run, **{"ttl_ms": self.ttl_ms, **more})
        answer = await store.commit(change)
        assert (answer.verdict, answer.why) == (Verdict.LANDED, None)
        assert answer.run is not None
        return grant_of(answer.run), answer.run

    async def begin(
        self, store: Store, run: str = "r1", *, ttl_ms: int | None = None, **more: Any
    ) -> tuple[Grant, Run]:
        """Create and claim a run; return the grant and the run."""
        assert (await self.create(store, run, **more)).verdict is Verdict.LANDED
        return await self.claim(store, run, ttl_ms=self.ttl_ms if ttl_ms is None else ttl_ms)

    async def lands(self, store: Store, change: Change) -> Run:
        """Commit a change, which has to land; return the run after it, as the store has it."""
        answer = await store.commit(change)
        assert (answer.verdict, answer.why) == (Verdict.LANDED, None)
        found = await store.load(change.run)
        assert answer.run in (None, found)
        assert found is not None
        return found

    async def stands(self, store: Store, change: Change) -> Answer:
        """Commit a change that is `already` so: it touches the record and does nothing else."""
        before = await self.kept(store, change.run)
        answer = await store.commit(change)
        assert (answer.verdict, answer.why) == (Verdict.ALREADY, None)
        after = await self.kept(store, change.run)
        assert (after.rows, after.items, after.due_ms) == (before.rows, before.items, before.due_ms)
        assert _but_touch(after.raw) == _but_touch(before.raw)
        assert int(after.raw["touch"]) == int(before.raw["touch"]) + 1, "an `already` writes, or waiting means nothing"
        return answer

    async def refuses(self, store: Store, change: Change, why: Why) -> Answer:
        """Commit a change that has to be refused for this reason and to leave no trace of itself (I17)."""
        before = await self.kept(store, change.run)
        wanted = sorted(getattr(change, "blobs", {}))
        blobs = [await store.blob(change.run, digest) for digest in wanted]
        answer = await store.commit(change)
        expected = Verdict.HISTORY if why is Why.HISTORY else Verdict.REFUSED
        assert (answer.verdict, answer.why) == (expected, why)
        after = await self.kept(store, change.run)
        # A claim that finds the run held moves the early entry of the index to the lease's end.
        same = before if why is not Why.HELD else replace(before, due_ms=after.due_ms)
        assert after == same, "a refusal leaves no trace"
        assert [await store.blob(change.run, digest) for digest in wanted] == blobs
        assert answer.run == await store.load(change.run), "a refusal shows the run as found"
        return answer

    async def kept(self, store: Store, run: str = "r1") -> Kept:
        """Return all that the store holds of a run of a kind that no other run in the index has."""
        raw = await store.raw(run)
        rows = await store.tail(run, limit=10_000)
        due_ms = await store.next_due_ms([raw["kind"]]) if raw else None
        return Kept(raw=raw, rows=rows, items=await store.inbox(run), due_ms=due_ms)


def nonce() -> str:
    """Return a fresh nonce."""
    return secrets.token_hex(16)


def claim(run: str = "r1", **more: Any) -> Claim:
    """Return a claim with a nonce of its own."""
    return Claim(**{"run": run, "nonce": nonce(), "owner": "w", "ttl_ms": 60_000, **more})


grant_of = build.grant_of


def write(grant: Grant, run: Run, value: Any = "x", **more: Any) -> Commit:
    """Return the commit that follows on the run as known, with one checkpoint event."""
    events = [journal.event(journal.CHECKPOINT, value=value)]
    return build.commit(grant, run.last_seq + 1, run.head, events, **more)


def suspend(grant: Grant, run: Run, *wants: str, **more: Any) -> Commit:
    """Return the commit that suspends the run until one of `wants` is posted, having read the inbox as known."""
    return write(grant, run, **{"status": Status.SUSPENDED, "wants": wants, "inbox_seq": run.inbox_seq, **more})


def signal(run: str = "r1", name: str = "go", *, item: str = "i1", value: Any = None) -> Post:
    """Return a signal."""
    return build.post(run=run, item=item, name=name, ask=Ask.SIGNAL, value=value)


def end(grant: Grant, how: How, **more: Any) -> End:
    """Return the end of a grant by who has it."""
    return End(**{"run": grant.run, "how": how, "token": grant.token, "nonce": grant.nonce, **more})


def again(change: Create, **more: Any) -> Create:
    """Return the same creation with other particulars."""
    return replace(change, **more)


def _but_touch(raw: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in raw.items() if name != "touch"}
