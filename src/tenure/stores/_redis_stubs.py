"""The typed stubs of the scripts: they alone know which key and which argument stands where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from tenure.clock import Clock
from tenure.codec import pack_names, pack_outcome, pack_requests, pack_run
from tenure.core import canonical, rules
from tenure.core.run import (
    NOW,
    Change,
    Claim,
    Commit,
    Create,
    Delete,
    Due,
    End,
    Facts,
    Found,
    How,
    Import,
    Outcome,
    Post,
    Reattach,
    Renew,
    Repair,
    Row,
    Status,
)
from tenure.stores._redis_claim import claims
from tenure.stores._redis_import import Parts
from tenure.stores._redis_keys import LARGE_BYTES, STATUSES, Keys, KindMemo
from tenure.stores._redis_line import Part, pack
from tenure.stores._redis_script import Call, script

MANY: dict[type[Change], int] = {Renew: 50, Claim: 20}
"""How many renewals or claims one script decides: a longer one would hold up everybody else."""

_Payload: TypeAlias = tuple[str, str, bytes]
"""A large payload: the name it will last under, its digest, its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stubs:
    """Builds the calls of changes and reads their answers."""

    keys: Keys
    kinds: KindMemo
    native: str
    """The native history id, empty to ask the server."""
    safe: str
    """Why no acknowledged grant can be missing after a history change: disk, replicated, or empty."""
    clock: Clock | None = None
    large: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the large payloads of runs about to be deleted."""
    laid: dict[str, str] = field(default_factory=dict)
    """Under which attempt the parts of runs that are brought in wait."""

    def facts(self, ttl_ms: int = 0, /) -> Call:
        """Return the call that says what the store knows, after raising its longest ttl to this."""
        return self._call("renew", [], [ttl_ms or ""])

    def probe(self, name: str, /) -> Call:
        """Return the call that tries every command of the scripts on keys of this name."""
        stub = self._call("probe", [], [])
        stub.keys = [self.keys.stage("_probe", f"{name}.a"), self.keys.stage("_probe", f"{name}.b")]
        return stub

    def calls(self, changes: Sequence[tuple[int, Change]], /) -> Iterator[Call]:
        """Yield the calls of changes in their order: renewals side by side share one, and so do claims."""
        for kind, group in groupby(changes, key=lambda entry: type(entry[1])):
            batch = list(group)
            size = MANY.get(kind, 1)
            for start in range(0, len(batch), size):
                part = batch[start : start + size]
                call = self._build([change for _, change in part])
                call.changes.extend(part)
                yield call

    def call(self, change: Change, /) -> Call:
        """Return the call of one change."""
        call = self._build([change])
        call.changes.append((0, change))
        return call

    def plain(self, change: Change, /) -> bytes | None:
        """Return the packed call of a commit that is a small row and no more, as nearly all are; None for any other."""
        if type(change) is not Commit or not change.is_plain or len(change.row.body) > LARGE_BYTES:
            return None
        keys, run = self.keys, change.grant.run
        named = ("EVALSHA", script("commit")[1], 4, keys.meta, keys.history, keys.run(run), keys.log(run))
        return pack(*named, self._now_us(), self.native, self.safe, *_args_of_row(change), "")

    def _build(self, changes: Sequence[Change]) -> Call:
        change = changes[0]
        match change:
            case Commit():
                return self._commit(change)
            case Renew():
                return self._renew([c for c in changes if isinstance(c, Renew)])
            case Claim():
                named, args = claims([c for c in changes if isinstance(c, Claim)], self.keys, self.kinds)
                return self._call("claim", named, args)
            case Create():
                return self._create(change)
            case Delete():
                return self._delete(change)
            case Import():
                self.kinds[change.run] = change.record.kind
                parts = Parts(keys=self.keys, change=change, attempt=self.laid.get(change.run, ""))
                return self._call("import", parts.named(), parts.args())
            case _:
                return self._rest(change)

    def _call(
        self, name: str, keys: Sequence[str], args: Sequence[Part], staged: Sequence[tuple[str, bytes]] = ()
    ) -> Call:
        return Call(
            script=name,
            keys=[self.keys.meta, self.keys.history, *keys],
            args=[self._now_us(), self.native, self.safe, *args],
            staged=list(staged),
        )

    def _now_us(self) -> Part:
        return "" if self.clock is None else self.clock.now_ms() * 1000

    def _renew(self, changes: Sequence[Renew]) -> Call:
        args: list[Part] = [""]
        grants = [change.grant for change in changes]
        # Nearly all ask for the same time under the same history: it is said once.
        for terms, group in groupby(grants, key=attrgetter("epoch", "ttl_ms")):
            held = [part for grant in group for part in (grant.token, grant.nonce)]
            args += (len(held) // 2, *terms, *held)
        return self._call("renew", [self.keys.run(grant.run) for grant in grants], args)

    def _commit(self, change: Commit) -> Call:
        row, keys = change.row, self.keys
        staged = _large(row, change.blobs)
        named = [keys.run(change.run), keys.log(change.run)]
        plain = change.is_plain
        if plain and staged:
            args = [*_args_of_row(change, b""), "big"]
            return self._with_payloads("commit", [*named, keys.large(change.run)], args, change.run, staged)
        rest = "" if plain else self._rest_of_commit(change, [name for name, _, _ in staged])
        small = sorted(set(change.blobs) - {name for name, _, _ in staged})
        if rest:
            status = change.status or Status.RUNNING
            named += [keys.large(change.run), keys.blobs(change.run), keys.inbox(change.run)]
            named += [keys.due(self.kinds[change.run]), keys.status(Status.RUNNING), keys.status(status)]
        is_staged = bool(staged) and staged[0][0] == str(row.seq)
        args = [*_args_of_row(change, b"" if is_staged else row.body), rest, *(change.blobs[name] for name in small)]
        return self._with_payloads("commit", named, args, change.run, staged)

    def _rest_of_commit(self, change: Commit, large: list[str]) -> str:
        due = (change.due or NOW) if change.status is Status.QUEUED else change.due
        if change.status in rules.TERMINAL:
            due = None
        rest = {
            "status": change.status.value if change.status is not None else None,
            "base": "1" if change.base else None,
            "failures": _text(change.failures),
            "inbox_seq": _text(change.inbox_seq),
            "requests": None if change.requests is None else pack_requests(change.requests),
            "wants": None if change.wants is None else pack_names(change.wants),
            "tags": None if change.tags is None else _pack_tags(change.tags),
            "outcome": None if change.outcome is None else pack_outcome(change.outcome),
        }
        rest = {name: value for name, value in rest.items() if value is not None}
        when = {} if due is None else {"due_in" if due.relative else "due_at": str(due.ms)}
        lists = {
            "consume": list(dict.fromkeys(change.consume)),
            "large": large,
            "blobs": sorted(set(change.blobs) - set(large)),
        }
        return canonical.encode({**rest, **when, **lists, "kind": self.kinds[change.run]}).decode()

    def _create(self, change: Create) -> Call:
        run, keys, row = change.run, self.keys, change.row
        self.kinds[run] = change.kind
        staged = _large(row, change.blobs)
        large = [name for name, _, _ in staged]
        small = sorted(set(change.blobs) - set(large))
        named = [keys.run(run), keys.log(run), keys.large(run), keys.blobs(run), keys.inbox(run)]
        named += [keys.due(change.kind), keys.kinds, keys.status(Status.QUEUED)]
        made = rules.applied(change, Found(), Facts(now_us=0))
        record = canonical.encode(dict(pack_run(made))) if made is not None else b"{}"
        args: list[Part] = [run, record, *_when(change.due)]
        args += [row.digest, row.body if str(row.seq) not in large else b""] if row is not None else ["", ""]
        args += [canonical.encode(large), canonical.encode(small), *(change.blobs[name] for name in small)]
        return self._with_payloads("create", named, args, run, staged)

    def _delete(self, change: Delete) -> Call:
        run, keys, large = change.run, self.keys, self.large.get(change.run, ())
        named = [keys.run(run), keys.log(run), keys.inbox(run), keys.blobs(run), keys.large(run)]
        named += [keys.due(self.kinds[run]), *(keys.status(status) for status in STATUSES if status in rules.TERMINAL)]
        named += [keys.large(run, name) for name in large]
        return self._call("delete", named, [run, self.kinds[run], *large])

    def _rest(self, change: Change) -> Call:
        run, keys, kind = change.run, self.keys, self.kinds[change.run]
        stray_due, args = keys.due(kind), list[Part]()
        match change:
            case Reattach():
                grant = change.grant
                args = ["reattach", run, kind, grant.token, grant.nonce, grant.epoch, grant.ttl_ms]
                args += [change.nonce, change.seq, change.head, change.flying]
            case Post():
                args = ["post", run, kind, change.item, change.digest, change.ask.value, change.name, change.request]
                args += [_text(change.grace_ms) or "", change.body]
            case End():
                ended = Outcome(code="cancelled", message=change.reason, by=change.by)
                outcome = pack_outcome(ended) if change.how is How.CANCEL else ""
                args = ["end", run, kind, change.how.value, change.token, change.nonce]
                args += [change.reason, change.by, outcome]
            case Repair():
                stray, _, stray_kind = change.stray.rpartition(" ")
                stray_due = keys.due(stray_kind) if change.stray else stray_due
                args = ["repair", run, kind, stray]
            case _:
                message = f"no script knows the change {type(change).__name__}"
                raise TypeError(message)
        named = [keys.run(run), keys.inbox(run), keys.due(kind), keys.kinds]
        return self._call("rest", [*named, *(keys.status(status) for status in STATUSES), stray_due], args)

    def _with_payloads(
        self, name: str, named: list[str], args: Sequence[Part], run: str, staged: Sequence[_Payload]
    ) -> Call:
        pairs = [(self.keys.stage(run, digest), self.keys.large(run, lasts)) for lasts, digest, _ in staged]
        laid = [(pair[0], data) for pair, (_, _, data) in zip(pairs, staged, strict=True)]
        return self._call(name, [*named, *(key for pair in pairs for key in pair)], args, laid)


def _args_of_row(change: Commit, body: bytes | None = None, /) -> tuple[Part, ...]:
    grant, row = change.grant, change.row
    held = (grant.run, grant.token, grant.nonce, grant.epoch, grant.ttl_ms)
    return *held, row.seq, row.digest, row.grant or "-", row.body if body is None else body, change.prev, change.step


def _large(row: Row | None, blobs: Mapping[str, bytes]) -> list[_Payload]:
    found = [(str(row.seq), row.digest, row.body)] if row is not None and len(row.body) > LARGE_BYTES else []
    return [*found, *((name, name, data) for name, data in sorted(blobs.items()) if len(data) > LARGE_BYTES)]


def _pack_tags(tags: Mapping[str, str], /) -> str:
    return canonical.encode(dict(tags)).decode() if tags else ""


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _when(due: Due | None) -> tuple[str, str]:
    if due is None:
        return "", ""
    return "in" if due.relative else "at", str(due.ms)
