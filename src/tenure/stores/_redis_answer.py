"""How the answers of scripts read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tenure.codec import (
    unpack_item,
    unpack_run,
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
from tenure.errors import CorruptRecord, StoreTooNew
from tenure.stores._redis_claim import claimed
from tenure.stores._redis_keys import KindMemo
from tenure.stores._redis_reader import Reply, as_text
from tenure.stores._redis_script import Call

_HOLDING = (None, Status.RUNNING)


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


def renewed(call: Call, reply: bytes, /) -> dict[int, Answer]:
    """Return the answers of renewals that landed all together, by index."""
    now_us = int(reply[len(b"landed ") :])
    return {index: landed(change, reply, now_us) for index, change in call.changes}


def _answer(change: Change, reply: Reply, now_us: int, kinds: KindMemo) -> Answer | Again | StoreTooNew:
    if isinstance(reply, bytes):
        if isinstance(change, Claim):
            return claimed(change, reply, kinds)
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
    texts = [as_text(data) for data in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


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
