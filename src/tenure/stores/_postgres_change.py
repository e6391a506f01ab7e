"""Changes as the JSON objects that the law reads, and the free texts that stand in it.

No text of PostgreSQL holds U+0000, which JSON writes as an escape. So names that people choose freely are stored as
JSON escapes them, which leaves most of them as they are, and are compared like that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
    Grant,
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

_QUOTE = json.JSONEncoder(ensure_ascii=False).encode
json_text = json.JSONEncoder(separators=(",", ":")).encode
"""Returns a value as JSON in ASCII, as the law reads it."""
_ASCII = json.encoder.encode_basestring_ascii
_PLAIN = (
    '{"do":"plain","id":%s,"token":%s,"nonce":%s,"epoch":%s,"ttl_ms":%s,"prev":%s,"step":%s,'
    '"row":{"seq":%s,"digest":%s,"mark":%s,"body":%s}}'
)


def escaped(text: str, /) -> str:
    """Return a text as JSON escapes it, without the quotes."""
    return _QUOTE(text)[1:-1]


def plain(text: str, /) -> str:
    """Return the text that `escaped` wrote."""
    found: str = json.loads(f'"{text}"')
    return found


def packed(change: Change, bodies: list[bytes], /) -> str:
    """Return a change as the object that the law reads; its payloads are added to `bodies` and named by place."""
    if isinstance(change, Commit) and change.is_plain:  # as nearly all are
        grant, row = change.grant, change.row
        held = (_ASCII(grant.run), grant.token, _ASCII(grant.nonce), _ASCII(grant.epoch), grant.ttl_ms)
        place = _place(row.body, bodies)
        wrote = (_ASCII(change.prev), change.step, row.seq, _ASCII(row.digest), _ASCII(row.grant), place)
        return _PLAIN % (*held, *wrote)
    return json_text(_object(change, bodies))


def _object(change: Change, bodies: list[bytes]) -> dict[str, Any]:
    match change:
        case Commit():
            return _commit(change, bodies)
        case Create():
            return _create(change, bodies)
        case Claim():
            return _claim(change)
        case Renew():
            return _grant(change.grant)
        case Reattach():
            told = {"seq": change.seq, "head": change.head, "flying": change.flying, "new_nonce": change.nonce}
            return {"do": "reattach", **_grant(change.grant), **told}
        case Post():
            return _post(change, bodies)
        case End():
            return _end(change)
        case Delete():
            return {"do": "delete", "id": change.run}
        case Repair():
            return {"do": "repair", "id": change.run, **({"stray": 1} if change.stray else {})}
        case Import():
            return _import(change, bodies)


def _grant(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.run,
        "token": grant.token,
        "nonce": grant.nonce,
        "epoch": grant.epoch,
        "ttl_ms": grant.ttl_ms,
    }


def _place(data: bytes, bodies: list[bytes]) -> int:
    bodies.append(data)
    return len(bodies)


def _row(row: Row, bodies: list[bytes]) -> dict[str, Any]:
    return {"seq": row.seq, "digest": row.digest, "mark": row.grant, "body": _place(row.body, bodies)}


def _blobs(blobs: Mapping[str, bytes], bodies: list[bytes]) -> dict[str, int]:
    return {digest: _place(data, bodies) for digest, data in blobs.items()}


def _when(due: Due | None) -> dict[str, int]:
    return {} if due is None else {"due_in" if due.relative else "due_at": due.ms}


def _tags(tags: Mapping[str, str]) -> str:
    return canonical.encode(dict(tags)).decode() if tags else ""


def _commit(change: Commit, bodies: list[bytes]) -> dict[str, Any]:
    found = _grant(change.grant)
    found.update(do="commit", prev=change.prev, step=change.step, row=_row(change.row, bodies))
    due = (change.due or NOW) if change.status is Status.QUEUED else change.due
    rest = {
        "status": change.status.value if change.status is not None else None,
        "base": 1 if change.base else None,
        "failures": change.failures,
        "consume": [escaped(item) for item in change.consume] or None,
        "inbox_seq": change.inbox_seq,
        "requests": None
        if change.requests is None
        else pack_requests({escaped(name): request for name, request in change.requests.items()}),
        "wants": None if change.wants is None else pack_names(tuple(map(escaped, change.wants))),
        "tags": None if change.tags is None else _tags(change.tags),
        "outcome": None if change.outcome is None else pack_outcome(change.outcome),
        "blobs": _blobs(change.blobs, bodies) or None,
    }
    due = None if change.status in rules.TERMINAL else due
    found.update({name: value for name, value in rest.items() if value is not None}, **_when(due))
    return found


def _create(change: Create, bodies: list[bytes]) -> dict[str, Any]:
    return {
        "do": "create",
        "id": change.run,
        "kind": change.kind,
        "schema": change.schema,
        "code_version": escaped(change.code_version),
        "parent": change.parent,
        "priority": change.priority,
        "tags": _tags(change.tags),
        "input_digest": change.input_digest,
        "blobs": _blobs(change.blobs, bodies),
        **({"row": _row(change.row, bodies)} if change.row is not None else {}),
        **_when(change.due),
    }


def _claim(change: Claim) -> dict[str, Any]:
    found: dict[str, Any] = {
        "do": "claim",
        "id": change.run,
        "nonce": change.nonce,
        "owner": escaped(change.owner),
        "ttl_ms": change.ttl_ms,
        "code_version": escaped(change.code_version),
        "schema": change.schema,
        "max_crashes": change.max_crashes,
    }
    if change.token is not None:
        found["token"] = change.token
    if change.kinds is not None:
        found["kinds"] = change.kinds
    if change.code_versions is not None:
        found["code_versions"] = [escaped(name) for name in change.code_versions]
    found.update({name: 1 for name in ("alone", "blame") if getattr(change, name)})
    return found


def _post(change: Post, bodies: list[bytes]) -> dict[str, Any]:
    return {
        "do": "post",
        "id": change.run,
        "item": escaped(change.item),
        "name": escaped(change.name),
        "ask": change.ask.value,
        "digest": change.digest,
        "request": change.request,
        "grace_ms": change.grace_ms,
        "body": _place(change.body, bodies),
    }


def _end(change: End) -> dict[str, Any]:
    ended = Outcome(code="cancelled", message=change.reason, by=change.by)
    return {
        "do": "end",
        "id": change.run,
        "how": change.how.value,
        "token": change.token,
        "nonce": change.nonce,
        "reason": _QUOTE(change.reason),
        "by": _QUOTE(change.by),
        "outcome": pack_outcome(ended) if change.how is How.CANCEL else "",
    }


def _import(change: Import, bodies: list[bytes]) -> dict[str, Any]:
    run = change.record
    record: dict[str, Any] = {**pack_run(run), "cancel_by_ms": run.cancel_by_ms, "due_ms": run.due_ms}
    record["requests"] = pack_requests({escaped(name): request for name, request in run.requests.items()})
    record["wants"] = pack_names(tuple(map(escaped, run.wants)))
    record["owner"], record["code_version"] = escaped(run.owner), escaped(run.code_version)
    return {
        "do": "import",
        "id": run.id,
        "record": record,
        "digest": change.digest,
        "salt": change.salt,
        "rows": [{**_row(row, bodies), "token": row.token, "at_ms": row.at_ms} for row in change.rows],
        "items": [
            {
                "seq": item.seq,
                "id": escaped(item.id),
                "name": escaped(item.name),
                "ask": item.ask.value,
                "digest": item.digest,
                "at_ms": item.at_ms,
                "consumed": item.consumed,
                "body": _place(b"" if item.consumed else item.body, bodies),
            }
            for item in change.items
        ],
        "blobs": _blobs(change.blobs, bodies),
    }
