"""Records as JSON values for machines: every field of the record but the nonce, which is the holder's alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tenure.core.journal import Finding as JournalFinding
from tenure.core.run import GrantLine, Item, Row, Run, Status
from tenure.core.verify import Verification
from tenure.store import Beat, Finding, Refused

_AS_THEY_ARE = (
    *("id", "kind", "schema", "code_version", "version", "attempt", "crashes", "failures", "token", "epoch", "owner"),
    *("granted_ttl_ms", "lease_until_ms", "step", "last_seq", "head", "base_seq", "inbox_seq", "parent"),
    *("cancel_by_ms", "due_ms", "priority", "input_digest", "created_ms", "updated_ms"),
)


def left_ms(run: Run, now_ms: int, /) -> int:
    """Return what is left of the run's lease at the store's now; 0 if nobody holds it."""
    return max(0, run.lease_until_ms - now_ms) if run.status is Status.RUNNING else 0


def run_value(run: Run, /, *, now_ms: int, served: frozenset[str] | None = None) -> dict[str, Any]:
    """Return the record; `served` (kinds of live workers) adds whether anybody serves its kind."""
    value: dict[str, Any] = {name: getattr(run, name) for name in _AS_THEY_ARE}
    value |= {
        "status": run.status.value,
        "grant": run.ordinal,
        "lease_left_ms": left_ms(run, now_ms),
        "requests": {name: asdict(request) for name, request in run.requests.items()},
        "wants": list(run.wants),
        "tags": dict(run.tags),
        "outcome": asdict(run.outcome) if run.outcome is not None else None,
    }
    if served is not None:
        value["served"] = run.kind in served
    return dict(sorted(value.items()))


def grant_value(line: GrantLine, /, *, open_calls: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return one line of the grant log, with the calls that were open when the grant ended."""
    return {**asdict(line), "open_calls": list(open_calls)}


def refused_value(line: Refused, /) -> dict[str, Any]:
    """Return one refused write."""
    return asdict(line)


def item_value(item: Item, /) -> dict[str, Any]:
    """Return one inbox item; its body as text."""
    return {
        "id": item.id,
        "seq": item.seq,
        "name": item.name,
        "ask": item.ask.value,
        "digest": item.digest,
        "at_ms": item.at_ms,
        "consumed": item.consumed,
        "body": readable(item.body),
    }


def event_value(row: Row, index: int, event: dict[str, Any], /) -> dict[str, Any]:
    """Return one event with its address and the commit that carried it."""
    return {"at": f"{row.seq}.{index}", "at_ms": row.at_ms, "token": row.token, "event": event}


def row_value(row: Row, /) -> dict[str, Any]:
    """Return one commit unread: its head, and its body as text with what is no UTF-8 as escapes."""
    return {
        "seq": row.seq,
        "token": row.token,
        "grant": row.grant,
        "digest": row.digest,
        "at_ms": row.at_ms,
        "bytes": len(row.body),
        "body": readable(row.body),
    }


def verification_value(found: Verification, /) -> dict[str, Any]:
    """Return the outcome of verifying one journal."""
    return {
        "run": found.run,
        "ok": found.ok,
        "failures": [_finding(one) for one in found.failures],
        "inconclusive": [_finding(one) for one in found.inconclusive],
        "stats": asdict(found.stats),
    }


def _finding(found: JournalFinding) -> dict[str, Any]:
    return {"code": found.code, "at": found.at, "detail": found.detail}


def beat_value(row: Beat, /) -> dict[str, Any]:
    """Return a worker's row."""
    return {**asdict(row), "kinds": list(row.kinds)}


def finding_value(finding: Finding, /) -> dict[str, Any]:
    """Return one finding of the doctor."""
    return {"name": finding.name, "level": finding.level.value, "text": finding.text, "fix": finding.fix}


def readable(data: bytes, /) -> str:
    """Return bytes as text, with what is no UTF-8 as escapes."""
    return data.decode(errors="backslashreplace")
