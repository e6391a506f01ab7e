"""What is held against one history: every decision, every effect, every answer and every journal, by invariant.

The judge knows the invariants and not the law: it looks at records before and after, and at what the processes saw.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from tenure.core import journal
from tenure.core.run import (
    LEADER_ID,
    Claim,
    Commit,
    Create,
    Delete,
    End,
    Reattach,
    Renew,
    Repair,
    Row,
    Run,
    Status,
    Verdict,
)
from tenure.core.verify import verify_run
from tenure.testing.linear import NEVER, Undecided, linearizable
from tenure.testing.register import START, op_of, step, told
from tenure.testing.sim.acts import STEPS
from tenure.testing.sim.notes import Played
from tenure.testing.sim.server import Decided

CLOSED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def judge(played: Played, /) -> list[str]:
    """Return what is wrong, each line with the invariant it breaks; empty if nothing is."""
    wrong = [f"broken off: {played.broken}"] if played.broken else []
    by_run: dict[str, list[Decided]] = defaultdict(list)
    for decided in played.decided:
        by_run[decided.change.run].append(decided)
    for run_id, found in by_run.items():
        wrong += [f"{run_id}: {line}" for decided in found for line in _of_decision(decided)]
        wrong += [f"{run_id}: {line}" for line in _of_tokens(played, found)]
        if run_id != LEADER_ID:
            wrong += [f"{run_id}: {line}" for line in _of_effects(played, run_id, found)]
            wrong += [f"{run_id}: {line}" for line in _of_answers(played, run_id, found)]
    for run_id, (run, rows) in played.ends.items():
        wrong += [f"{run_id}: {line}" for line in _of_end(played, run_id, run, rows)]
    return wrong


def _of_decision(decided: Decided) -> Iterator[str]:
    """I1, I4, I6, I13, I17: what one decision may do to a record."""
    before, after, change, facts = decided.before, decided.after, decided.change, decided.facts
    landed = decided.answer.verdict is Verdict.LANDED
    at = f"at {decided.at_s:.3f} s ({decided.process}, {type(change).__name__})"
    if not landed:
        if _still(before) != _still(after):
            yield f"I17 a request that did not land changed the record {at}"
        return
    if isinstance(change, Commit | Renew):
        grant = change.grant
        live = before is not None and before.status is Status.RUNNING and before.lease_until_ms > facts.now_ms
        if (
            before is None
            or not live
            or (before.token, before.nonce, before.epoch)
            != (
                grant.token,
                grant.nonce,
                facts.epoch,
            )
        ):
            yield f"I1 a write landed without a live grant of its own {at}"
        if isinstance(change, Commit) and before is not None:
            chain = journal.chain(
                change.run, before.last_seq + 1, grant.token, grant.mark, before.head, change.row.body
            )
            if change.row.digest != chain or after is None or after.head != chain:
                yield f"I6 a commit does not follow the one before {at}"
    if isinstance(change, Claim | Reattach) and after is not None and after.status is Status.RUNNING:
        held = before is not None and before.status is Status.RUNNING and before.lease_until_ms > facts.now_ms
        if isinstance(change, Claim) and held:
            yield f"I4 a claim landed over a live lease {at}"
        if before is not None and after.token <= before.token:
            yield f"I2 a grant did not raise the token {at}"
    if before is not None and before.status in CLOSED and not isinstance(change, Delete | Repair):
        yield f"I13 a run that had ended was changed {at}"


def _still(run: Run | None) -> Run | None:
    return replace(run, touch=0) if run is not None else None


def _of_tokens(played: Played, found: list[Decided]) -> Iterator[str]:
    """I2, I3, over all histories of the store: tokens rise, a nonce names one grant."""
    back = any(blow.what == "step" and blow.length < 0 for blow in played.fell)
    grants: dict[str, int] = {}
    last = 0
    for decided in found:
        after = decided.after
        if decided.answer.verdict is not Verdict.LANDED or not isinstance(decided.change, Claim | Reattach):
            continue
        if after is None or after.status is not Status.RUNNING:
            continue
        token, nonce = after.token, decided.change.nonce
        if nonce in grants and (grants[nonce], token) != (token, token) and decided.history == found[0].history:
            yield f"I3 a nonce names two grants at {decided.at_s:.3f} s"
        # By a clock that was set back a token is the one before and one more, which a lost grant was as well: then the
        # nonce tells the two apart, as it does everywhere.
        if token in grants.values() and (not back or grants.get(nonce) == token):
            yield f"I3 a token was granted twice at {decided.at_s:.3f} s"
        if token <= last and not back:
            yield f"I2 a token does not follow the one granted before at {decided.at_s:.3f} s"
        grants[nonce] = token
        last = max(last, token)


def _of_effects(played: Played, run_id: str, found: list[Decided]) -> Iterator[str]:
    """I5, I12, I14: who may call, and what is not called again."""
    claims: list[tuple[float, int, str]] = []
    # Which of the claims a process's token goes back to; by a clock that was set back two processes may have had it.
    held: dict[tuple[str, int], int] = {}
    for index, decided in enumerate(found):
        if not _made(decided) or decided.after is None or decided.after.status is not Status.RUNNING:
            continue
        process, token = decided.process, decided.after.token
        if isinstance(decided.change, Claim):
            held[process, token] = len(claims)
            claims.append((decided.at_s, index, process))
        elif isinstance(decided.change, Reattach) and (process, decided.change.grant.token) in held:
            held[process, token] = held[process, decided.change.grant.token]
    landed = _landed(played, run_id, found)
    forward = any(blow.what == "step" and blow.length > 0 for blow in played.fell)
    for effect in played.effects:
        if effect.run != run_id:
            continue
        name = effect.name
        at = bisect_right(claims, (effect.at_s, len(found), "")) - 1
        own = held.get((effect.process, effect.token))
        if own is None:
            yield f"I12 {effect.process} called {name} at {effect.at_s:.3f} s without ever having claimed the run"
            continue
        answer_s, token = landed.get(name, (NEVER, 0))
        # Who was let in after it may have answers that it does not see; whether it may call at all is I5.
        if effect.at_s > answer_s and (own == at or token == effect.token):
            yield f"I14 {name} was called at {effect.at_s:.3f} s, though its answer landed at {answer_s:.3f} s"
        if own < at and not forward:
            since, until = claims[own][1], claims[at][1]
            # Who was evicted or cancelled learns of it a little later; a promotion may have forgotten the grant.
            ended = any(isinstance(d.change, End) and _made(d) for d in found[since:until])
            if not ended and not any(claims[own][0] <= lost[1] <= effect.at_s for lost in played.lost_s):
                yield f"I5 {effect.process} called {name} at {effect.at_s:.3f} s, after {claims[at][2]} was let in"


def _landed(played: Played, run_id: str, found: list[Decided]) -> dict[str, tuple[float, int]]:
    """When the answer to each call landed that is in the journal, and by whose token."""
    rows_at = {d.change.row.digest: d.at_s for d in found if isinstance(d.change, Commit) and _made(d)}
    landed: dict[str, tuple[float, int]] = {}
    for row in played.ends.get(run_id, (None, []))[1]:
        for name in _names(row):
            landed.setdefault(name, (rows_at.get(row.digest, NEVER), row.token))
    return landed


def _made(decided: Decided) -> bool:
    return decided.answer.verdict is Verdict.LANDED


def _names(row: Row) -> Iterator[str]:
    for event in journal.events_of(row):
        if (event["type"] == journal.RECORD and "error" not in event) or event["type"] == "assistant/message":
            yield str(event["name"])


def _of_end(played: Played, run_id: str, run: Run | None, rows: list[Row]) -> Iterator[str]:
    """I6, I9, I11, I16, I22: how a run may end, and that it does."""
    wish = played.story.wishes[int(run_id[1:])]
    if run is None:
        made_s = [
            d.at_s for d in played.decided if d.change.run == run_id and isinstance(d.change, Create) and _made(d)
        ]
        if not made_s or not any(a <= made_s[-1] <= b for a, b in played.lost_s):
            yield f"I9 it is gone at the end ({played.ended_s:.0f} s), and no promotion lost it"
        return
    if run.status not in (*CLOSED, Status.QUARANTINED):
        yield f"I11 nobody ended it in {played.ended_s:.0f} s; it is {run.status.value}"
        return
    if not (verified := verify_run(run, rows)).ok:
        yield f"I16 its journal does not verify: {verified.failures}"
    if run.status is Status.COMPLETED and (want := _result(wish.kind, run_id)) != played.results.get(run_id, want):
        yield f"I14 its result is {played.results[run_id]!r}"
    if run.status is Status.CANCELLED and wish.then not in ("cancel", "grace"):
        yield "I13 it was cancelled, and nobody asked for that"
    if run.status is Status.FAILED and wish.kind != "fails":
        yield f"I14 it failed: {run.outcome}"
    blamed = [blow for blow in played.fell if blow.what in ("kill", "stop", "cut", "outage", "failover", "step")]
    road = played.story.road.lost or played.story.road.late
    if run.status is Status.QUARANTINED and len(blamed) < 3 and not road:
        yield f"I22 it was set aside after {len(blamed)} blows"


def _result(kind: str, run_id: str) -> object:
    if kind == "agent":
        return f"{run_id} done"
    return [f"{run_id}/s{n}" for n in range(STEPS)]


def _of_answers(played: Played, run_id: str, found: list[Decided]) -> Iterator[str]:
    """I9, I10: what was acknowledged is there, unless a promotion lost it; and the answers fit together (I1 to I7)."""
    asked = [one for one in played.asked if one.change.run == run_id]
    _, rows = played.ends.get(run_id, (None, []))
    there = {row.digest for row in rows}
    landed_at = {d.change.row.digest: d.at_s for d in found if isinstance(d.change, Commit) and _made(d)}
    for one in asked:
        if isinstance(one.change, Commit) and one.answer is not None and one.answer.ok:
            digest = one.change.row.digest
            at_s = landed_at.get(digest)
            if at_s is None:
                yield f"I9 a commit was acknowledged that never landed, at {one.told_s:.3f} s"
            elif digest not in there and not any(a <= at_s <= b for a, b in played.lost_s):
                yield f"I9 an acknowledged commit is not in the journal (landed at {at_s:.3f} s)"
    # A promotion takes answers back, and a doubled request is two: neither is one call at one instant.
    if not played.lost_s and not played.story.road.doubled:
        # Without an answer about now, too many of its calls may have happened at any time: the other lines judge it.
        with contextlib.suppress(Undecided):
            if not linearizable([op_of(one) for one in asked if told(one)], START, step):
                yield "I7 no order of its calls explains their answers"
