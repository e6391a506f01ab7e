"""A store's clock that is set forward and back, or runs at another rate, under workers that hold runs."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tenure.core import build
from tenure.core.run import Claim, Commit, Renew, Status
from tenure.repair import repair_pass
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos._clock_hands import Hands, Time, asked_for, clocked
from tenure.testing.chaos._promotion_story import Holder, asked, step
from tenure.testing.chaos._promotion_story import told as was_told
from tenure.testing.chaos._told import Told, gone, out_of_order, unsound
from tenure.testing.chaos.kinds import Kind, Place, Played
from tenure.trust import margin_ms

RUNS = 2
WORKERS = 4
TTL_MS = 900
PAUSE_S = (0.4, 1.0)
PATIENCE_S = 60.0
"""How long a dead holder's run may stay out of reach: much longer than a lease, much shorter than a step back."""
STORIES: dict[str, tuple[Time, ...]] = {
    "back": (Time(ahead_s=-3_600), Time(ahead_s=-7_200), Time(ahead_s=-90_000)),
    "forward": (Time(ahead_s=3_600), Time(ahead_s=7_200), Time(ahead_s=90_000)),
    "to and fro": (Time(ahead_s=3_600), Time(), Time(ahead_s=-3_600), Time()),
    "slow and fast": (Time(rate=0.5), Time(rate=2), Time(rate=0.5)),
    "drifting": (Time(rate=1.04), Time(rate=0.96)),
}


@dataclass(slots=True, kw_only=True)
class Book:
    """What the workers were told, kept outside the store."""

    said: list[Told] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)


class StoreClock(Kind):
    """One story of a clock, on a server of its own."""

    name = "clock"
    stores = ("valkey9", "postgres", "redis8")
    short, long, batch = 5, 100, 2

    async def play(self, seed: int, place: Place, /) -> Played:
        """Let workers take runs from each other while the clock is moved, and judge what came of it."""
        name = list(STORIES)[seed % len(STORIES)]
        drawn, book = random.Random(f"{self.name}:{place.name}:{seed}"), Book()
        async with clocked(place.name) as (server, hands), AsyncExitStack() as opened:
            if place.name == "postgres":
                from tenure.stores._postgres_connect import address
                from tenure.stores._postgres_migrate import migrate

                await migrate(address(server.url, {}))
            stores = [
                await opened.enter_async_context(open_store(f"{server.url}?timeout=30", namespace="clock"))
                for _ in range(WORKERS + 1)
            ]
            hands.store = stores[0]
            await stores[0].raise_ttl(TTL_MS)
            for number in range(RUNS):
                await stores[0].commit(build.create(run=f"r{number}", kind="k", value=number))
            await _play(stores, hands, STORIES[name], drawn, book)
            await _recovered(stores[0], book)
            await _judge(stores[0], hands, book)
        book.counts["moves of the clock"] += len(STORIES[name])
        return Played(violations=book.wrong, counts=book.counts, note=name)


async def _play(stores: list[Store], hands: Hands, moves: tuple[Time, ...], drawn: random.Random, book: Book) -> None:
    over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number, store in enumerate(stores[1:]):
            worker = Worker(
                name=f"w{number}", drawn=random.Random(drawn.getrandbits(64)), store=store, book=book, over=over
            )
            tasks.create_task(worker.work())
        for move in moves:
            await asyncio.sleep(drawn.uniform(*PAUSE_S))
            await hands.set(move)
            await repair_pass(stores[0])  # as a leader does now and then
        await asyncio.sleep(drawn.uniform(*PAUSE_S))
        over.set()


@dataclass(slots=True, kw_only=True)
class Worker:
    """Claims runs, writes, renews, forgets to, dies of it, and writes all the same."""

    name: str
    drawn: random.Random
    store: Store
    book: Book
    over: asyncio.Event

    async def work(self) -> None:
        """Work until it is over."""
        while not self.over.is_set():
            run = f"r{self.drawn.randrange(RUNS)}"
            claim = Claim(run=run, nonce=secrets.token_hex(16), owner=self.name, ttl_ms=TTL_MS, max_crashes=0)
            sent_s = time.monotonic()
            answer = await asked(self.store, claim)
            if not answer.ok or answer.run is None:
                self.book.counts["claims refused"] += 1
                await asyncio.sleep(self.drawn.uniform(0.01, 0.1))
                continue
            holder = Holder(name=self.name, grant=build.grant_of(answer.run), run=answer.run, trusts_until_s=0)
            self._trust(holder, sent_s, answer.left_ms)
            self.book.holders.append(holder)
            self._say(holder, sent_s)
            await self._hold(holder)

    async def _hold(self, holder: Holder) -> None:
        for _ in range(self.drawn.randrange(1, 8)):
            # Once in a while it sleeps over its lease, and goes on as if nothing was.
            pause_s = self.drawn.uniform(0, TTL_MS / 3000) if self.drawn.random() < 0.9 else TTL_MS / 700
            await asyncio.sleep(pause_s)
            change = step(holder) if self.drawn.random() < 0.7 else Renew(grant=holder.grant)
            if not await self._sent(holder, change):
                return
        if self.drawn.random() < 0.6:  # else it has died
            await self._sent(holder, step(holder, Status.QUEUED))
        holder.trusts_until_s = min(holder.trusts_until_s, time.monotonic())

    async def _sent(self, holder: Holder, change: Commit | Renew) -> bool:
        sent_s = time.monotonic()
        answer = await asked(self.store, change)
        if not answer.ok:
            self.book.counts["writes refused"] += 1
            # Whoever is refused knows that it does not hold the run.
            holder.trusts_until_s = min(holder.trusts_until_s, time.monotonic())
            return False
        if isinstance(change, Commit):
            was_told(holder, change)
            self._say(holder, sent_s, change)
        self._trust(holder, sent_s, answer.left_ms)
        return True

    def _trust(self, holder: Holder, sent_s: float, left_ms: int) -> None:
        trusted_ms = min(left_ms, TTL_MS) - margin_ms(TTL_MS)
        holder.trusts_until_s = max(holder.trusts_until_s, sent_s + trusted_ms / 1000)

    def _say(self, holder: Holder, sent_s: float, change: Commit | None = None) -> None:
        said = Told(
            who=self.name, run=holder.grant.run, sent_s=sent_s, heard_s=time.monotonic(), token=holder.grant.token,
            commit=change,
        )  # fmt: skip
        self.book.said.append(said)


async def _recovered(store: Store, book: Book) -> None:
    """Let the leader's pass see to what a clock has stretched, and a new worker take over every run."""
    for number in range(RUNS):
        run_id = f"r{number}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                book.said.append(await _taken_over(store, run_id))
        except TimeoutError:
            run = await asked_for(lambda run_id=run_id: store.load(run_id))  # type: ignore[misc]
            book.wrong.append(f"{run_id} could not be taken over within {PATIENCE_S:.0f} s: {run}")


async def _taken_over(store: Store, run_id: str) -> Told:
    while True:
        await repair_pass(store)
        claim = Claim(run=run_id, nonce=secrets.token_hex(16), owner="last", ttl_ms=TTL_MS, max_crashes=0)
        sent_s = time.monotonic()
        answer = await asked(store, claim)
        if answer.ok and answer.run is not None:
            return Told(who="last", run=run_id, sent_s=sent_s, heard_s=time.monotonic(), token=answer.run.token)
        await asyncio.sleep(0.1)


async def _judge(store: Store, hands: Hands, book: Book) -> None:
    for number in range(RUNS):
        run_id = f"r{number}"
        run = await asked_for(lambda run_id=run_id: store.load(run_id))  # type: ignore[misc]
        rows = await asked_for(lambda run_id=run_id: store.tail(run_id, limit=100_000))  # type: ignore[misc]
        said = [one for one in book.said if one.run == run_id]
        grants, commits = [one for one in said if not one.commit], [one for one in said if one.commit]
        wrong = [*unsound(run, rows), *out_of_order(grants, commits), *gone(rows, commits)]
        book.wrong += [f"{run_id}: {what}" for what in wrong]
        book.counts["grants"] += len(grants)
        book.counts["commits"] += len(commits)
        _judge_trust(run_id, grants, hands, book)


def _judge_trust(run_id: str, grants: list[Told], hands: Hands, book: Book) -> None:
    for holder in (one for one in book.holders if one.grant.run == run_id):
        since = next(one for one in grants if one.token == holder.grant.token)
        for later in grants:
            over_s = holder.trusts_until_s - later.heard_s
            # A few milliseconds are the width of the clocks' ticks: leases are counted in whole ones.
            if later.token <= since.token or over_s <= 0.005:
                continue
            if hands.ran_ahead(since.sent_s, later.heard_s):
                book.counts["leases that the clock ended early"] += 1
            else:
                what = f"{later.who} was let in while {holder.name} could trust its lease for {over_s * 1000:.0f} ms"
                book.wrong.append(f"{what} more ({run_id})")
