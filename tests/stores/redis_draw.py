"""Changes drawn from a seed, sensible and not, and a reference that is told what the server knows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tenure.clock import ManualClock
from tenure.core import build, journal
from tenure.core.rules import TERMINAL
from tenure.core.run import (
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
    Outcome,
    Post,
    Reattach,
    Renew,
    Repair,
    Request,
    Run,
    Status,
)
from tenure.stores.memory import MemoryStore

RUNS = ("a", "b.1", "C-2", "_leader")
KINDS = ("mail", "report")
TAGS: tuple[dict[str, str], ...] = ({}, {"who": 'a "quoted" \\ tag'}, {"who": "ü\x7f/\U0001f600"})


class Told(MemoryStore):
    """The reference, with the facts of a server: so the same rules meet the same history."""

    said = Facts(now_us=0)

    def _facts(self, space: Any) -> Facts:
        return replace(self.said, floor=space.floor, max_ttl_ms=space.max_ttl_ms)


class Draw:
    """Draws changes, sensible and not, from what a run looks like."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.count = 0

    def nonce(self) -> str:
        self.count += 1
        return f"nonce-{self.count}"

    def grant(self, run: Run) -> Grant:
        grant = Grant(run=run.id, token=run.token, nonce=run.nonce, epoch=run.epoch, ttl_ms=run.granted_ttl_ms or 5_000)
        wrong = self.rng.random()
        if wrong < 0.05:
            return replace(grant, token=grant.token - 1)
        if wrong < 0.10:
            return replace(grant, nonce="stranger")
        return replace(grant, epoch="another.history") if wrong < 0.13 else grant

    def change(self, run_id: str, run: Run | None, items: list[str]) -> Change:
        if run is None:
            return self.rng.choice(
                (self.create(run_id), self.create(run_id), self.claim(run_id), Delete(run=run_id), self.lost(run_id))
            )
        known = run
        makers: list[Callable[[], Change]] = [
            *[lambda: self.claim(run_id, known)] * 3,
            *(lambda: self.end(known), lambda: self.end(known), lambda: self.post(known), lambda: self.post(known)),
            *(lambda: self.renew(known), lambda: self.reattach(known), lambda: self.repair(known)),
            lambda: self.create(run_id),
        ]
        if run.status is Status.RUNNING:
            makers += [*[lambda: self.commit(known, items)] * 10, *[lambda: self.renew(known)] * 3]
        if run.status in TERMINAL:
            makers += [lambda: Delete(run=run_id)] * 3
        return self.rng.choice(makers)()

    def lost(self, run_id: str) -> Change:
        grant = Grant(run=run_id, token=1, nonce="n", epoch="e", ttl_ms=5)
        changes: list[Change] = [
            Repair(run=run_id),
            End(run=run_id, how=How.CANCEL),
            build.post(run=run_id, item="i", name="n", ask=Ask.SIGNAL),
            Renew(grant=grant),
            Reattach(grant=grant, nonce="m", seq=0, head=""),
            build.commit(grant, 2, "h", []),
        ]
        return self.rng.choice(changes)

    def create(self, run_id: str) -> Create:
        if run_id.startswith("_"):
            return Create(run=run_id, kind=KINDS[0], input_digest="", row=None)
        big = "x" * 70_000 if self.rng.random() < 0.1 else ""
        made = build.create(
            run=run_id,
            kind=self.rng.choice(KINDS),
            value={"n": self.rng.choice((1, 1, 2)), "big": big},
            code_version=self.rng.choice(("", "v1")),
            due=self.rng.choice((Due(), Due(), Due(ms=2_000), Due(ms=self.clock.now_ms() + 5, relative=False), None)),
            priority=self.rng.choice((0, -3, 7)),
            tags=self.rng.choice(TAGS),
        )
        return replace(made, blobs={"d" * 64: b"blob"}) if self.rng.random() < 0.2 else made

    def claim(self, run_id: str, run: Run | None = None) -> Claim:
        rng = self.rng
        again = run is not None and run.nonce and rng.random() < 0.15
        return Claim(
            run=run_id,
            nonce=run.nonce if run is not None and again else self.nonce(),
            owner=rng.choice(("worker 1", 'w"\\2\u2028', "")),
            ttl_ms=rng.choice((1_000, 3_000, 3_000, 3_000, 3_000, 60_000)),
            token=rng.choice((None, None, None, run.token if run else 0, 5)),
            kinds=rng.choice((None, KINDS, KINDS, KINDS, KINDS[:1], ())),
            code_versions=rng.choice((None, None, ("", "v1", "v2"), ("v1",))),
            code_version=rng.choice(("", "v2")),
            schema=rng.choice((1, 1, 1, 1, 1, 0)),
            alone=rng.random() < 0.5,
            blame=rng.random() < 0.8,
            max_crashes=rng.choice((5, 2, 0)),
        )

    def renew(self, run: Run) -> Renew:
        return Renew(grant=self.grant(run))

    def end(self, run: Run) -> End:
        return End(
            run=run.id,
            how=self.rng.choice(list(How)),
            token=self.rng.choice((run.token, run.token, run.token - 1, *(line.token for line in run.grants[-2:]))),
            nonce=self.rng.choice((run.nonce, run.nonce, "stranger")),
            reason=self.rng.choice(("", "why\n\t\x01not")),
            by=self.rng.choice(("", "änne")),
        )

    def post(self, run: Run) -> Post:
        rng = self.rng
        return build.post(
            run=run.id,
            item=f"item {rng.randrange(6)}",
            name=rng.choice(("req", "req", "gone", "signal", "tick tock")),
            ask=rng.choice(list(Ask)),
            value={"v": rng.choice((1, 2))},
            request=rng.choice(("dig", "old")),
            grace_ms=rng.choice((None, 100, 9_000)),
        )

    def reattach(self, run: Run) -> Reattach:
        rng = self.rng
        flown = rng.random() < 0.3
        return Reattach(
            grant=self.grant(run) if rng.random() < 0.8 else replace(self.grant(run), token=run.token + 5),
            nonce=self.nonce() if rng.random() < 0.9 else run.nonce or "n",
            seq=run.last_seq - flown if rng.random() < 0.9 else run.last_seq + 3,
            head=run.head if not flown else "before",
            flying=run.head if flown else rng.choice(("", "never")),
        )

    def repair(self, run: Run) -> Repair:
        stray = self.rng.choice(("", "", f"{run.id} 12 0 {run.kind}"))
        return Repair(run=run.id, stray=stray)

    def commit(self, run: Run, items: list[str]) -> Commit:
        rng = self.rng
        status = rng.choice((*[None] * 8, Status.SUSPENDED, Status.QUEUED, Status.COMPLETED, Status.FAILED))
        suspended = status is Status.SUSPENDED
        seq, prev = run.last_seq + 1, run.head
        if rng.random() < 0.08:
            seq, prev = rng.choice(((max(seq - 1, 1), prev), (seq + 1, prev), (seq, "wrong")))
        text = rng.choice(("ü", "y" * 10, "z" * 70_000 if rng.random() < 0.2 else ""))
        return build.commit(
            self.grant(run),
            seq,
            prev,
            [journal.event("x", n=self.count, big=text)],
            status=status,
            step=rng.choice((0, 1, 2)),
            base=rng.random() < 0.2,
            failures=rng.choice((None, None, 2)),
            consume=rng.sample(items, min(len(items), rng.choice((0, 0, 1, 2)))) + rng.choice(([], [], ["absent"])),
            inbox_seq=run.inbox_seq if suspended else rng.choice((None, None, run.inbox_seq, 99)),
            requests=rng.choice(
                (
                    None,
                    None,
                    {},
                    {"req": Request(digest="dig", expires_ms=rng.choice((None, self.clock.now_ms() + 1_500)))},
                ),
            ),
            wants=("req", "signal") if suspended else rng.choice((None, None, ())),
            tags=rng.choice((None, None, *TAGS)),
            due=rng.choice((None, Due(), Due(ms=1_500), Due(ms=self.clock.now_ms() + 7, relative=False))),
            outcome=Outcome(code="c", message='m"\n', result="r")
            if status in (Status.COMPLETED, Status.FAILED)
            else None,
            blobs=rng.choice(((), (), (b"small",), (b"large" * 20_000, b"small"))),
        )


def again(rng: random.Random, made: list[Change]) -> Iterator[Change]:
    """Now and then one of the last changes, asked a second time."""
    if made and rng.random() < 0.15:
        yield rng.choice(made[-8:])
