"""Values of the law and what stands for them in PostgreSQL: changes as JSON objects, lines of an answer as answers.

No text of PostgreSQL holds U+0000, which JSON writes as an escape. So names that people choose freely are stored as
JSON escapes them, which leaves most of them as they are, and are compared like that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tenure.codec import pack_names, pack_outcome, pack_requests, unpack_names, unpack_requests, unpack_run
from tenure.core import canonical, rules
from tenure.core.run import (
    NOW,
    SCHEMA,
    Answer,
    Ask,
    Change,
    Claim,
    Commit,
    Create,
    Delete,
    Due,
    End,
    Facts,
    Grant,
    How,
    Item,
    Outcome,
    Post,
    Reattach,
    Renew,
    Repair,
    Row,
    Run,
    Status,
    Verdict,
    Why,
)
from tenure.errors import CorruptRecord, InvalidContent

_QUOTE = json.JSONEncoder(ensure_ascii=False).encode


def escaped(text: str, /) -> str:
    """Return a text as JSON escapes it, without the quotes."""
    return _QUOTE(text)[1:-1]


def plain(text: str, /) -> str:
    """Return the text that `escaped` wrote."""
    found: str = json.loads(f'"{text}"')
    return found


# ------------------------------------------------------------------------------------------------ changes


def packed(change: Change, bodies: list[bytes], /) -> dict[str, Any]:
    """Return a change as the object that the law reads; its payloads are added to `bodies` and named by place."""
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
    found.update(do="plain", prev=change.prev, step=change.step, row=_row(change.row, bodies))
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
    if rest := {name: value for name, value in rest.items() if value is not None}:
        due = None if change.status in rules.TERMINAL else due
        found.update(rest, do="commit", **_when(due))
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


# ------------------------------------------------------------------------------------------------ answers


def answer_of(change: Change, line: str, /) -> Answer:
    """Return the answer that a line says; the run of a landed plain commit or renewal is the holder's to compute."""
    if line.startswith("landed "):
        ttl_ms = change.grant.ttl_ms if isinstance(change, Commit | Renew) else 0
        return Answer(verdict=Verdict.LANDED, now_us=int(line[7:]), left_ms=ttl_ms)
    found = json.loads(line)
    run, now_us = shown_run(found["run"]), found["us"]
    left_ms = max(0, run.lease_until_ms - now_us // 1000) if run is not None and _named(change, run) else 0
    item = found["item"]
    return Answer(
        verdict=Verdict(found["verdict"]),
        now_us=now_us,
        run=run,
        why=Why(found["why"]) if found["why"] else None,
        left_ms=left_ms,
        item=item_of(item, bytes.fromhex(item["body"][2:])) if item else None,
    )


def _named(change: Change, run: Run) -> bool:
    if run.status is not Status.RUNNING:
        return False
    if isinstance(change, Claim | Reattach):
        return run.nonce == change.nonce
    return isinstance(change, Renew | Commit) and rules.holds(run, change.grant)


def shown_run(record: Mapping[str, Any] | None, /) -> Run | None:
    """Return the record of an answer; None where there is none that this version can read."""
    if record is None:
        return None
    try:
        if record["schema"] > SCHEMA:
            # A newer record is refused to a reader by name; an answer shows what can be shown of it.
            return replace(run_of({**record, "schema": SCHEMA}), schema=record["schema"])
        return run_of(record)
    except CorruptRecord:
        return None


def texts_of(record: Mapping[str, Any], /) -> dict[str, str]:
    """Return the fields of a record as texts, as people see them."""
    hidden = ("number", "space", "entry_ms")
    return {name: "" if value is None else str(value) for name, value in record.items() if name not in hidden}


def run_of(record: Mapping[str, Any], /) -> Run:
    """Return the record of a row; CorruptRecord, StoreTooNew."""
    run = unpack_run({**texts_of(record), "requests": "", "wants": ""})
    if "\\" in run.owner or "\\" in run.code_version:
        run = replace(run, owner=plain(run.owner), code_version=plain(run.code_version))
    try:
        requests = {plain(name): request for name, request in unpack_requests(record["requests"]).items()}
        wants = tuple(plain(name) for name in unpack_names(record["wants"]))
    except (ValueError, TypeError, AttributeError, InvalidContent) as error:
        message = f"the requests of run {run.id} cannot be read ({type(error).__name__}); see `tenure show --raw`"
        raise CorruptRecord(message, run_id=run.id) from None
    return replace(run, requests=requests, wants=wants) if requests or wants else run


def item_of(record: Mapping[str, Any], body: bytes, /) -> Item:
    """Return the inbox item of a row; CorruptRecord."""
    try:
        return Item(
            seq=record["seq"],
            id=plain(record["id"]),
            name=plain(record["name"]),
            ask=Ask(record["ask"]),
            digest=record["digest"],
            body=body,
            at_ms=record["at_ms"],
            consumed=record["consumed"],
        )
    except (ValueError, TypeError) as error:
        message = f"an inbox item cannot be read ({type(error).__name__}); cancel the run or restore the store"
        raise CorruptRecord(message) from None


def row_of(row: Sequence[Any], /) -> Row:
    """Return the commit of a row of the journal."""
    seq, token, mark, digest, at_ms, body = row
    return Row(seq=seq, token=token, grant=mark, digest=digest, at_ms=at_ms, body=bytes(body))


def facts_of(record: Mapping[str, Any], /) -> Facts:
    """Return what the store says it knows."""
    return Facts(
        now_us=record["us"],
        epoch=record["epoch"],
        since_ms=record["since_ms"],
        lossy=record["lossy"],
        max_ttl_ms=record["max_ttl_ms"],
        floor=record["floor"],
    )
