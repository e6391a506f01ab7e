"""The aim of generated sequences: which change to try next on a run as it is known, and with which mistake."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tenure.carry import Whole, bring
from tenure.core import build, journal, rules
from tenure.core.run import (
    Ask,
    Change,
    Claim,
    Create,
    Delete,
    Due,
    End,
    Facts,
    Found,
    Grant,
    How,
    Outcome,
    Post,
    Reattach,
    Renew,
    Repair,
    Request,
    Row,
    Run,
    Status,
)
from tenure.errors import CorruptRecord

T = TypeVar("T")

WRONG = 0.22
AGAIN = 0.14
EAGER = 4
LONG_MS = 3_600_000
NAMES = ("go", "q1", 'é"\\\x00', "stop")
VALUES: tuple[Any, ...] = (None, 0, 2**53 + 1, 0.1, "x" * 300, "\x00\U0001f980", {"a": [1, {}]}, [])

# What is tried on a run of a status, with weights; what is wrong there is tried too.
VERBS: dict[Status | None, dict[str, int]] = {
    None: {
        "create": 16, "import": 6, "claim": 2, "commit": 1, "renew": 1, "post": 1, "end": 1, "delete": 2, "repair": 1,
    },
    Status.QUEUED: {
        "claim": 24, "post": 4, "end": 4, "create": 2, "commit": 2, "renew": 1, "delete": 1, "repair": 2, "import": 1,
    },
    Status.RUNNING: {
        "commit": 30, "renew": 6, "post": 7, "end": 9, "claim": 8, "reattach": 5, "repair": 6, "create": 1, "delete": 1,
    },
    Status.SUSPENDED: {
        "post": 14, "claim": 8, "end": 3, "renew": 2, "commit": 2, "reattach": 1, "delete": 1, "repair": 2, "import": 1,
    },
    Status.QUARANTINED: {"end": 14, "claim": 3, "post": 2, "commit": 1, "delete": 2, "repair": 1, "reattach": 1},
}  # fmt: skip
CLOSED = {
    "delete": 14, "create": 2, "claim": 2, "commit": 2, "renew": 1, "post": 2, "end": 3, "reattach": 1, "repair": 1,
    "import": 1,
}  # fmt: skip
HOWS: dict[Status, dict[How, int]] = {
    Status.RUNNING: {How.FORFEIT: 6, How.YIELD: 5, How.EVICT: 5, How.QUARANTINE: 3, How.CANCEL: 3, How.RELEASE: 1},
    Status.QUARANTINED: {How.RELEASE: 8, How.CANCEL: 2, How.EVICT: 1, How.YIELD: 1},
}
ANY_HOW = dict.fromkeys(How, 1)


@dataclass(slots=True, kw_only=True)
class Aim:
    """Draws the next change for one run; everything random comes from `random`."""

    random: random.Random
    run: str
    kind: str
    short_ms: int
    patient: bool = False
    turned: bool = False
    eager: Collection[str] = ()
    """Changes, and ends by how, that are drawn more often."""
    made: list[Change] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    whole: Whole | None = None
    """The run as it was at some time before, to be brought in when it is gone."""

    def change(self, run: Run | None, rows: Sequence[Row]) -> Change:
        """Return the next change to try: one sent before, or one made for the run as known."""
        if self.made and self.random.random() < AGAIN:
            return self.random.choice(self.made[-6:])
        verbs = dict(VERBS.get(run.status if run is not None else None, CLOSED))
        for name in {name.partition(" ")[0] for name in self.eager} & verbs.keys():
            verbs[name] *= EAGER
        if run is not None and run.requests:
            verbs["post"] *= 3
        if run is not None and run.lease_until_ms > run.updated_ms + run.granted_ttl_ms:
            verbs["repair"] *= 4
        if self.turned and run is not None and run.status is Status.RUNNING:
            self.turned = False
            verbs = {"reattach": 3, "commit": 1, "renew": 1}
        wrong = self.random.random() < WRONG
        match self._drawn(verbs):
            case "create":
                return self.create(wrong=wrong)
            case "claim":
                return self.claim(run, wrong=wrong)
            case "renew":
                return self._made(Renew(grant=self._grant(run, wrong=wrong)))
            case "commit":
                return self._commit(run, rows, wrong=wrong)
            case "reattach":
                return self._reattach(run, wrong=wrong)
            case "post":
                return self._post(run, wrong=wrong)
            case "end":
                return self._end(run, wrong=wrong)
            case "delete":
                return self._made(Delete(run=self.run))
            case "import":
                return self._import()
            case _:
                return self._made(Repair(run=self.run))

    def pause_ms(self, run: Run | None) -> int:
        """Return how long to let time pass before the next change; mostly not at all."""
        if self.random.random() > (0.2 if run is not None and run.granted_ttl_ms == self.short_ms else 0.04):
            return 0
        return self.random.choice([1, self.short_ms, *([1_000, 70_000] if self.patient else [])])

    def create(self, *, wrong: bool) -> Create:
        """Return a creation; a wrong one has other input than the usual."""
        due = self._drawn({Due(): 8, Due(ms=self.short_ms): 1, Due(ms=LONG_MS): 1 if self.patient else 0})
        change = build.create(
            run=self.run, kind=self.kind, value="other" if wrong else "input", due=None if self._chance(0.04) else due,
            code_version="v1", priority=self.random.choice([0, -1, 2**31]), tags={"a": "é"}, parent="p",
        )  # fmt: skip
        self._made(change)
        return change

    def claim(self, run: Run | None, *, wrong: bool) -> Claim:
        """Return a claim, mostly one that a worker would make of a hint."""
        change = Claim(
            run=self.run, nonce=self._nonce(), owner=self.random.choice(["w", "host-1/é"]), ttl_ms=self._ttl_ms(),
            token=run.token if run is not None and self._chance(0.7) else None,
            kinds=(self.kind, "other") if self._chance(0.5) else None,
            code_versions=("v1", "") if self._chance(0.5) else None,
            code_version=self.random.choice(["v1", ""]), blame=self._chance(0.8), alone=self._chance(0.7),
            max_crashes=self.random.choice([3, 3, 2, 0]),
        )  # fmt: skip
        if wrong:
            mistakes: list[dict[str, Any]] = [
                {"token": 7}, {"kinds": ("other",)}, {"code_versions": ("v0",)}, {"schema": 0}, {"kinds": ()},
            ]  # fmt: skip
            change = replace(change, **self.random.choice(mistakes))
        self._made(change)
        return change

    def _import(self) -> Change:
        whole = self.whole
        if whole is None:
            change = self.create(wrong=False)
            made = rules.applied(change, Found(), Facts(now_us=1_700_000_000_000_000))
            if made is None or change.row is None:
                return change
            whole = Whole(record=made, rows=[change.row])
        try:
            brought = bring(whole, salt=f"{self.random.getrandbits(64):016x}")
        except CorruptRecord:  # a drawn journal may say something else than its record; such a run is never sent
            return replace(self, whole=None)._import()  # noqa: SLF001 - itself, without it
        self.blobs += whole.blobs
        return self._made(brought)

    def _commit(self, run: Run | None, rows: Sequence[Row], *, wrong: bool) -> Change:
        grant = self._grant(run, wrong=wrong and self._chance(0.4))
        seq, prev, read = (run.last_seq + 1, run.head, run.inbox_seq) if run is not None else (1, "", 0)
        if wrong:
            seq, prev, read = self.random.choice(
                [(seq + 1, prev, read), (max(1, seq - 1), prev, read), (seq, "0" * 64, read), (seq, prev, read + 1)]
            )
            if self._chance(0.3) and len(rows) > 1:
                seq, prev = rows[-1].seq, rows[-2].digest  # another body for the number that has landed last
        more = self._effects(run)
        blobs = [bytes([n]) * self.random.choice([3, 70_000]) for n in range(self._drawn({0: 12, 1: 3, 2: 1}))]
        events = [
            journal.event(journal.CHECKPOINT, value=self.random.choice(VALUES))
            for _ in range(self._drawn({1: 4, 0: 1, 3: 2}))
        ]
        needs = more.get("status") is Status.SUSPENDED or "consume" in more or self._chance(0.1)
        change = build.commit(grant, seq, prev, events, inbox_seq=read if needs or wrong else None, blobs=blobs, **more)
        self.blobs += change.blobs
        return self._made(change)

    def _effects(self, run: Run | None) -> dict[str, Any]:
        more: dict[str, Any] = {"step": self._drawn({0: 5, 1: 4, 3: 1}), "base": self._chance(0.1)}
        status = self._drawn(
            {
                None: 20,
                Status.SUSPENDED: 6,
                Status.QUEUED: 3,
                Status.COMPLETED: 1,
                Status.FAILED: 1,
                Status.CANCELLED: 1,
            }
        )
        if status is not None:
            more["status"] = status
            due = self._drawn(
                {None: 2, Due(): 2, Due(ms=self.short_ms): 3, Due(ms=1_700_000_000_000, relative=False): 1}
            )
            more["due"] = due
        if status is Status.SUSPENDED or self._chance(0.1):
            more["wants"] = self.random.sample(NAMES, self.random.randrange(3))
        if self._chance(0.3):
            expiry = self.random.choice([None, 2**53 - 1, 2**53 - 1, 1_700_000_000_001])
            more["requests"] = {"q1": Request(digest="d1", expires_ms=expiry)} if self._chance(0.7) else {}
        if run is not None and run.inbox_seq and self._chance(0.4):
            more["consume"] = self.random.sample(["q1", "i0", "i1", "i2"], 2)
        if self._chance(0.15):
            more["tags"] = self.random.choice([{}, {"b": 'x"\x00'}])
        if self._chance(0.15):
            more["failures"] = self.random.randrange(3)
        if self._chance(0.15):
            more["outcome"] = Outcome(code="c", message="\x00 é", result="r", by="b")
        return more

    def _reattach(self, run: Run | None, *, wrong: bool) -> Change:
        seq, head = (run.last_seq, run.head) if run is not None else (1, "")
        change = Reattach(grant=self._grant(run, wrong=False), nonce=self._nonce(), seq=seq, head=head)
        if self._chance(0.3):
            change = replace(change, seq=seq - 1, head="0" * 64, flying=head)  # the commit in flight has landed
        if wrong:
            mistakes: list[dict[str, Any]] = [
                {"seq": seq + 1}, {"head": "1" * 64}, {"flying": "2" * 64, "seq": seq + 1},
                {"grant": self._grant(run, wrong=True)},
            ]  # fmt: skip
            change = replace(change, **self.random.choice(mistakes))
        return self._made(change)

    def _post(self, run: Run | None, *, wrong: bool) -> Change:
        wanted = [name for name in NAMES if run is not None and name in run.wants]
        shown = run.requests.get("q1") if run is not None else None
        ask = self._drawn({Ask.SIGNAL: 6, Ask.DECIDE: 4 if shown is None else 12, Ask.REVOKE: 1, Ask.CANCEL: 1})
        change: Post = build.post(
            run=self.run, item="q1" if ask is Ask.DECIDE else self.random.choice(["i0", "i1", "i2", "é\x00"]),
            name="q1" if ask in (Ask.DECIDE, Ask.REVOKE) else self.random.choice(wanted or NAMES), ask=ask,
            value=self.random.choice(VALUES[:2]),
            request=shown.digest if shown is not None and not wrong and self._chance(0.75) else "stale",
            grace_ms=self.random.choice([5_000, 9_000]) if ask is Ask.CANCEL else None,
        )  # fmt: skip
        return self._made(change)

    def _end(self, run: Run | None, *, wrong: bool) -> Change:
        hows = HOWS.get(run.status, ANY_HOW) if run is not None else ANY_HOW
        how = self._drawn({how: weight * (EAGER if f"end {how}" in self.eager else 1) for how, weight in hows.items()})
        grant = self._grant(run, wrong=wrong)
        reason = self.random.choice(["", "é"])
        return self._made(End(run=self.run, how=how, token=grant.token, nonce=grant.nonce, reason=reason, by="me"))

    def _grant(self, run: Run | None, *, wrong: bool) -> Grant:
        if run is None:
            return Grant(run=self.run, token=1, nonce="n", epoch="", ttl_ms=LONG_MS)
        grant = Grant(
            run=run.id, token=run.token, nonce=run.nonce, epoch=run.epoch, ttl_ms=run.granted_ttl_ms or LONG_MS
        )
        if run.nonce and (not self.grants or self.grants[-1].nonce != run.nonce):
            self.grants.append(grant)
        if self._chance(0.1):
            grant = replace(grant, ttl_ms=2 * LONG_MS)  # as if the clock had been set back: something to repair
        if not wrong:
            return grant
        former = self.grants[-2:-1] or [replace(grant, nonce="other")]
        return self.random.choice(
            [
                replace(grant, token=grant.token + 1), replace(grant, token=grant.token - 1),
                replace(grant, nonce=""), replace(grant, nonce="other"), replace(grant, epoch=grant.epoch + "x"),
                *former,
            ]
        )  # fmt: skip

    def _ttl_ms(self) -> int:
        return self._drawn({self.short_ms: 3, LONG_MS: 4})

    def _nonce(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _drawn(self, weights: dict[T, int]) -> T:
        (drawn,) = self.random.choices(list(weights), list(weights.values()))
        return drawn

    def _made(self, change: Change) -> Change:
        self.made.append(change)
        return change
