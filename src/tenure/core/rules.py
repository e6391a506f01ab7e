"""The law: what a change needs to be admitted, and what it does. Everything that decides about a run is in this file.

A change is judged against what the store holds (`Found`) and knows (`Facts`), and applied, in one atomic step. Memory
and SQLite call these functions in it; scripts of other stores restate them in the same order, and generated sequences
compare the two. `already` comes before everything else; then the grant, the history, the status, liveness, the chain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from tenure.core import grant_log, set_back
from tenure.core.run import (
    NOW,
    Answer,
    Ask,
    Change,
    Claim,
    Commit,
    Create,
    Delete,
    End,
    Facts,
    Found,
    Grant,
    How,
    Import,
    Outcome,
    Post,
    Reattach,
    Renew,
    Repair,
    Run,
    Status,
    Verdict,
    Why,
)

NEXT: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.CANCELLED}),
    Status.RUNNING: frozenset(
        {Status.SUSPENDED, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.QUEUED, Status.QUARANTINED},
    ),
    Status.SUSPENDED: frozenset({Status.QUEUED, Status.RUNNING, Status.CANCELLED}),
    Status.QUARANTINED: frozenset({Status.QUEUED, Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}
"""What may follow a status. The state diagram of the documentation is drawn from this table."""

TERMINAL = frozenset(status for status, after in NEXT.items() if not after)
OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.SUSPENDED})
BACK_OFF_MS = set_back.BACK_OFF_MS


def back_off_ms(times: int) -> int:
    """Return the wait before the next try, in milliseconds: 0, 1, 4, 16, at most 60 s."""
    return BACK_OFF_MS[min(times, len(BACK_OFF_MS) - 1)]


def later(token: int, facts: Facts) -> int:
    """Return a token after `token`: ordered over restarts and lossy failovers, because it follows the store's clock."""
    return max(token + 1, facts.now_us)


def holds(run: Run, grant: Grant) -> bool:
    """Return whether the record's grant is this one; a token alone is orderable, hence guessable."""
    return (run.token, run.nonce, run.epoch) == (grant.token, grant.nonce, grant.epoch)


def live(run: Run, facts: Facts) -> bool:
    """Return whether the run's lease has time left; an expired lease is dead even if nobody took over."""
    return run.lease_until_ms > facts.now_ms


def free(run: Run, facts: Facts) -> bool:
    """Return whether a stranger may take the lease: nobody holds it, it ran out, or it was granted in another boot."""
    # A lease that was ended may lie ahead of a store clock that was set back since; it is nobody's all the same.
    return not _running(run) or not live(run, facts) or (facts.boot != "" and not run.epoch.startswith(facts.boot))


def due_index(run: Run) -> int | None:
    """Return when the due index should name the run (milliseconds), None for not at all."""
    if run.id.startswith("_") or run.due_ms is None or run.status not in OPEN:
        return None
    return max(run.due_ms, run.lease_until_ms) if run.status is Status.RUNNING else run.due_ms


def decide(change: Change, found: Found, facts: Facts) -> Answer:
    """Return the answer to a change; the run in it is the run after it (None after a deletion), or as found."""
    if already(change, found, facts):
        run = replace(found.run, touch=found.run.touch + 1) if found.run is not None else None
        return _answer(Verdict.ALREADY, change, run, facts)
    why = refusal(change, found, facts)
    if why is None:
        return _answer(Verdict.LANDED, change, applied(change, found, facts), facts)
    verdict = Verdict.HISTORY if why is Why.HISTORY else Verdict.REFUSED
    return replace(_answer(verdict, change, found.run, facts), why=why, item=found.item)


def admits(change: Change, found: Found, facts: Facts) -> bool:
    """Return whether the change would land."""
    return not already(change, found, facts) and refusal(change, found, facts) is None


def already(change: Change, found: Found, facts: Facts) -> bool:
    """Return whether this very request has landed before, or what it asks for is so; judged before liveness."""
    run = found.run
    if isinstance(change, Delete):
        return run is None
    if run is None:
        return False
    match change:
        case Create():
            return (run.kind, run.input_digest) == (change.kind, change.input_digest)
        case Commit():
            return found.row == change.row.digest
        case Claim() | Reattach():
            return run.nonce == change.nonce and run.epoch == facts.epoch and live(run, facts) and _running(run)
        case Post():
            return found.item is not None and found.item.digest == change.digest
        case End():
            return _ended(change, run)
        case Import():
            return any(line.ended == grant_log.IMPORTED and line.reason == change.digest for line in run.grants)
        case Repair():
            out = set_back.out_of_reach(run, facts.now_ms)
            return not out and found.due == due_index(run) and not change.stray
        case Renew():
            return False
        case _:
            assert_never(change)


def refusal(change: Change, found: Found, facts: Facts) -> Why | None:
    """Return the first rule that the change breaks, None if it is admitted."""
    run = found.run
    if isinstance(change, Create | Import):
        return None if run is None else Why.CONFLICT
    if isinstance(change, Repair):
        return None
    if run is None:
        return Why.HISTORY_LOST if isinstance(change, Reattach) else Why.ABSENT
    match change:
        case Renew():
            return _foreign(run, change.grant, facts)
        case Commit():
            return _foreign(run, change.grant, facts) or _out_of_order(change, run)
        case Claim():
            return _unclaimable(change, run, facts)
        case Reattach():
            return _unattachable(change, run, facts)
        case Post():
            return _unpostable(change, found, run, facts)
        case End():
            return _unendable(change, run)
        case Delete():
            return None if run.status in TERMINAL else Why.STATUS
        case _:
            assert_never(change)


_STATUS_WHY = {Status.QUARANTINED: Why.QUARANTINED, Status.SUSPENDED: Why.SUSPENDED}


def _status_why(status: Status) -> Why:
    if status in TERMINAL:
        return Why.CLOSED
    return _STATUS_WHY.get(status, Why.STATUS)


def _running(run: Run) -> bool:
    return run.status is Status.RUNNING


def _foreign(run: Run, grant: Grant, facts: Facts) -> Why | None:
    if not holds(run, grant):
        return Why.LOST
    if run.epoch != facts.epoch:
        return Why.HISTORY
    if not _running(run):
        return _status_why(run.status)
    return None if live(run, facts) else Why.EXPIRED


def _out_of_order(change: Commit, run: Run) -> Why | None:
    if (change.row.seq - 1, change.prev) != (run.last_seq, run.head):
        return Why.SEQUENCE
    if change.inbox_seq is not None and change.inbox_seq != run.inbox_seq:
        return Why.INBOX
    return None


def _unclaimable(change: Claim, run: Run, facts: Facts) -> Why | None:
    if run.nonce == change.nonce:
        # The recorded grant is this claim's own, and `already` did not find it live in this history.
        return Why.HISTORY if live(run, facts) and run.epoch != facts.epoch else Why.LOST
    if facts.max_ttl_ms and change.ttl_ms > facts.max_ttl_ms:
        return Why.TTL
    if run.status not in OPEN:
        return _status_why(run.status)
    if not free(run, facts):
        return Why.HELD
    if run.due_ms is None or run.due_ms > facts.now_ms:
        return Why.SUSPENDED if run.status is Status.SUSPENDED else Why.NOT_DUE
    if change.token is not None and change.token != run.token:
        return Why.MOVED
    if run.epoch != facts.epoch and facts.lossy and facts.now_ms < facts.since_ms + facts.max_ttl_ms:
        return Why.GRACE
    known = change.kinds is None or run.kind in change.kinds
    versions = change.code_versions is None or run.code_version in change.code_versions
    if not known or not versions or run.schema > change.schema:
        return Why.DECLINED
    return Why.CROWDED if not change.alone and _crashes_after(change, run, facts) > 0 else None


def _crashes_after(change: Claim, run: Run, facts: Facts) -> int:
    # Who shared a process with a death is suspect until it lands a step, so the count *after* this takeover decides
    # whether the run needs a process of its own: otherwise one poisoned run could take its neighbours to the limit.
    blamed = _running(run) and change.blame and run.epoch == facts.epoch
    return run.crashes + blamed


def _unattachable(change: Reattach, run: Run, facts: Facts) -> Why | None:
    if not holds(run, change.grant):
        return Why.HISTORY_LOST if run.token < change.grant.token else Why.LOST
    if not _running(run):
        return _status_why(run.status)
    if not live(run, facts):
        return Why.EXPIRED
    told = (run.last_seq, run.head) == (change.seq, change.head)
    flown = change.flying != "" and (run.last_seq, run.head) == (change.seq + 1, change.flying)
    return None if told or flown else Why.HISTORY_LOST


def _unpostable(change: Post, found: Found, run: Run, facts: Facts) -> Why | None:
    if found.item is not None:
        return Why.CONFLICT
    if run.status not in OPEN:
        return _status_why(run.status)
    if change.ask not in (Ask.DECIDE, Ask.REVOKE):
        return None
    request = run.requests.get(change.name)
    if request is None or (request.expires_ms is not None and request.expires_ms <= facts.now_ms):
        return Why.REQUEST_CLOSED
    return None if request.digest == change.request else Why.STALE


_MAKES = {
    How.CANCEL: Status.CANCELLED,
    How.EVICT: Status.QUEUED,
    How.RELEASE: Status.QUEUED,
    How.QUARANTINE: Status.QUARANTINED,
}


def _ended(change: End, run: Run) -> bool:
    if (made := _MAKES.get(change.how)) is not None:
        return run.status is made
    return any(line.token == change.token and line.ended == change.how.value for line in run.grants)


def _unendable(change: End, run: Run) -> Why | None:
    if change.how is How.CANCEL:
        return None if Status.CANCELLED in NEXT[run.status] else Why.CLOSED
    wanted = Status.QUARANTINED if change.how is How.RELEASE else Status.RUNNING
    if change.how in (How.EVICT, How.RELEASE) and change.token != run.token:
        return Why.MOVED
    if run.status is not wanted:
        return _status_why(run.status)
    if change.how in (How.FORFEIT, How.YIELD, How.QUARANTINE) and (
        (change.token, change.nonce) != (run.token, run.nonce)
    ):
        return Why.LOST
    return None


def applied(change: Change, found: Found, facts: Facts) -> Run | None:
    """Return the run after an admitted change, None when it is gone."""
    if isinstance(change, Create):
        return _created(change, facts)
    if isinstance(change, Import):
        return _imported(change.record, change.digest, facts)
    if isinstance(change, Delete) or found.run is None:
        return None
    if isinstance(change, Renew):
        return replace(found.run, lease_until_ms=facts.now_ms + change.grant.ttl_ms)
    if isinstance(change, Commit):
        return committed(change, found.run, facts.now_ms)
    since_ms = found.run.updated_ms if isinstance(change, Post | Repair) else 0  # see `set_back.postponed`
    run = replace(found.run, version=found.run.version + 1, updated_ms=max(since_ms, facts.now_ms))
    match change:
        case Claim():
            return _claimed(change, run, facts)
        case Reattach():
            run = replace(run, grants=grant_log.closed(run, facts.now_ms, ended="reattached"))
            return _granted(run, change.nonce, run.owner, change.grant.ttl_ms, facts)
        case Post():
            return _posted(change, run, facts)
        case End():
            return _ended_run(change, run, facts)
        case Repair():
            return set_back.brought_near(run, found.run, facts.now_ms)
        case _:
            assert_never(change)


def _created(change: Create, facts: Facts) -> Run:
    return Run(
        id=change.run,
        kind=change.kind,
        schema=change.schema,
        code_version=change.code_version,
        token=facts.floor,
        epoch=facts.epoch,
        last_seq=change.row.seq if change.row is not None else 0,
        head=change.row.digest if change.row is not None else "",
        base_seq=change.row.seq if change.row is not None else 0,
        parent=change.parent,
        due_ms=change.due.at(facts.now_ms) if change.due is not None else None,
        priority=change.priority,
        tags=dict(change.tags),
        input_digest=change.input_digest,
        created_ms=facts.now_ms,
        updated_ms=facts.now_ms,
    )


def _imported(run: Run, digest: str, facts: Facts) -> Run:
    # Whoever held it where it comes from holds nothing here, and nobody died: the same attempt, no crash.
    token = later(max(run.token, facts.floor), facts)
    run = replace(run, version=run.version + 1, epoch=facts.epoch, granted_ttl_ms=0, lease_until_ms=facts.now_ms)
    if _running(run):
        run = replace(run, status=Status.QUEUED, due_ms=facts.now_ms, updated_ms=facts.now_ms)
    grants = grant_log.imported(run, token, facts.now_ms, digest)
    return _ungranted(replace(run, grants=grants), token, facts)


def _claimed(change: Claim, run: Run, facts: Facts) -> Run:
    crashes = _crashes_after(change, run, facts)
    run = replace(run, grants=grant_log.closed(run, facts.now_ms, ended="expired"), wants=())
    if crashes > run.crashes and change.max_crashes and crashes >= change.max_crashes:
        token = later(run.token, facts)
        return _ungranted(replace(run, status=Status.QUARANTINED, crashes=crashes, due_ms=None), token, facts)
    run = replace(
        run,
        status=Status.RUNNING,
        attempt=run.attempt + _running(run),
        crashes=crashes,
        code_version=change.code_version or run.code_version,
    )
    return _granted(run, change.nonce, change.owner, change.ttl_ms, facts)


def committed(change: Commit, run: Run, now_ms: int) -> Run:
    """Return the run after an admitted commit; its holder computes it too."""
    step = run.step + change.step
    lease: dict[str, Any] = {"lease_until_ms": now_ms + change.grant.ttl_ms}
    if change.status is not None:
        due = (change.due or NOW) if change.status is Status.QUEUED else change.due
        lease = {"status": change.status, "owner": "", "lease_until_ms": min(run.lease_until_ms, now_ms)}
        lease["due_ms"] = due.at(now_ms) if due is not None and change.status not in TERMINAL else None
        lease["grants"] = grant_log.closed(replace(run, step=step), now_ms, ended=change.status.value)
    return run.after(  # once: a run makes this change all the time
        last_seq=change.row.seq,
        head=change.row.digest,
        base_seq=change.row.seq if change.base else run.base_seq,
        version=run.version + 1,
        updated_ms=now_ms,
        step=step,
        crashes=0 if change.step else run.crashes,
        failures=run.failures if change.failures is None else change.failures,
        requests=run.requests if change.requests is None else dict(change.requests),
        wants=run.wants if change.wants is None else change.wants,
        tags=run.tags if change.tags is None else dict(change.tags),
        outcome=change.outcome or run.outcome,
        **lease,
    )


def _posted(change: Post, run: Run, facts: Facts) -> Run:
    run = replace(run, inbox_seq=run.inbox_seq + 1)
    if change.ask is Ask.CANCEL and change.grace_ms is not None:
        by_ms = facts.now_ms + change.grace_ms
        run = replace(run, cancel_by_ms=by_ms if run.cancel_by_ms is None else min(by_ms, run.cancel_by_ms))
    if run.status is Status.SUSPENDED and (change.ask is Ask.CANCEL or change.name in run.wants):
        run = replace(run, status=Status.QUEUED, due_ms=facts.now_ms, wants=())
    return run


def _ended_run(change: End, run: Run, facts: Facts) -> Run:
    now_ms = facts.now_ms
    # The reason of a cancellation is the run's outcome; all others are evidence about the grant.
    reason, by = ("", "") if change.how is How.CANCEL else (change.reason, change.by)
    run = replace(run, grants=grant_log.closed(run, facts.now_ms, ended=change.how.value, reason=reason, by=by))
    match change.how:
        case How.CANCEL:
            outcome = Outcome(code="cancelled", message=change.reason, by=change.by)
            run = replace(run, status=Status.CANCELLED, outcome=outcome, due_ms=None, wants=())
        case How.EVICT | How.YIELD:
            run = replace(run, status=Status.QUEUED, due_ms=now_ms)
        case How.FORFEIT:
            # It stays running: the next claim is a takeover and counts. Queued, a run that kills its worker each
            # time would be started for ever.
            run = replace(run, due_ms=now_ms + back_off_ms(run.crashes))
        case How.QUARANTINE:
            run = replace(run, status=Status.QUARANTINED, due_ms=None)
        case How.RELEASE:
            run = replace(run, status=Status.QUEUED, crashes=0, due_ms=now_ms)
        case _:
            assert_never(change.how)
    return _ungranted(run, later(run.token, facts), facts)


def _granted(run: Run, nonce: str, owner: str, ttl_ms: int, facts: Facts) -> Run:
    token = later(run.token, facts)
    return replace(
        run,
        token=token,
        nonce=nonce,
        epoch=facts.epoch,
        owner=owner,
        granted_ttl_ms=ttl_ms,
        lease_until_ms=facts.now_ms + ttl_ms,
        grants=grant_log.begun(run, token, owner, facts.now_ms),
    )


def _ungranted(run: Run, token: int, facts: Facts) -> Run:
    until = min(run.lease_until_ms, facts.now_ms)
    return replace(run, token=token, nonce="", owner="", lease_until_ms=until)


def _answer(verdict: Verdict, change: Change, run: Run | None, facts: Facts) -> Answer:
    left_ms = max(0, run.lease_until_ms - facts.now_ms) if run is not None and _named(change, run) else 0
    return Answer(verdict=verdict, now_us=facts.now_us, run=run, left_ms=left_ms)


def _named(change: Change, run: Run) -> bool:
    if isinstance(change, Claim | Reattach):
        return run.nonce == change.nonce and _running(run)
    return isinstance(change, Renew | Commit) and holds(run, change.grant) and _running(run)
