"""Generated sequences of changes, and the pure rules run beside a store to say what each should have been answered.

Blind sequences prove little: almost none lands a commit. These are aimed at the live grant and the next step, with a
share of deliberate mistakes and re-sent requests, and what lands is counted. Knows nothing of pytest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from tenure.carry import Whole
from tenure.core import rules
from tenure.core.run import (
    Answer,
    Change,
    Commit,
    Create,
    Delete,
    End,
    Facts,
    Found,
    Import,
    Item,
    Post,
    Renew,
    Repair,
    Row,
    Run,
    Verdict,
)
from tenure.store import Store
from tenure.testing.aim import Aim

CHANGES = ("create", "claim", "renew", "commit", "reattach", "post", "end", "delete", "repair", "import")


@dataclass(slots=True, kw_only=True)
class Model:
    """What a store should hold of one run, kept by the pure rules over plain values."""

    run: Run | None = None
    rows: list[Row] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    floor: int = 0

    def decide(self, change: Change, facts: Facts, *, due_ms: int | None = None) -> Answer:
        """Return what the rules answer, and take in what they do; `due_ms` is the index entry as found."""
        row = ""
        if isinstance(change, Commit) and 0 < change.row.seq <= len(self.rows):
            row = self.rows[change.row.seq - 1].digest
        item = self.items.get(change.item) if isinstance(change, Post) else None
        answer = rules.decide(change, Found(run=self.run, row=row, item=item, due=due_ms), facts)
        if answer.verdict is Verdict.LANDED:
            self._apply(change, answer)
        if answer.ok:
            self.run = answer.run
        return answer

    def _apply(self, change: Change, answer: Answer) -> None:
        now_ms = answer.now_us // 1000
        match change:
            case Delete() if self.run is not None:
                self.floor = max(self.floor, self.run.token)
                self.rows, self.items, self.blobs = [], {}, {}
            case Import() if answer.run is not None:
                self.rows, self.blobs = list(change.rows), dict(change.blobs)
                self.items = {item.id: item for item in change.items}
                self.floor = max(self.floor, answer.run.token)
            case Create() | Commit() if change.row is not None:
                self.rows.append(replace(change.row, at_ms=now_ms))
                self.blobs.update(change.blobs)
            case Post() if answer.run is not None:
                self.items[change.item] = Item(
                    seq=answer.run.inbox_seq, id=change.item, name=change.name, ask=change.ask,
                    digest=change.digest, body=change.body, at_ms=now_ms,
                )  # fmt: skip
            case _:
                pass
        for consumed in change.consume if isinstance(change, Commit) else ():
            if consumed in self.items:
                self.items[consumed] = replace(self.items[consumed], body=b"", consumed=True)

    def whole(self) -> Whole | None:
        """Return all that the store should hold of the run, None if there is none."""
        if self.run is None:
            return None
        items = sorted(self.items.values(), key=lambda item: item.seq)
        return Whole(record=self.run, rows=list(self.rows), items=items, blobs=dict(self.blobs))


@dataclass(slots=True, kw_only=True)
class Tally:
    """How often each change was answered how: `landed` is what a generator has to be judged by."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, change: Change, answer: Answer) -> None:
        """Count one answer under the change's name, and an end also under how it ends."""
        word = answer.why.value if answer.why is not None else answer.verdict.value
        self.answers[type(change).__name__.lower(), word] += 1
        if isinstance(change, End):
            self.answers[f"end {change.how.value}", word] += 1

    def landed(self, name: str) -> int:
        """Return how often a change of this name landed."""
        return self.answers[name, "landed"]

    def refusals(self) -> set[str]:
        """Return every reason that was met."""
        return {word for _, word in self.answers if word not in ("landed", "already")}


class Mismatch(AssertionError):
    """A store and the rules disagree; the message names the seed, the step and both words."""


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One generated sequence on one run of a store: `play` raises Mismatch at the first difference."""

    store: Store
    seed: str
    pass_ms: Callable[[int], Awaitable[None]]
    short_ms: int
    tally: Tally
    turn_history: Callable[[Store], Awaitable[None]] | None = None
    patient: bool = False
    eager: Collection[str] = ()
    stretched: bool = False
    sent: list[str] = field(default_factory=list)
    model: Model = field(default_factory=Model)

    async def play(self, *, steps: int, claimed: bool) -> None:
        """Play a sequence, from nothing or from a claimed run."""
        aim = Aim(
            random=random.Random(self.seed),  # noqa: S311 - a seed that can be told again, not a secret
            run=f"r.{self.seed}", kind=f"k.{self.seed}", short_ms=self.short_ms, patient=self.patient,
            eager=self.eager,
        )  # fmt: skip
        self.model.floor = (await self.store.facts()).floor
        if claimed:
            await self._step(aim, aim.create(wrong=False))
            await self._step(aim, aim.claim(self.model.run, wrong=False))
        for _ in range(steps):
            if (ms := aim.pause_ms(self.model.run)) > 0:
                self.sent.append(f"{ms} ms pass")
                await self.pass_ms(ms)
            if self.turn_history is not None and aim.random.random() < 0.02:
                self.sent.append("another history")
                await self.turn_history(self.store)
                aim.turned = True
            if aim.random.random() < 0.3:
                aim.whole = self.model.whole() or aim.whole
            await self._step(aim, aim.change(self.model.run, self.model.rows))
        await self._compare_contents(aim)

    async def _step(self, aim: Aim, change: Change) -> None:
        entry = await self.store.next_due_ms([aim.kind])
        facts = await self.store.facts()
        answer = await self.store.commit(change)
        self.tally.add(change, answer)
        expected = self.model.decide(change, replace(facts, now_us=answer.now_us, floor=self.model.floor), due_ms=entry)
        self.sent.append(f"{change} -> {answer.verdict} {answer.why or ''}")
        found = await self.store.load(change.run)
        shown = found if answer.run is None and answer.verdict is Verdict.LANDED else answer.run
        self._same("verdict", (answer.verdict, answer.why), (expected.verdict, expected.why))
        self._same("run in the answer", shown, expected.run)
        self._same("run in the store", found, self.model.run)
        self._same("left_ms", answer.left_ms, expected.left_ms)
        self._same("item", answer.item, expected.item)
        self._check_index(change, await self.store.next_due_ms([aim.kind]))

    def _check_index(self, change: Change, entry: int | None) -> None:
        latest = rules.due_index(self.model.run) if self.model.run is not None else None
        if isinstance(change, Renew | Commit) and latest is not None and self.model.run is not None:
            # A lease that a clock set back has stretched may have drawn its entry along; that is what repair is for.
            self.stretched |= change.grant.ttl_ms > self.model.run.granted_ttl_ms
        self.stretched &= not isinstance(change, Repair)
        late = (entry or 0) > (latest or 0) and not self.stretched
        if (entry is None) != (latest is None) or late:
            self._same("index entry (may be early, never late)", entry, latest)

    async def _compare_contents(self, aim: Aim) -> None:
        self._same("rows", await self.store.tail(aim.run, limit=1000), self.model.rows)
        items = sorted(self.model.items.values(), key=lambda item: item.seq)
        self._same("inbox", await self.store.inbox(aim.run), items)
        for digest in aim.blobs:
            self._same("blob", await self.store.blob(aim.run, digest), self.model.blobs.get(digest))
        self._same("floor", (await self.store.facts()).floor, self.model.floor)

    def _same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            tale = "\n  ".join(self.sent)
            message = f"seed {self.seed}, {what}:\n  store: {found}\n  rules: {expected}\nafter\n  {tale}"
            raise Mismatch(message)
