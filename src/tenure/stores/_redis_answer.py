"""How the answers of scripts read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tenure.codec import (
    unpack_grants,
    unpack_item,
    unpack_names,
    unpack_outcome,
    unpack_requests,
    unpack_run,
    unpack_tags,
)
from tenure.core import rules
from tenure.core.run import (
    SCHEMA,
    Answer,
    Change,
    Claim,
    Commit,
    Facts,
    Post,
    Reattach,
    Renew,
    Run,
    Status,
    Verdict,
    Why,
)
from tenure.errors import CorruptRecord, InvalidContent, StoreTooNew
from tenure.stores._redis_keys import KindMemo
from tenure.stores._redis_reader import Reply
from tenure.stores._redis_script import Call

_HOLDING = (None, Status.RUNNING)

_VALUES = (
    *("schema", "version", "attempt", "crashes", "failures", "granted_ttl_ms", "lease_until_ms", "step", "last_seq"),
    *("base_seq", "inbox_seq", "touch", "created_ms", "updated_ms", "due_ms", "token", "priority", "cancel_by_ms"),
    *("id", "kind", "code_version", "nonce", "epoch", "owner", "head", "parent", "input_digest", "status"),
    *("requests", "wants", "tags", "outcome", "grants"),
)
"""The values of a record in the order in which `claim.lua` reads and returns them."""

_NUMBERS = _VALUES.index("cancel_by_ms") + 1
_STATUSES = {status.value: status for status in Status}
_NOBODY = Run(id="", kind="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Nothing was written: `what` the server lacked (meta, kind, large), to be sent with the next call."""

    what: str


def read(call: Call, reply: Reply, kinds: KindMemo, /) -> Iterator[tuple[int, Answer | Again | StoreTooNew]]:
    """Yield the answer to each change of a call, by index."""
    replies = [reply]
    if call.script in ("renew", "claim") and reply[0] != b"again":
        replies = reply[6:] if call.script == "renew" else reply
    if reply[0] == b"again":
        replies = [reply] * len(call.changes)
    now_us = int(reply[0]) if call.script == "renew" and reply[0] != b"again" else 0
    for (index, change), one in zip(call.changes, replies, strict=True):
        yield index, _answer(change, one, now_us, kinds)


def _answer(change: Change, reply: Reply, now_us: int, kinds: KindMemo) -> Answer | Again | StoreTooNew:
    if isinstance(reply, bytes):
        if isinstance(change, Claim):
            return _claimed(change, reply, kinds)
        return landed(change, reply, now_us)
    verdict, why = reply[0].decode(), reply[1].decode()
    if verdict == "again":
        if why == "kind":
            kinds[change.run] = reply[2].decode()
        return Again(what=why)
    if why == "newer":
        schema = text_fields(reply[3]).get("schema", "")
        message = f"run {change.run} has schema {schema} and this version reads up to {SCHEMA}; upgrade this process"
        return StoreTooNew(message, run_id=change.run)
    run = found_run(reply[3])
    if run is not None:
        kinds[run.id] = run.kind
    item = unpack_item(change.item, reply[4]) if reply[4] and isinstance(change, Post) else None
    now_us = int(reply[2])
    left_ms = max(0, run.lease_until_ms - now_us // 1000) if run is not None and _named(change, run) else 0
    return Answer(
        verdict=Verdict(verdict),
        now_us=now_us,
        run=run,
        why=Why(why) if why else None,
        left_ms=left_ms,
        item=item,
    )


def facts_of(reply: Reply, /) -> Facts:
    """Return what the answer of `renew` says of the store."""
    us, epoch, since_ms, lossy, max_ttl_ms, floor = (part.decode() for part in reply[:6])
    return Facts(
        now_us=int(us),
        epoch=epoch,
        since_ms=int(since_ms),
        lossy=lossy == "1",
        max_ttl_ms=int(max_ttl_ms),
        floor=int(floor),
    )


def _claimed(change: Claim, reply: bytes, kinds: KindMemo) -> Answer:
    """Return the answer of a claim that landed: one text with the values of the record."""
    _, us, *values = _text(reply).split("\0")
    run, now_us = claimed_run(values), int(us)
    if run is None:
        return Answer(verdict=Verdict.LANDED, now_us=now_us)
    kinds[run.id] = run.kind
    holds = run.status is Status.RUNNING and run.nonce == change.nonce
    left_ms = max(0, run.lease_until_ms - now_us // 1000) if holds else 0
    return Answer(verdict=Verdict.LANDED, now_us=now_us, run=run, left_ms=left_ms)


def claimed_run(values: Sequence[str], /) -> Run | None:
    """Return the record of these values, None where there is none that this version can read."""
    if len(values) != len(_VALUES):
        return None
    try:
        numbers = [int(value) if value else None for value in values[:_NUMBERS]]
        status, requests, wants, tags, outcome, grants = values[-6:]
        return _NOBODY.after(
            **dict(zip(_VALUES, (*numbers, *values[_NUMBERS:-6]), strict=False)),
            status=_STATUSES[status],
            requests=unpack_requests(requests),
            wants=unpack_names(wants),
            tags=unpack_tags(tags),
            outcome=unpack_outcome(outcome),
            grants=unpack_grants(grants),
        )
    except (KeyError, ValueError, TypeError, InvalidContent):
        return None


def found_run(flat: Sequence[bytes], /) -> Run | None:
    """Return the record of an answer; None where there is none that this version can read."""
    try:
        fields = text_fields(flat)
        schema = fields.get("schema", "")
        if schema.isdecimal() and int(schema) > SCHEMA:
            # A newer record is refused to a reader by name; an answer shows what can be shown of it.
            return replace(unpack_run({**fields, "schema": str(SCHEMA)}), schema=int(schema))
        return unpack_run(fields) if fields else None
    except CorruptRecord:
        return None


def text_fields(flat: Sequence[bytes], /) -> dict[str, str]:
    """Return the fields of a hash as text; what is no UTF-8 stays visible as escapes."""
    texts = [_text(data) for data in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace")


def landed(change: Change, reply: bytes, now_us: int = 0, /) -> Answer:
    """Return the answer of one word: the holder knows its run, and computes the run after by the law."""
    left_ms = change.grant.ttl_ms if isinstance(change, (Commit, Renew)) else 0
    if isinstance(change, Commit) and change.status not in _HOLDING:
        left_ms = 0
    return Answer(verdict=Verdict.LANDED, now_us=now_us or int(reply[len(b"landed ") :]), left_ms=left_ms)


def _named(change: Change, run: Run) -> bool:
    if run.status is not Status.RUNNING:
        return False
    if isinstance(change, Claim | Reattach):
        return run.nonce == change.nonce
    return isinstance(change, Renew | Commit) and rules.holds(run, change.grant)
