"""One shard of an opened Redis store: the road of a change to the keys of one tag."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.exceptions import NoScriptError, ReadOnlyError

from tenure.clock import Clock
from tenure.core.run import Answer, Change, Claim, Delete, Facts, Import, Renew, Why
from tenure.errors import OutcomeUnknown, StoreTooNew, StoreUnavailable, TenureError
from tenure.store import Finding, Hint
from tenure.stores import _redis_check as check
from tenure.stores import _redis_diagnosis as diagnosis
from tenure.stores._redis_address import Address
from tenure.stores._redis_answer import Again, facts_of, landed, read, renewed, text_fields
from tenure.stores._redis_connect import translated
from tenure.stores._redis_import import Parts
from tenure.stores._redis_keys import SCHEMA, Keys, KindMemo
from tenure.stores._redis_line import LineBroken, Part, pack
from tenure.stores._redis_reader import Reply
from tenure.stores._redis_road import Road, asked
from tenure.stores._redis_script import NAMES, Call, load
from tenure.stores._redis_stubs import Stubs

TRIES = 4
"""How often a request is sent when the server lacked something each time and so wrote nothing."""


@dataclass(slots=True, kw_only=True)
class Shard:
    """The runs of one tag, and the road to the primary that holds it."""

    where: Address
    keys: Keys
    kinds: KindMemo
    road: Road
    stubs: Stubs
    shards: int = 1
    salt: str = ""
    ttl_ms: int = 0
    large: dict[str, tuple[str, ...]] = field(default_factory=dict)
    entries: dict[str, Hint] = field(default_factory=dict)
    """What the last look found due, by run."""

    @classmethod
    def on(cls, road: Road, keys: Keys, kinds: KindMemo, where: Address, clock: Clock | None, /) -> Shard:
        """Return the shard of these keys on a road."""
        large = dict[str, tuple[str, ...]]()
        native = "" if where.history else "off"
        stubs = Stubs(keys=keys, kinds=kinds, native=native, safe=road.safe, clock=clock, large=large)
        return cls(where=where, keys=keys, kinds=kinds, road=road, stubs=stubs, large=large)

    async def prepare(self, shards: int | None, salt: str, /, *, load_scripts: bool = True) -> None:
        """Load the scripts, lay down meta where there is none, and learn how many shards the layout has."""
        self.salt = salt
        if not self.road.is_replica:
            self.shards = shards or 1
            if load_scripts:
                await self._load_scripts()
            if not (await self.asked(pack("EXISTS", self.keys.meta)))[0]:  # a full server can be opened, to delete runs
                await self._lay_down_meta()
        (flat,) = await self.asked(pack("HGETALL", self.keys.meta))
        meta = text_fields(flat)
        self.shards = check.refuse_meta(meta, self.where, shards)
        self.salt = meta.get("salt", "")

    async def _load_scripts(self) -> None:
        """Load the scripts, and see that they may call what they call."""
        *_, refused = await self.asked(
            *(load(name) for name in NAMES), *self.stubs.probe(secrets.token_hex(8)).packed()
        )
        check.refuse_rights(refused, self.where)

    async def _lay_down_meta(self) -> None:
        salt = self.salt or secrets.token_hex(4)
        first: dict[str, Part] = {
            "schema": SCHEMA,
            "shards": self.shards,
            "salt": salt,
            "floor": 0,
            "max_ttl_ms": self.ttl_ms,
        }
        await self.asked(*(pack("HSETNX", self.keys.meta, name, value) for name, value in first.items()))

    async def _lay_down_again(self) -> None:
        self.salt = ""  # the store was emptied under us: what is written from now on is another history
        await self._lay_down_meta()

    async def asked(self, *packed: bytes) -> list[Reply]:
        """Return the replies to reads; what the server refused is raised."""
        if not packed:
            return []
        replies = await asked(self.road.read_line, packed, self.where)
        if failed := next((reply for reply in replies if isinstance(reply, BaseException)), None):
            raise self._said(failed)
        return replies

    async def is_replica(self) -> bool:
        """Return whether the server became a replica under us: then what it does not have may be there all the same."""
        (said,) = await asked(self.road.read_line, [pack("INFO", "replication")], self.where)
        if isinstance(said, BaseException) or b"role:slave" not in said:
            return False
        self.road.drop()
        return True

    def _said(self, failed: BaseException, *, change: bool = False, run_id: str | None = None) -> TenureError:
        if isinstance(failed, ReadOnlyError):
            self.road.drop()  # a failover: the address may lead to the new primary by now
        return translated(failed, self.where, change=change, run_id=run_id)

    async def diagnose(self) -> list[Finding]:
        """Return how the server is set now."""
        server = check.server_of(await asked(self.road.read_line, check.QUESTIONS, self.where), self.where, say=False)
        return diagnosis.findings(server, self.road.level, self.road.replicas, safe=self.road.safe)

    async def commit(self, change: Change, /) -> Answer | TenureError:
        """Decide one change."""
        # Nearly all changes come by here, and what stands between them and the line would cost more than the line.
        if not self.road.replicas and (packed := self.stubs.plain(change)):
            try:
                (reply,) = await self.road.line.ask((packed,))
            except LineBroken as broken:
                raise translated(broken, self.where, change=True) from None
            if type(reply) is bytes:
                return landed(change, reply)
            if not isinstance(reply, NoScriptError):
                return (await self._answers([change], [(self.stubs.call(change), reply, None)]))[0]
        return (await self._answers([change], await self._call([self.stubs.call(change)])))[0]

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in the order of run ids, in one pipelined write."""
        order = sorted(range(len(changes)), key=lambda index: changes[index].run)
        return await self._answers(changes, await self._call(self._calls(order, changes)))

    def _calls(self, order: Sequence[int], changes: Sequence[Change]) -> list[Call]:
        return list(self.stubs.calls([(index, changes[index]) for index in order]))

    async def _answers(
        self, changes: Sequence[Change], found: list[tuple[Call, Reply, Reply]]
    ) -> list[Answer | TenureError]:
        """Return the answers, asking again where the server lacked something and so wrote nothing."""
        answers: dict[int, Answer | TenureError] = {}
        order = await self._heard(found, changes, answers)
        for _ in range(TRIES - 1):
            if not order:
                break
            order = await self._heard(await self._call(self._calls(order, changes)), changes, answers)
        for index in order:
            message = f"{self.where.shown} lacked what the request needs {TRIES} times and wrote nothing; try again"
            answers.setdefault(index, StoreUnavailable(message, run_id=changes[index].run))
        return [answers[index] for index in range(len(changes))]

    async def _heard(
        self,
        found: list[tuple[Call, Reply, Reply]],
        changes: Sequence[Change],
        answers: dict[int, Answer | TenureError],
    ) -> list[int]:
        """Take what was answered, and return which changes have to be asked again: nothing of them was written."""
        again: list[int] = []
        lacking: set[str] = set()
        for call, reply, waited in found:
            if isinstance(reply, BaseException):
                for index, change in call.changes:
                    answers[index] = self._said(reply, change=True, run_id=change.run)
                continue
            if call.script == "renew" and isinstance(reply, bytes):
                answers |= renewed(call, reply)  # a thousand of them, and a renewal waits for nobody
                continue
            for index, answer in read(call, reply, self.kinds):
                if isinstance(answer, Again):
                    lacking.add(answer.what)
                    again.append(index)
                    await self._name_large(answer.what, changes[index])
                    continue
                if isinstance(answer, StoreTooNew):
                    answers[index] = answer
                    continue
                answers[index] = self._acknowledged(changes[index], answer, waited)
                if answer.why is Why.CORRUPT and isinstance(changes[index], Claim):
                    await self._set_aside(changes[index].run)
                if answer.why is Why.STAGED:
                    # Laid down anew for the next call; the refusal stands if that is the last.
                    if failed := await self._lay_down_parts(changes[index]):
                        answers[index] = failed
                    else:
                        again.append(index)
        if "meta" in lacking:
            await self._lay_down_again()
        return again

    async def _name_large(self, what: str, change: Change) -> None:
        if what == "large" and isinstance(change, Delete):
            (names,) = await self.asked(pack("SMEMBERS", self.keys.large(change.run)))
            self.large[change.run] = tuple(sorted(name.decode() for name in names))

    async def _set_aside(self, run_id: str) -> None:
        """Take a record that cannot be read out of the index, or every look would find it and crowd out others.

        When the record is made good again, the repair pass finds that its entry is missing.
        """
        hint = self.entries.pop(run_id, None)
        if hint is not None:
            entry = f"{hint.run} {hint.token} {hint.priority}"
            await self.asked(pack("ZREM", self.keys.due(hint.kind), entry))

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
        replicas = self.road.replicas
        if not answer.ok or isinstance(change, Renew) or not replicas or check.reached(waited, replicas):
            return answer
        return OutcomeUnknown(self._not_acknowledged(), run=answer.run, run_id=change.run)

    async def _call(self, calls: Sequence[Call], *, wait: bool = False) -> list[tuple[Call, Reply, Reply]]:
        """Send calls in one write; a script that the server's cache lost is loaded and its call sent anew."""
        wait = bool(self.road.replicas) and (wait or any(call.waits for call in calls))
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
            replies = await self.road.line.ask([command for commands in packed for command in commands], wait=wait)
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
                raise self._said(reply, change=ttl_ms > 0)
            if reply[0] != b"again":
                if ttl_ms and self.road.replicas and not check.reached(waited, self.road.replicas):
                    raise OutcomeUnknown(self._not_acknowledged())
                return facts_of(reply)
            await self._lay_down_again()
        message = f"the meta key at {self.where.shown} vanishes as fast as it is written; look who deletes it"
        raise StoreUnavailable(message)

    def _not_acknowledged(self) -> str:
        return (
            f"{self.where.shown} took the change, but {self.road.replicas} replicas did not acknowledge it in time "
            f"(durability {self.road.level.value}); send the same request again"
        )
