"""How rows and the lines of an answer read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tenure.codec import unpack_names, unpack_requests, unpack_run
from tenure.core import rules
from tenure.core.run import (
    SCHEMA,
    Answer,
    Ask,
    Change,
    Claim,
    Commit,
    Facts,
    Item,
    Reattach,
    Renew,
    Row,
    Run,
    Status,
    Verdict,
    Why,
)
from tenure.errors import CorruptRecord, InvalidContent
from tenure.stores._postgres_change import plain


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
