"""An opened Redis store: its shards, the roads to them, and what is asked of all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import anyio
from redis.asyncio.connection import AbstractConnection

from tenure.clock import Clock
from tenure.core.run import Answer, Change, Claim, Facts, Renew
from tenure.errors import OutcomeUnknown, StoreUnavailable, StoreUnsafe, TenureError
from tenure.store import Durability, Finding, Hint
from tenure.stores._redis_address import Address, Setup
from tenure.stores._redis_bell import Listener
from tenure.stores._redis_keys import Keys, KindMemo, shard_of
from tenure.stores._redis_reader import Reply
from tenure.stores._redis_refusing import Refusing
from tenure.stores._redis_road import Lines, Road
from tenure.stores._redis_shard import Shard

_LOG = logging.getLogger("tenure.stores.redis")

LATE_S = 1.0
"""How much later than the first shard another may answer where its answer is a hint."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a store was opened with."""

    where: Address
    namespace: str
    durability: Durability | None = None
    allow: tuple[str, ...] = ()
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The shards of one opened store. On one primary they share its lines; in a Cluster each has its own."""

    shards: tuple[Shard, ...]
    roads: tuple[Road, ...]
    listener: Listener
    kinds: KindMemo
    silent: set[int] = field(default_factory=set)
    """Shards that gave no hints the last time; said once."""
    refusing: Refusing = field(default_factory=Refusing)

    @classmethod
    async def open(cls, wish: Wish, /) -> Self:
        """Connect, refuse an unsafe server, settle the level, and learn how many shards there are."""
        where, lines, kinds = wish.where, Lines(wish.where), KindMemo()
        first = Keys(wish.namespace)

        async def connection() -> AbstractConnection:
            return await lines.connection(first.meta)

        listener = Listener(connection, first.channel)
        roads: list[Road] = []
        shards: list[Shard] = []
        try:
            count, number = where.shards, 0
            while number < (count or 1):
                keys = Keys(wish.namespace, number)
                another = not roads or where.setup is Setup.CLUSTER
                if another:
                    roads.append(await Road.open(lines, keys.meta, durability=wish.durability, allow=wish.allow))
                shards.append(Shard.on(roads[-1], keys, kinds, where, wish.clock))
                await shards[-1].prepare(count, shards[0].salt, load_scripts=another)
                count, number = shards[0].shards, number + 1
        except BaseException:
            with anyio.CancelScope(shield=True):  # who is cut off here would else leave the connections of other nodes
                await listener.aclose()
                for road in roads:
                    await road.aclose()
            raise
        return cls(shards=tuple(shards), roads=tuple(roads), listener=listener, kinds=kinds)

    async def aclose(self) -> None:
        """Close every connection."""
        await self.listener.aclose()
        for road in self.roads:
            await road.aclose()

    @property
    def level(self) -> Durability:
        """Return the level that every acknowledgement has: the weakest of the roads."""
        order = list(Durability)
        return min((road.level for road in self.roads), key=order.index)

    def of(self, run_id: str, /) -> Shard:
        """Return the shard of a run."""
        return self.shards[shard_of(run_id, len(self.shards))] if len(self.shards) > 1 else self.shards[0]

    def note(self, hints: Sequence[Hint], /) -> None:
        """Remember what a look found due, for the claims that follow it."""
        for shard in self.shards:
            shard.entries.clear()
        for hint in hints:
            self.kinds[hint.run] = hint.kind
            self.of(hint.run).entries[hint.run] = hint

    async def asked(self, *packed: bytes) -> list[Reply]:
        """Return the replies of the first shard, which keeps what belongs to no run."""
        return await self.shards[0].asked(*packed)

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone; the shards are asked at once, and one that does not answer holds up nobody else."""
        if len(self.shards) == 1:
            return await self.shards[0].commit_many(changes)
        parts: dict[int, list[int]] = {}
        for index, change in enumerate(changes):
            parts.setdefault(shard_of(change.run, len(self.shards)), []).append(index)
        renewals = [change.grant.ttl_ms for change in changes if isinstance(change, Renew)]
        patience_s = min(renewals) / 12_000 if len(renewals) == len(changes) else None
        asking = [self.shards[number].commit_many([changes[i] for i in part]) for number, part in parts.items()]
        answers: dict[int, Answer | TenureError] = {}
        for (number, part), got in zip(parts.items(), await _at_once(asking, patience_s), strict=True):
            if any(isinstance(changes[index], Claim) for index in part):
                self.refusing.note(number, [got] if isinstance(got, TenureError) else got)
            if isinstance(got, TenureError) and len(parts) == 1:
                raise got
            for position, index in enumerate(part):
                answers[index] = _about(got, changes[index]) if isinstance(got, TenureError) else got[position]
        return [answers[index] for index in range(len(changes))]

    async def every(self, ask: Callable[[Shard], Coroutine[None, None, T]], /) -> list[T]:
        """Return what each shard answers; one that does not answer raises."""
        if len(self.shards) == 1:
            return [await ask(self.shards[0])]
        found = await _at_once([ask(shard) for shard in self.shards])
        if error := next((answer for answer in found if isinstance(answer, TenureError)), None):
            raise error
        return [answer for answer in found if not isinstance(answer, TenureError)]

    async def those(self, ask: Callable[[Shard], Coroutine[None, None, T]], /) -> list[T]:
        """Return what the shards answer that do: for hints, where some are better than none. Raises if none answers."""
        if len(self.shards) == 1:
            return [await ask(self.shards[0])]
        found = await _at_once([ask(shard) for shard in self.shards], LATE_S)
        answered: list[T] = []
        for number, answer in enumerate(found):
            if not isinstance(answer, TenureError):
                answered.append(answer)
                self.silent.discard(number)
            elif number not in self.silent:
                self.silent.add(number)
                _LOG.warning("shard %d does not answer, the others go on: %s", number, answer)
        if not answered:
            raise next(answer for answer in found if isinstance(answer, TenureError))
        return answered

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make the longest ttl of every shard at least this."""
        await self.every(lambda shard: shard.facts(ttl_ms))

    async def facts(self) -> Facts:
        """Return what the shards know, as one: the latest change of history, and what is most of the rest."""
        found = await self.those(lambda shard: shard.facts())
        latest = max(found, key=lambda facts: facts.since_ms)
        return replace(
            found[0],
            epoch=",".join(dict.fromkeys(facts.epoch for facts in found)),
            since_ms=latest.since_ms,
            lossy=any(facts.lossy for facts in found),
            max_ttl_ms=max(facts.max_ttl_ms for facts in found),
            floor=max(facts.floor for facts in found),
        )

    async def diagnose(self) -> list[Finding]:
        """Return how the servers are set now."""
        if len(self.roads) == 1:
            return await self.shards[0].diagnose()
        return [
            replace(finding, name=f"shard {number}: {finding.name}")
            for number, shard in enumerate(self.shards)
            for finding in await shard.diagnose()
        ]


async def _at_once(
    asking: Sequence[Coroutine[None, None, T]], patience_s: float | None = None
) -> list[T | TenureError]:
    """Return all answers or their errors; who is later than the first by `patience_s` is waited for no longer."""
    tasks = [asyncio.create_task(ask) for ask in asking]
    try:
        if patience_s is None:
            await asyncio.wait(tasks)
        else:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(tasks, timeout=patience_s)
        return [_answer(task) for task in tasks]
    finally:
        for task in tasks:
            task.cancel()


def _answer(task: asyncio.Task[T]) -> T | TenureError:
    if not task.done():
        return OutcomeUnknown("one shard did not answer when others did; send the same request again")
    error = task.exception()
    if error is None:
        return task.result()
    if not isinstance(error, TenureError):
        raise error
    return error


def _about(error: TenureError, change: Change) -> TenureError:
    """Return the error of a whole shard as that of one run."""
    if isinstance(error, StoreUnavailable | OutcomeUnknown | StoreUnsafe):
        return type(error)(error.message, run_id=change.run)
    return error
