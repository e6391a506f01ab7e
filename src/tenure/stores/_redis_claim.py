"""Claims as the script `claim` is asked and answers: the same terms once for all, a record as one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tenure.codec import unpack_grants, unpack_names, unpack_outcome, unpack_requests, unpack_tags
from tenure.core.run import Answer, Claim, Run, Status, Verdict
from tenure.errors import InvalidContent, InvalidId
from tenure.stores._redis_keys import Keys, KindMemo
from tenure.stores._redis_line import Part
from tenure.stores._redis_reader import as_text

_Terms: TypeAlias = tuple[str, int, tuple[str, ...] | None, tuple[str, ...] | None, str, int, bool, bool, int]
"""What a claim asks for apart from its run."""


_VALUES = (
    *("schema", "version", "attempt", "crashes", "failures", "granted_ttl_ms", "lease_until_ms", "step", "last_seq"),
    *("base_seq", "inbox_seq", "touch", "created_ms", "updated_ms", "due_ms", "token", "priority", "cancel_by_ms"),
    *("id", "kind", "code_version", "nonce", "epoch", "owner", "head", "parent", "input_digest", "status"),
    *("requests", "wants", "tags", "outcome", "grants"),
)
"""The values of a record in the order in which `claim.lua` reads and returns them."""

_NUMBERS = _VALUES.index("cancel_by_ms") + 1
_STATUSES = {status.value: status for status in Status}


def claims(changes: Sequence[Claim], keys: Keys, kinds_of: KindMemo, /) -> tuple[list[str], list[Part]]:
    """Return the keys and arguments of these claims, after those that every script has."""
    states = (Status.QUEUED, Status.RUNNING, Status.SUSPENDED, Status.QUARANTINED)
    named, asked = [keys.status(status) for status in states], list[Part]()
    # Who claims many runs at once asks for all of them on the same terms.
    terms: dict[_Terms, int] = {}
    for c in changes:
        kind = kinds_of[c.run] or (c.kinds[0] if c.kinds else "")
        named += (keys.run(c.run), keys.due(kind))
        codes = c.code_versions, c.code_version
        mine = (c.owner, c.ttl_ms, c.kinds, *codes, c.schema, c.alone, c.blame, c.max_crashes)
        number = terms.setdefault(mine, len(terms) + 1)
        asked += (c.run, kind, c.nonce, "" if c.token is None else c.token, number)
    args: list[Part] = [len(terms)]
    for owner, ttl_ms, kinds, code_versions, code_version, schema, alone, blame, max_crashes in terms:
        if "\0" in owner + code_version:  # the script returns a record as one text with a NUL between its values
            message = "an owner or a code version with U+0000 in it cannot be read back; leave it out of names"
            raise InvalidId(message)
        args += (owner, ttl_ms, _names(kinds), _names(code_versions), code_version, schema)
        args += (_flag(alone), _flag(blame), max_crashes)
    return named, [*args, *asked]


def claimed(change: Claim, reply: bytes, kinds: KindMemo) -> Answer:
    """Return the answer of a claim that landed: one text with the values of the record."""
    _, us, *values = as_text(reply).split("\0")
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
        fields: dict[str, Any] = dict(zip(_VALUES, (*numbers, *values[_NUMBERS:]), strict=True))
        fields["status"] = _STATUSES[fields["status"]]
        fields["requests"] = unpack_requests(fields["requests"])
        fields["wants"] = unpack_names(fields["wants"])
        fields["tags"] = unpack_tags(fields["tags"])
        fields["outcome"] = unpack_outcome(fields["outcome"])
        fields["grants"] = unpack_grants(fields["grants"])
        return Run.of(fields)
    except (KeyError, ValueError, TypeError, InvalidContent):
        return None


def _names(names: tuple[str, ...] | None) -> str:
    # Each name stands between line breaks, so that one search finds it; '' is any name, one break is none.
    return "" if names is None else "\n" + "".join(f"{name}\n" for name in names)


def _flag(value: object) -> str:
    return "1" if value else ""
