"""The store on Redis and Valkey: stock commands and a few short scripts that decide and write in one atomic step.

The scripts restate `core/rules.py` in the same order. What is stored is what `codec.py` packs; docs/store-format.md
lists the keys.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Self

from tenure.clock import Clock
from tenure.core.run import Answer, Change, Claim, Facts, Item, Row, Run
from tenure.errors import NotAllowed, StoreUnavailable, TenureError
from tenure.store import ALL, Beat, Durability, Finding, Hint, Page, Refused, Where
from tenure.stores import _redis_reads as reads
from tenure.stores import _redis_spread as spread
from tenure.stores._index import REFUSED_LENGTH
from tenure.stores._redis_address import address
from tenure.stores._redis_answer import text_fields
from tenure.stores._redis_keys import Keys
from tenure.stores._redis_line import pack
from tenure.stores._redis_reader import Reply
from tenure.stores._redis_session import Session, Wish

_LOG = logging.getLogger("tenure.stores.redis")

TOLD_S = 60.0


def open_url(
    url: str,
    *,
    namespace: str,
    durability: Durability | None,
    allow: tuple[str, ...],
    clock: Clock | None,
    options: dict[str, str],
) -> RedisStore:
    """Return the store of a URL; `allow` knows eviction, replica and unchecked."""
    where = address(url, options)
    if clock is not None and not where.testing:
        message = "the server's clock is the clock of this store; ?testing=on takes another one, in tests"
        raise NotAllowed(message)
    return RedisStore(Wish(where=where, namespace=namespace, durability=durability, allow=allow, clock=clock))


class RedisStore:
    """One namespace, for one event loop of one process."""

    def __init__(self, wish: Wish) -> None:
        self.url = wish.where.shown
        self.namespace = wish.namespace
        self._wish = wish
        self._keys = Keys(wish.namespace)
        self._pid = os.getpid()
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._level = wish.durability or Durability.MEMORY
        self._beaten = 0
        self._told = (0, float("-inf"))

    @property
    def level(self) -> Durability:
        """Return the durability level that acknowledgements have; it is settled when the store is opened."""
        return self._level

    async def __aenter__(self) -> Self:
        """Connect, refuse an unsafe server, and settle the level."""
        self._check_process()
        if self._session is not None:
            message = "the store is open already; use `beside()` for another one"
            raise NotAllowed(message)
        self._session = await Session.open(self._wish)
        self._level = self._session.level
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close every connection that this object made."""
        session, self._session = self._session, None
        if session is not None and os.getpid() == self._pid:  # in a fork they are the parent's
            await session.aclose()

    def beside(self) -> RedisStore:
        """Return another, unopened store object with connections of its own."""
        return RedisStore(self._wish)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            message = "this Redis store was made before a fork; open a store in the child process"
            raise NotAllowed(message)

    def _opened(self) -> Session:
        self._check_process()
        if self._session is None:
            message = "the store is not open; use `async with store:`"
            raise NotAllowed(message)
        if self._loop is not asyncio.get_running_loop():
            message = "this store was opened in another event loop; open one for this loop with beside()"
            raise NotAllowed(message)
        return self._session

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change and apply it in one script."""
        session = self._opened()
        if isinstance(change, Claim):
            (answer,) = await session.commit_many([change])  # it learns which shards take none
        else:
            answer = await session.of(change.run).commit(change)
        if isinstance(answer, TenureError):
            raise answer
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids, in one pipelined write."""
        return await self._opened().commit_many(changes)

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make `max_ttl_ms` at least this."""
        await self._opened().raise_ttl(ttl_ms)

    async def facts(self) -> Facts:
        """Return what the store knows now; who looks first after a history change writes it down."""
        return await self._opened().facts()

    async def new_history(self) -> None:
        """Begin another history, one in which acknowledged grants may be missing."""
        salt = secrets.token_hex(8)
        await self.facts()  # another salt under an id that was written down is what a restored store is known by
        await self._opened().every(lambda shard: shard.asked(pack("HSET", shard.keys.meta, "salt", salt)))
        await self.facts()

    async def _read(self, *packed: bytes) -> list[Reply]:
        return await self._opened().asked(*packed)

    async def _now_ms(self) -> int:
        if self._wish.clock is not None:
            return self._wish.clock.now_ms()
        # For what nothing decides by: the last answer of the server, carried on by this machine for a minute at most.
        if time.monotonic() - self._told[1] > TOLD_S:
            ((seconds, us),) = await self._read(pack("TIME"))
            self._told = (int(seconds) * 1000 + int(us) // 1000, time.monotonic())
        return self._told[0] + round((time.monotonic() - self._told[1]) * 1000)

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record; StoreUnavailable where a replica, which may lag, has none."""
        session = self._opened()
        shard = session.of(run_id)
        run = await reads.load(shard.asked, shard.keys, run_id)
        if run is not None:
            session.kinds[run_id] = run.kind
        elif await shard.is_replica():
            message = f"{self.url} is a replica, which may lag, and has no run {run_id} (yet); try again on the primary"
            raise StoreUnavailable(message, run_id=run_id)
        return run

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record's stored fields unread."""
        shard = self._opened().of(run_id)
        (flat,) = await shard.asked(pack("HGETALL", shard.keys.run(run_id)))
        return text_fields(flat)

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return rows in order."""
        shard = self._opened().of(run_id)
        return await reads.tail(shard.asked, shard.keys, run_id, after=after, limit=limit)

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return items in order."""
        shard = self._opened().of(run_id)
        return await reads.inbox(shard.asked, shard.keys, run_id, after=after)

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob."""
        shard = self._opened().of(run_id)
        return await reads.blob(shard.asked, shard.keys, run_id, digest)

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return what the indexes say is due."""
        clock, session = self._wish.clock, self._opened()
        hints, now_ms = await spread.due(session, kinds, clock.now_ms() if clock is not None else None, limit=limit)
        self._told = (now_ms, time.monotonic())
        session.note(hints)
        return hints

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return the earliest entry of the indexes."""
        return await spread.next_due_ms(self._opened(), kinds)

    async def kinds(self) -> list[str]:
        """Return the kinds in the indexes."""
        return await spread.kinds_in_use(self._opened())

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of the index; `limit` is about how many."""
        return await spread.entries(self._opened(), kind, cursor=cursor, limit=limit)

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first."""
        return await spread.find(self._opened(), where, cursor=cursor, limit=limit)

    async def diagnose(self) -> list[Finding]:
        """Return version, level and settings as findings."""
        return await self._opened().diagnose()

    # ---------------------------------------------------------------------------------------------- hints

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Write a worker's row."""
        now_ms = await self._now_ms()
        data = reads.pack_beat(replace(row, at_ms=now_ms), now_ms + ttl_ms)
        await self._hint(pack("HSET", self._keys.beats, row.name, data))
        self._beaten += 1
        if self._beaten % 100 == 0:
            await self.beats()  # which drops what has expired, even if nobody else ever looks

    async def beats(self) -> list[Beat]:
        """Return the rows that have not expired, and drop the others."""
        (flat,) = await self._read(pack("HGETALL", self._keys.beats))
        rows, over = reads.unpack_beats(flat, await self._now_ms())
        if over:
            await self._hint(pack("HDEL", self._keys.beats, *over))
        return rows

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the refused list."""
        data = json.dumps(asdict(replace(line, at_ms=await self._now_ms())))
        key = self._keys.refused
        await self._hint(pack("LPUSH", key, data), pack("LTRIM", key, 0, REFUSED_LENGTH - 1))

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes."""
        (lines,) = await self._read(pack("LRANGE", self._keys.refused, 0, limit - 1))
        return reads.unpack_refused(lines)

    async def wake(self, topic: str, /) -> None:
        """Wake who waits for the topic."""
        await self._hint(pack("PUBLISH", self._keys.channel, topic))

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait for one of the topics; a plain wait where subscribing fails."""
        return await self._opened().listener.woken(topics, timeout=timeout)

    async def _hint(self, *packed: bytes) -> None:
        try:
            await self._read(*packed)
        except NotAllowed:
            raise
        except TenureError as error:
            _LOG.debug("a hint was not written: %s", error)
