"""Crashes of PostgreSQL under writers: what was acknowledged is there, whole, and the holders go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tenure.archive import whole
from tenure.core import build
from tenure.core.run import Ask, Change, Claim, Request, Run, Status
from tenure.errors import CorruptRecord
from tenure.repair import repair_pass
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores._postgres_connect import address
from tenure.stores._postgres_migrate import migrate
from tenure.testing._postgres_server import PostgresServer
from tenure.testing.chaos._postgres_pair import told
from tenure.testing.chaos._promotion_story import Holder, asked
from tenure.testing.chaos._promotion_story import step as step_of
from tenure.testing.chaos._promotion_story import told as was_told
from tenure.testing.chaos._told import missing, unsound
from tenure.testing.chaos.kinds import Kind, Place, Played

WRITERS = 4
TTL_MS = 60_000
AFTER = 6
"""How many changes of each writer have to land after the crash."""
ALLOW = ("async-commit",)
"""So that a server that does not flush is found out by what it loses."""
HOWS = ("quit", "kill", "backend", "checkpointer", "stop")


@dataclass(slots=True, kw_only=True)
class Book:
    """What the writers were told, kept outside the store."""

    commits: dict[str, dict[int, str]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class PostgresCrash(Kind):
    """One crash under writers, on a server of its own that flushes what it acknowledges."""

    name = "pgcrash"
    stores = ("postgres",)
    short, long, batch = 6, 200, 3
    flushes = True
    """False lets the server answer before its log is written, as `synchronous_commit = off` does."""

    async def play(self, seed: int, place: Place, /) -> Played:
        """Let writers write, crash the server under them, let them go on, and judge what is stored."""
        drawn, book = random.Random(f"{self.name}:{place.name}:{seed}"), Book()
        how = HOWS[seed % len(HOWS)]
        async with _served() as server:
            url = f"{server.url}?timeout=30"
            if not self.flushes:
                await told(server, "ALTER SYSTEM SET synchronous_commit = off")
                await told(server, "ALTER SYSTEM SET wal_writer_delay = '10s'")
                server.reload()
            over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for number in range(WRITERS):
                    writer = Writer(run=f"r{number}", drawn=random.Random(drawn.getrandbits(64)), book=book, over=over)
                    tasks.create_task(writer.write(url))
                await _until(book, over, WRITERS * 4)
                await asyncio.sleep(drawn.uniform(0, 0.2))
                before = book.counts["landed"]
                await crash(server, how)
                await _until(book, over, before + WRITERS * AFTER)
                over.set()
            await _judge(url, book)
        book.counts[f"crashes by {how}"] += 1
        return Played(violations=book.wrong, counts=book.counts, note=how)


@contextlib.asynccontextmanager
async def _served() -> AsyncIterator[PostgresServer]:
    server = PostgresServer(options={"fsync": "on", "full_page_writes": "on", "max_connections": 60})
    try:
        await asyncio.to_thread(server.start)
        await migrate(address(server.url, {}))
        yield server
    finally:
        await asyncio.to_thread(server.close)


async def _until(book: Book, over: asyncio.Event, landed: int) -> None:
    while book.counts["landed"] < landed and not over.is_set():  # noqa: ASYNC110 - the writers bring it about
        await asyncio.sleep(0.01)


async def crash(server: PostgresServer, how: str) -> None:
    """End the server as named, and start it again where it does not do so by itself."""
    match how:
        case "quit":
            await asyncio.to_thread(server.kill)
        case "kill":
            await asyncio.to_thread(server.kill_all)
        case "stop":
            await asyncio.to_thread(server.stop)
        case _:
            kind = "client backend" if how == "backend" else how
            question = "SELECT pid FROM pg_stat_activity WHERE backend_type = %s AND pid <> pg_backend_pid()"
            found = await told(server, question, kind)
            # One that is gone by itself brings nothing down; the next one does.
            for (pid,) in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return
            message = f"the server has no {kind} that could be killed"
            raise RuntimeError(message)
    if how in ("quit", "kill", "stop"):
        await asyncio.to_thread(server.start)


@dataclass(slots=True, kw_only=True)
class Writer:
    """Claims one run again and again, writes, and hands it back; what has no answer is asked again, unchanged."""

    run: str
    drawn: random.Random
    book: Book
    over: asyncio.Event
    posted: int = 0

    async def write(self, url: str) -> None:
        """Write until it is over."""
        async with open_store(url, namespace="crash", allow=ALLOW) as store:
            await self._lands(store, build.create(run=self.run, kind="k", value=self.run))
            while not self.over.is_set():
                await self._hold(store)

    async def _hold(self, store: Store) -> None:
        nonce = secrets.token_hex(16)
        run = await self._lands(store, Claim(run=self.run, nonce=nonce, owner="w", ttl_ms=TTL_MS, max_crashes=0))
        if run is None:
            return
        self.book.tokens.setdefault(self.run, []).append(run.token)
        holder = Holder(name="w", grant=build.grant_of(run), run=run, trusts_until_s=0)
        for _ in range(self.drawn.randrange(1, 6)):
            if self.drawn.random() < 0.4:
                self.posted += 1
                item = f"i{self.posted}"
                post = build.post(run=self.run, item=item, name="s", ask=Ask.SIGNAL, value=self.posted)
                await self._lands(store, post)
                await self._commit(store, holder, consume=[item])
            else:
                await self._commit(store, holder, blobs=[self.drawn.randbytes(self.drawn.choice((10, 20_000)))])
        await self._commit(store, holder, status=Status.QUEUED, requests={"q": Request(digest="d")}, tags={"a": "b"})

    async def _commit(self, store: Store, holder: Holder, **more: object) -> None:
        change = step_of(holder, **more)  # type: ignore[arg-type]
        if await self._lands(store, change) is not None:
            was_told(holder, change)
            self.book.commits.setdefault(self.run, {})[change.row.seq] = change.row.digest

    async def _lands(self, store: Store, change: Change) -> Run | None:
        answer = await asked(store, change)
        self.book.counts["landed"] += answer.ok
        self.book.counts["found to have landed when it was asked again"] += answer.ok and answer.verdict == "already"
        if not answer.ok:
            self.book.wrong.append(f"{type(change).__name__} of {self.run} was refused: {answer.why}")
            self.over.set()
            return None
        return answer.run or await store.load(self.run)


async def _judge(url: str, book: Book) -> None:
    async with open_store(url, namespace="crash", allow=ALLOW) as store:
        for run_id, commits in book.commits.items():
            run, rows = await store.load(run_id), await store.tail(run_id, limit=100_000)
            lost = missing(rows, commits.items())
            book.counts["acknowledged commits"] += len(commits)
            if lost:
                book.wrong.append(f"{len(lost)} acknowledged commits of {run_id} are not there")
            book.wrong += [f"{run_id}: {what}" for what in unsound(run, rows)]
            try:
                await whole(store, run_id)
            except CorruptRecord as error:
                book.wrong.append(f"{run_id} is not whole: {error}")
            tokens = book.tokens.get(run_id, [])
            if tokens != sorted(set(tokens)):
                book.wrong.append(f"the tokens of {run_id} do not rise")
        repaired = await repair_pass(store)
        if repaired.lost or repaired.strays or repaired.stretched or repaired.corrupt:
            book.wrong.append(f"there was something to repair: {repaired}")
