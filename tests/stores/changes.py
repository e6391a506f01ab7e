"""Sequences of changes, aimed at what a run would accept next and a little beside it."""

import random
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

from tenure.core import build, journal
from tenure.core.run import (
    Answer,
    Ask,
    Change,
    Claim,
    Commit,
    Delete,
    Due,
    End,
    Grant,
    How,
    Outcome,
    Reattach,
    Renew,
    Repair,
    Request,
    Run,
    Status,
    Verdict,
)

KINDS = ("mail", "report")


def grant_of(run: Run) -> Grant:
    """The grant that a record names."""
    return Grant(run=run.id, token=run.token, nonce=run.nonce, epoch=run.epoch, ttl_ms=run.granted_ttl_ms or 1000)


def nonce() -> str:
    return uuid.uuid4().hex


def claim(run: str, **more: Any) -> Claim:
    """A claim that is admitted whenever the run is free and due."""
    return replace(Claim(run=run, nonce=nonce(), owner="w", ttl_ms=10_000), **more)


def step(run: Run, value: object = 1, **more: Any) -> Commit:
    """The commit of one step, under the grant that the record names."""
    event = journal.event(journal.CHECKPOINT, value=value)
    return build.commit(grant_of(run), run.last_seq + 1, run.head, [event], step=1, **more)


class Sequence:
    """Draws the next change; `see` tells it what became of the last one."""

    def __init__(self, seed: int, *, runs: int = 3) -> None:
        self.random = random.Random(seed)
        self.ids = [f"run-{n}" for n in range(runs)]
        self.known: dict[str, Run | None] = {}
        self.sent: list[Change] = []
        self.landed: Counter[str] = Counter()
        self.grants: dict[str, Grant] = {}
        self.posted = 0

    def see(self, change: Change, answer: Answer) -> None:
        self.known[change.run] = answer.run
        if answer.verdict is Verdict.LANDED:
            name = type(change).__name__
            self.landed[f"{name}.{change.how.value}" if isinstance(change, End) else name] += 1
            if isinstance(change, Claim | Reattach) and answer.run is not None and answer.run.nonce:
                self.grants[change.run] = grant_of(answer.run)

    def next(self) -> Change:
        draw = self.random
        if self.sent and draw.random() < 0.1:
            return draw.choice(self.sent[-8:])
        run_id = draw.choice(self.ids)
        run = self.known.get(run_id)
        change = self._new(run_id, run)
        self.sent.append(change)
        return change

    def _new(self, run_id: str, run: Run | None) -> Change:
        draw = self.random
        if run is None or draw.random() < 0.03:
            kind = draw.choice(KINDS)
            due = draw.choice([Due(), Due(), Due(ms=3_000), None])
            return build.create(run=run_id, kind=kind, value=draw.randrange(2), due=due, tags={"a": kind})
        grant = self.grants.get(run_id, grant_of(run))
        if draw.random() < 0.5:
            grant = grant_of(run)
        if draw.random() < 0.05:
            grant = replace(grant, **self._wrong(grant))
        pick = draw.random()
        if run.status is Status.RUNNING and pick < 0.6:
            return draw.choice((self._commit, self._commit, lambda run, grant: Renew(grant=grant)))(run, grant)
        return draw.choice((self._claim, self._claim, self._post, self._end, self._rare, self._rare))(run, grant)

    def _wrong(self, grant: Grant) -> dict[str, Any]:
        return self.random.choice([{"token": grant.token + 1}, {"nonce": nonce()}, {"epoch": "x.y"}])

    def _claim(self, run: Run, grant: Grant) -> Change:
        draw = self.random
        return claim(
            run.id,
            ttl_ms=draw.choice([500, 2_000, 2_000, 90_000]),
            token=draw.choice([None, None, run.token, run.token - 1]),
            kinds=draw.choice([None, KINDS, (KINDS[0],)]),
            alone=draw.random() < 0.7,
            blame=draw.random() < 0.7,
        )

    def _commit(self, run: Run, grant: Grant) -> Change:
        draw = self.random
        seq = run.last_seq + draw.choice([1, 1, 1, 1, 1, 0, 2])
        events = [journal.event(journal.CHECKPOINT, value="x" * draw.randrange(2000))]
        status = draw.choice([None] * 8 + [Status.SUSPENDED, Status.QUEUED, Status.COMPLETED, Status.FAILED])
        more: dict[str, Any] = {"status": status}
        if status is Status.SUSPENDED:
            more |= {"wants": ["s", "q"], "inbox_seq": run.inbox_seq - draw.choice([0, 0, 0, 1])}
            more |= {"requests": {"q": Request(digest="d", expires_ms=draw.choice([None, 10**15]))}}
            more |= {"due": draw.choice([None, Due(ms=1_000)])}
        if status in (Status.COMPLETED, Status.FAILED):
            more |= {"outcome": Outcome(code="c", message="\x00é"), "blobs": [b"result\x00"]}
        if draw.random() < 0.3:
            more |= {"consume": [f"item-{draw.randrange(1, self.posted + 2)}"], "tags": {"b": "1"}}
        return build.commit(
            grant,
            seq,
            draw.choice([run.head] * 9 + ["0" * 64]),
            events,
            step=draw.choice([0, 1, 1, 2]),
            base=draw.random() < 0.1,
            **more,
        )

    def _post(self, run: Run, grant: Grant) -> Change:
        draw = self.random
        self.posted += draw.random() < 0.8
        ask = draw.choice([Ask.SIGNAL, Ask.SIGNAL, Ask.DECIDE, Ask.REVOKE, Ask.CANCEL])
        return build.post(
            run=run.id,
            item=f"item-{self.posted}",
            name="q" if ask in (Ask.DECIDE, Ask.REVOKE) else "s",
            ask=ask,
            value={"text": "a\x00b"},
            request=draw.choice(["d", "d", "e"]),
            grace_ms=draw.choice([None, 500]),
        )

    def _end(self, run: Run, grant: Grant) -> Change:
        draw = self.random
        how = draw.choice([How.EVICT, How.FORFEIT, How.FORFEIT, How.YIELD, How.QUARANTINE, How.RELEASE, How.RELEASE])
        if draw.random() < 0.1:
            how = How.CANCEL
        token = draw.choice([run.token, run.token, run.token, run.token - 1])
        return End(run=run.id, how=how, token=token, nonce=run.nonce, reason="because", by=draw.choice(["", "me"]))

    def _rare(self, run: Run, grant: Grant) -> Change:
        draw = self.random
        if run.status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
            return Delete(run=run.id)
        if draw.random() < 0.3:
            return Repair(run=run.id, stray=draw.choice(["", "", "x"]))
        return Reattach(grant=grant, nonce=nonce(), seq=run.last_seq, head=run.head, flying=draw.choice(["", "f"]))
