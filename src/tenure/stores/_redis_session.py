"""An opened Redis store: its connections, what was found out about the server, and the road of a change."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ReadOnlyError

from tenure.clock import Clock
from tenure.core.run import Answer, Change, Delete, Facts, Import, Renew, Why
from tenure.errors import OutcomeUnknown, StoreUnavailable, TenureError
from tenure.store import Durability, Finding
from tenure.stores import _redis_check as check
from tenure.stores._redis_answer import Again, facts_of, read, text_fields
from tenure.stores._redis_bell import Listener
from tenure.stores._redis_connect import Address, connect, translated
from tenure.stores._redis_import import Parts
from tenure.stores._redis_keys import SCHEMA, Keys, KindMemo
from tenure.stores._redis_line import Line, LineBroken, Part, Reply, pack
from tenure.stores._redis_script import NAMES, Call, load
from tenure.stores._redis_stubs import Stubs

TRIES = 4
"""How often a request is sent when the server lacked something each time and so wrote nothing."""

_SAFE = {Durability.DISK: "disk", Durability.REPLICATED: "replicated", Durability.REPLICATED_DISK: "replicated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a store was opened with."""

    where: Address
    namespace: str
    durability: Durability | None = None
    allow: tuple[str, ...] = ()
    clock: Clock | None = None
    """Whether to subscribe at once; else the first who waits does, and then looks once for nothing."""


@dataclass(slots=True, kw_only=True)
class Session:
    """The connections of one opened store: a line for changes, one for reads (the same where no change waits)."""

    where: Address
    keys: Keys
    kinds: KindMemo
    line: Line
    read_line: Line
    level: Durability
    stubs: Stubs
    listener: Listener
    replicas: int
    ttl_ms: int = 0
    large: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    async def open(cls, wish: Wish, /) -> Self:
        """Connect, refuse an unsafe server, and settle the level."""
        where = wish.where

        async def connection() -> AbstractConnection:
            return await connect(where)

        first = Line(connection)
        listener = Listener(connection, Keys(wish.namespace).channel)
        try:
            server = check.server_of(await _replies(first, check.QUESTIONS, where), where)
            check.refuse_unsafe(server, where, wish.allow)
            level = check.level_of(server, wish.durability, where, wish.allow)
            wait, replicas = check.wait_command(level, server, where)
            keys, kinds, large = Keys(wish.namespace), KindMemo(), dict[str, tuple[str, ...]]()
            self = cls(
                where=where,
                keys=keys,
                kinds=kinds,
                line=Line(connection, wait=wait) if wait else first,
                read_line=first,
                level=level,
                stubs=Stubs(
                    keys=keys,
                    kinds=kinds,
                    native="" if where.history else "off",
                    safe=_SAFE.get(level, ""),
                    clock=wish.clock,
                    large=large,
                ),
                listener=listener,
                replicas=replicas,
                large=large,
            )
            if server["role"] != "slave":
                await self._prepare()
            (meta,) = await self.asked(pack("HGETALL", keys.meta))
            check.refuse_meta(text_fields(meta), where)
        except BaseException:
            await listener.aclose()
            await first.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """Close every connection."""
        await self.listener.aclose()
        await self.line.aclose()
        await self.read_line.aclose()

    async def _prepare(self) -> None:
        """Load the scripts, see that they may call what they call, and lay down meta where there is none."""
        *_, refused = await self.asked(
            *(load(name) for name in NAMES), *self.stubs.probe(secrets.token_hex(8)).packed()
        )
        check.refuse_rights(refused, self.where)
        if not (await self.asked(pack("EXISTS", self.keys.meta)))[0]:  # a full server can be opened, to delete runs
            await self._lay_down_meta()

    async def _lay_down_meta(self) -> None:
        salt = secrets.token_hex(4)
        first: dict[str, Part] = {"schema": SCHEMA, "shards": 1, "salt": salt, "floor": 0, "max_ttl_ms": self.ttl_ms}
        await self.asked(*(pack("HSETNX", self.keys.meta, name, value) for name, value in first.items()))

    async def asked(self, *packed: bytes) -> list[Reply]:
        """Return the replies to reads; what the server refused is raised."""
        if not packed:
            return []
        return _raise_first(await _replies(self.read_line, packed, self.where), self.where)

    async def diagnose(self) -> list[Finding]:
        """Return how the server is set now."""
        server = check.server_of(await _replies(self.read_line, check.QUESTIONS, self.where), self.where)
        return check.findings(server, self.level, self.replicas)

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids, in one pipelined write."""
        answers: dict[int, Answer | TenureError] = {}
        order = sorted(range(len(changes)), key=lambda index: changes[index].run)
        for _ in range(TRIES):
            order = await self._decide(order, changes, answers)
            if not order:
                break
        for index in order:
            message = f"{self.where.shown} lacked what the request needs {TRIES} times and wrote nothing; try again"
            answers.setdefault(index, StoreUnavailable(message, run_id=changes[index].run))
        return [answers[index] for index in range(len(changes))]

    async def _decide(
        self, order: list[int], changes: Sequence[Change], answers: dict[int, Answer | TenureError]
    ) -> list[int]:
        """Ask once, and return which changes have to be asked again: nothing of them was written."""
        calls = list(self.stubs.calls([(index, changes[index]) for index in order]))
        again: list[int] = []
        lacking: set[str] = set()
        for call, reply, waited in await self._call(calls):
            if isinstance(reply, BaseException):
                if isinstance(reply, ReadOnlyError):
                    self.line.drop()  # a failover: the address may lead to the new primary by now
                for index, change in call.changes:
                    answers[index] = translated(reply, self.where, change=True, run_id=change.run)
                continue
            for index, answer in read(call, reply, self.kinds):
                if isinstance(answer, Again):
                    lacking.add(answer.what)
                    again.append(index)
                    await self._name_large(answer.what, changes[index])
                    continue
                answers[index] = self._acknowledged(changes[index], answer, waited)
                if answer.why is Why.STAGED:
                    # Laid down anew for the next call; the refusal stands if that is the last.
                    if failed := await self._lay_down_parts(changes[index]):
                        answers[index] = failed
                    else:
                        again.append(index)
        if "meta" in lacking:
            await self._lay_down_meta()
        return again

    async def _name_large(self, what: str, change: Change) -> None:
        if what == "large" and isinstance(change, Delete):
            (names,) = await self.asked(pack("SMEMBERS", self.keys.large(change.run)))
            self.large[change.run] = tuple(sorted(name.decode() for name in names))

    async def _lay_down_parts(self, change: Change) -> TenureError | None:
        """Lay down what an import brings in, a page at a time; other payloads go along with their script."""
        if not isinstance(change, Import):
            return None
        attempt = secrets.token_hex(8)  # somebody else may be bringing in the same run
        try:
            for page in Parts(keys=self.keys, change=change, attempt=attempt).pages():
                await self.asked(*page)
        except TenureError as error:
            error.run_id = change.run
            return error
        self.stubs.laid[change.run] = attempt
        return None

    def _acknowledged(self, change: Change, answer: Answer, waited: Reply) -> Answer | TenureError:
        if isinstance(change, Delete) and answer.ok:
            self.large.pop(change.run, None)
        if isinstance(change, Import) and answer.why is not Why.STAGED:
            self.stubs.laid.pop(change.run, None)
        if not answer.ok or isinstance(change, Renew) or not self.replicas or check.reached(waited, self.replicas):
            return answer
        message = (
            f"{self.where.shown} took the change, but {self.replicas} replicas did not acknowledge it in time "
            f"(durability {self.level.value}); send the same request again"
        )
        return OutcomeUnknown(message, run=answer.run, run_id=change.run)

    async def _call(self, calls: Sequence[Call], *, wait: bool = False) -> list[tuple[Call, Reply, Reply]]:
        """Send calls in one write; a script that the server's cache lost is loaded and its call sent anew."""
        wait = bool(self.replicas) and (wait or any(call.waits for call in calls))
        found = await self._send(calls, [call.packed() for call in calls], wait=wait)
        missing = [index for index, (_, reply, _) in enumerate(found) if isinstance(reply, NoScriptError)]
        if missing:
            # A script that is not in the cache was not run, so this sends nothing twice.
            lost = [calls[index] for index in missing]
            anew = await self._send(lost, [[load(call.script), *call.packed()] for call in lost], wait=wait)
            for index, entry in zip(missing, anew, strict=True):
                found[index] = entry
        return found

    async def _send(
        self, calls: Sequence[Call], packed: list[list[bytes]], *, wait: bool
    ) -> list[tuple[Call, Reply, Reply]]:
        try:
            replies = await self.line.ask([command for commands in packed for command in commands], wait=wait)
        except LineBroken as broken:
            raise translated(broken, self.where, change=True) from None
        waited = replies.pop() if wait else None
        found = []
        for call, commands in zip(calls, packed, strict=True):
            mine, replies = replies[: len(commands)], replies[len(commands) :]
            # A payload that could not be laid down (no memory) explains better than the script that misses it.
            reply = next((r for r in mine if isinstance(r, BaseException) and not isinstance(r, LineBroken)), mine[-1])
            found.append((call, reply, waited))
        return found

    async def facts(self, ttl_ms: int = 0, /) -> Facts:
        """Return what the store knows now, after raising its longest ttl to this."""
        self.ttl_ms = max(self.ttl_ms, ttl_ms)
        for _ in range(TRIES):
            ((_, reply, waited),) = await self._call([self.stubs.facts(ttl_ms)], wait=ttl_ms > 0)
            if isinstance(reply, BaseException):
                raise translated(reply, self.where, change=ttl_ms > 0)
            if reply[0] != b"again":
                if ttl_ms and self.replicas and not check.reached(waited, self.replicas):
                    raise OutcomeUnknown(self._not_acknowledged())
                return facts_of(reply)
            await self._lay_down_meta()
        message = f"the meta key at {self.where.shown} vanishes as fast as it is written; look who deletes it"
        raise StoreUnavailable(message)

    def _not_acknowledged(self) -> str:
        return (
            f"{self.where.shown} took the change, but {self.replicas} replicas did not acknowledge it in time "
            f"(durability {self.level.value}); send the same request again"
        )


async def _replies(line: Line, packed: Sequence[bytes], where: Address) -> list[Reply]:
    try:
        replies = await line.ask(packed)
    except LineBroken as broken:
        raise translated(broken, where) from None
    if lost := next((reply for reply in replies if isinstance(reply, LineBroken)), None):
        raise translated(lost, where)
    return replies


def _raise_first(replies: list[Reply], where: Address) -> list[Reply]:
    if failed := next((reply for reply in replies if isinstance(reply, BaseException)), None):
        raise translated(failed, where)
    return replies
