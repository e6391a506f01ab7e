"""Builders of the changes that carry content: what is written, its digest and its key are settled here, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.core import canonical, ids, journal
from tenure.core.run import NOW, SCHEMA, Ask, Commit, Create, Due, End, Grant, How, Outcome, Post, Request, Run, Status
from tenure.errors import NotAllowed

_NOTHING = (None,) * 7


def grant_of(run: Run, /) -> Grant:
    """Return the grant that a record names."""
    return Grant(
        run=run.id, token=run.token, nonce=run.nonce, epoch=run.epoch, ttl_ms=run.granted_ttl_ms, owner=run.owner
    )


def create(
    *,
    run: str,
    kind: str,
    value: Any,
    code_version: str = "",
    due: Due | None = NOW,
    priority: int = 0,
    tags: Mapping[str, str] | None = None,
    parent: str = "",
    origin: str = "",
) -> Create:
    """Return the change that queues a run; its key is the id, the kind and the digest of the input. InvalidId.

    `parent` is the run that submitted it and takes it along when it is cancelled; `origin` is the run that it retries.
    """
    named = parent or origin
    canonical.whole(priority, "priority")
    code_version = ids.version(code_version)
    start = journal.event(journal.RUN_START, kind=kind, input=value, code_version=code_version, parent=named)
    return Create(
        run=run,
        kind=kind,
        input_digest=canonical.digest(canonical.encode(value)),
        row=journal.row(run, 1, "", journal.body([start], {}), None),
        code_version=code_version,
        due=_bounded(due),
        priority=priority,
        tags=dict(tags or {}),
        parent=parent,
    )


def fork(
    *,
    run: str,
    kind: str,
    value: Any,
    code_version: str,
    priority: int,
    tags: Mapping[str, str],
    fork: Mapping[str, Any],
    state: Mapping[str, Any],
    agent: Mapping[str, Any] | None,
    blobs: Mapping[str, bytes],
) -> Create:
    """Return the change that queues a run which begins with the state of another one, restated.

    `fork` names that run, its commit by seq and head, and the step. A worker that cannot read such a beginning would
    start at the input, so the record has the schema that tells it to leave the run alone.
    """
    restated: dict[str, Any] = {"state": dict(state), **({} if agent is None else {"agent": dict(agent)})}
    origin = str(fork["run"])
    start = journal.restatement(
        journal.RUN_START, kind=kind, input=value, code_version=code_version, parent=origin, fork=dict(fork), **restated
    )
    return Create(
        run=run,
        kind=kind,
        input_digest=journal.start_digest({"input": value, "fork": fork}),
        row=journal.row(run, 1, "", journal.body([start], {"blobs": sorted(blobs)} if blobs else {}), None),
        code_version=code_version,
        schema=SCHEMA,
        priority=priority,
        tags=dict(tags),
        blobs=dict(blobs),
    )


def commit(
    grant: Grant,
    seq: int,
    prev: str,
    events: Sequence[bytes],
    /,
    *,
    status: Status | None = None,
    step: int = 0,
    base: bool = False,
    failures: int | None = None,
    consume: Sequence[str] = (),
    inbox_seq: int | None = None,
    requests: Mapping[str, Request] | None = None,
    wants: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    due: Due | None = None,
    outcome: Outcome | None = None,
    blobs: Sequence[bytes] = (),
) -> Commit:
    """Return the change that appends commit `seq` after the one with digest `prev`; its key is (seq, digest).

    The effects stand in the body, so the digest covers what the commit did as well as what it said.
    """
    effects: dict[str, Any] = {"step": step} if step else {}
    others = (status, failures, requests, wants, tags, due, outcome)
    if others == _NOTHING and inbox_seq is None and not (base or consume or blobs):
        # Nearly every commit ends a step and does nothing else.
        row = journal.row(grant.run, seq, prev, journal.body(events, effects), grant)
        return Commit.plain(grant=grant, row=row, prev=prev, step=step)
    _check_status(grant.run, status, waits=inbox_seq is not None and wants is not None)
    named = {canonical.digest(data): data for data in blobs}
    effects |= _said(*others, base=base, consume=consume, blobs=named)
    return Commit(
        grant=grant,
        row=journal.row(grant.run, seq, prev, journal.body(events, effects), grant),
        prev=prev,
        status=status,
        step=step,
        base=base,
        failures=failures,
        consume=tuple(consume),
        inbox_seq=inbox_seq,
        requests=requests,
        wants=None if wants is None else tuple(wants),
        tags=tags,
        due=_bounded(due),
        outcome=outcome,
        blobs=named,
    )


def _said(  # noqa: PLR0917 - the order is that of its only caller
    status: Status | None,
    failures: int | None,
    requests: Mapping[str, Request] | None,
    wants: Sequence[str] | None,
    tags: Mapping[str, str] | None,
    due: Due | None,
    outcome: Outcome | None,
    *,
    base: bool,
    consume: Sequence[str],
    blobs: Iterable[str],
) -> dict[str, Any]:
    effects: dict[str, Any] = {
        "status": status.value if status is not None else None,
        "base": base or None,
        "failures": failures,
        "consume": list(consume) or None,
        "requests": None if requests is None else {k: [r.digest, r.expires_ms] for k, r in requests.items()},
        "wants": None if wants is None else list(wants),
        "tags": None if tags is None else dict(tags),
        "due": None if due is None else [due.ms, due.relative],
        "outcome": None if outcome is None else [outcome.code, outcome.message, outcome.result, outcome.by],
        "blobs": sorted(blobs) or None,
    }
    return {name: value for name, value in effects.items() if value is not None}


def _bounded(due: Due | None) -> Due | None:
    if due is not None:
        canonical.whole(due.ms, "a time in milliseconds")
    return due


def _check_status(run: str, status: Status | None, *, waits: bool) -> None:
    if status is Status.SUSPENDED and not waits:
        message = "a suspension names what it waits for and how much of the inbox it has read"
        raise NotAllowed(message, run_id=run)
    if status in (Status.RUNNING, Status.QUARANTINED):
        message = f"no commit makes a run {status}; leave the status out to go on, or set it aside with `quarantine`"
        raise NotAllowed(message, run_id=run)


def post(
    *,
    run: str,
    item: str,
    name: str,
    ask: Ask,
    value: Any = None,
    request: str = "",
    grace_ms: int | None = None,
) -> Post:
    """Return the change that puts an item into a run's inbox; its key is the item id with the digest of all it says."""
    ids.line(item, "item id")
    ids.line(name, "name")
    if grace_ms is not None:
        canonical.whole(grace_ms, "a time in milliseconds")
    body = canonical.encode(value, limit=canonical.MAX_EVENT_BYTES)
    # The holder takes the item into its journal as an event; one that it cannot take would stop the run for good.
    journal.consumed(item, name, ask.value, value)
    said = canonical.encode([ask.value, name, request, grace_ms]) + b"\n" + body
    return Post(
        run=run,
        item=item,
        name=name,
        ask=ask,
        digest=canonical.digest(said),
        body=body,
        request=request,
        grace_ms=grace_ms,
    )


def end(*, run: str, how: How, token: int = 0, nonce: str = "", reason: str = "", by: str = "") -> End:
    """Return the change that ends a run's grant from outside; its evidence is cut to what a record should carry."""
    return End(
        run=run, how=how, token=token, nonce=nonce, reason=canonical.plain(reason, 200), by=canonical.plain(by, 200)
    )
