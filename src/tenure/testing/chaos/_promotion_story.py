"""One lossy promotion: what is written before it, who tries what after it, and what must not have come of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.core import build, journal
from tenure.core.run import Answer, Change, Claim, Commit, End, Grant, How, Reattach, Renew, Run, Status, Verdict, Why
from tenure.errors import OutcomeUnknown, StoreUnavailable, TenureError
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos._promotion_pair import Link
from tenure.testing.chaos._told import Told, gone, out_of_order, unsound

STORIES = ("forgotten", "shortened", "resurrected")
PATIENCE_S = 120.0
_RUN = "r1"


class Stalled(Exception):
    """A lease ran out while its holder did nothing wrong."""


@dataclass(slots=True, kw_only=True)
class Holder:
    """Who was granted the run once, and what it was told."""

    name: str
    grant: Grant
    run: Run
    trusts_until_s: float
    """On this machine's clock: until then it may believe that it holds the run."""
    lost: int = 0
    """How many of its acknowledged commits the promoted replica never saw."""
    forgotten: bool = False
    """Whether the promoted replica never saw its grant."""


@dataclass(slots=True, kw_only=True)
class Verdicts:
    """What was counted, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Story:
    """One seed's story on one kind of server."""

    name: str
    seed: int
    kind: str
    ask: str = ""
    """What is added to the URL of a store."""
    attempt: int = 1
    drawn: random.Random = field(init=False)
    how: str = field(init=False)
    ttl_ms: int = field(init=False)
    holders: list[Holder] = field(init=False, default_factory=list)
    landed: list[Told] = field(init=False, default_factory=list)
    counts: Counter[str] = field(init=False, default_factory=Counter)
    wrong: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Draw what the seed decides."""
        self.drawn = random.Random(f"{self.seed}:{self.name}:{self.kind}")
        self.how = self.drawn.choice(("kill", "freeze", "cut off"))
        self.ttl_ms = self.drawn.choice((800, 1_200, 1_600))

    @property
    def namespace(self) -> str:
        """Where it is played."""
        return f"p-{self.name}-{self.seed}-{self.attempt}"

    @asynccontextmanager
    async def store(self, url: str) -> AsyncIterator[Store]:
        """Open a store of the story."""
        async with open_store(f"{url}?timeout=30{self.ask}", namespace=self.namespace) as store:
            yield store

    async def begin(self, pair: Link) -> None:
        """Write what the replica has, cut the link, and write what it will never have."""
        async with self.store(pair.primary.url) as old:
            await old.raise_ttl(self.ttl_ms)
            await old.commit(build.create(run=_RUN, kind="k", value=self.seed))
            if self.name != "forgotten":
                await self._granted(old, "A")
                await self._write(old, self.holders[0], self.drawn.randrange(3))
            await pair.caught_up()
            await pair.cut()
            if self.name == "forgotten":
                await self._granted(old, "A")
            if self.name == "resurrected":
                holder = self.holders[0]
                await old.commit(End(run=_RUN, how=How.EVICT, token=holder.grant.token))
                await self._granted(old, "B")
            last = self.holders[-1]
            last.forgotten = self.name != "shortened"
            last.lost = self.drawn.randrange(0 if self.name == "forgotten" else 1, 4)
            await self._write(old, last, last.lost)
            self.counts["lost"] += last.lost

    async def _granted(self, store: Store, name: str) -> None:
        sent_s = time.monotonic()
        answer = await store.commit(Claim(run=_RUN, nonce=secrets.token_hex(16), owner=name, ttl_ms=self.ttl_ms))
        if answer.run is None or answer.verdict is not Verdict.LANDED:
            raise Stalled
        self.holders.append(Holder(name=name, grant=build.grant_of(answer.run), run=answer.run, trusts_until_s=0))
        self._trust(self.holders[-1], sent_s, answer)

    def _trust(self, holder: Holder, sent_s: float, answer: Answer) -> None:
        holder.trusts_until_s = max(holder.trusts_until_s, sent_s + answer.left_ms / 1000)

    async def _write(self, store: Store, holder: Holder, times: int) -> None:
        for _ in range(times):
            sent_s, change = time.monotonic(), step(holder)
            answer = await store.commit(change)
            if not answer.ok:
                raise Stalled
            told(holder, change)
            self._trust(holder, sent_s, answer)

    async def go_on(self, pair: Link) -> None:
        """Let everybody try what they can on the new primary until a stranger has ended the run."""
        with contextlib.suppress(TimeoutError):  # then the run was not ended, which is found when it is judged
            await self._all(pair)

    async def _all(self, pair: Link) -> None:
        async with AsyncExitStack() as opened, asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for holder in self.holders:
                store = await opened.enter_async_context(self.store(pair.replica.url))
                tasks.create_task(self._hold_on(store, holder, random.Random(self.drawn.getrandbits(64))))
            store = await opened.enter_async_context(self.store(pair.replica.url))
            tasks.create_task(self._take_over(store, random.Random(self.drawn.getrandbits(64))))

    async def _hold_on(self, store: Store, holder: Holder, drawn: random.Random) -> None:
        """Do what a holder does that knows of no promotion, or of one: write, renew, reattach; late, too."""
        for _ in range(drawn.randrange(3, 9)):
            await asyncio.sleep(drawn.uniform(0, self.ttl_ms / 2000))
            flying = step(holder)
            match drawn.choice(("commit", "renew", "reattach", "reattach")):
                case "commit":
                    await self._try(store, holder, flying)
                case "renew":
                    await self._try(store, holder, Renew(grant=holder.grant))
                case _:
                    nonce, run = secrets.token_hex(16), holder.run
                    change = Reattach(
                        grant=holder.grant, nonce=nonce, seq=run.last_seq, head=run.head, flying=flying.row.digest
                    )
                    await self._try(store, holder, change)

    async def _try(self, store: Store, holder: Holder, change: Change) -> None:
        sent_s, answer = time.monotonic(), await asked(store, change)
        if answer.verdict is Verdict.LANDED:
            self._went_on(holder, change, answer, sent_s)
        elif answer.verdict is not Verdict.ALREADY:
            self.counts["history lost"] += answer.why is Why.HISTORY_LOST
            self.counts["refused"] += isinstance(change, Commit)

    def _went_on(self, holder: Holder, change: Change, answer: Answer, sent_s: float) -> None:
        if holder.lost or holder.forgotten:
            hole = f"{holder.lost} lost commits" if holder.lost else "a grant that was lost"
            self.wrong.append(f"{holder.name} went on by {type(change).__name__} over {hole}")
        if isinstance(change, Reattach) and answer.run is not None:
            self.counts["reattached"] += 1
            holder.grant, holder.run = build.grant_of(answer.run), answer.run
            self._land(holder.name, holder.grant.token, sent_s)
        if isinstance(change, Commit):
            told(holder, change)
            self._land(holder.name, change.grant.token, sent_s, change)
        self._trust(holder, sent_s, answer)

    def _land(self, who: str, token: int, sent_s: float, commit: Commit | None = None) -> None:
        heard_s = time.monotonic()
        self.landed.append(Told(who=who, run=_RUN, sent_s=sent_s, heard_s=heard_s, token=token, commit=commit))

    async def _take_over(self, store: Store, drawn: random.Random) -> None:
        """Claim the run until it is granted, and end it; again, where the machine stood still too long."""
        while True:
            await asyncio.sleep(drawn.uniform(0, self.ttl_ms / 4000))
            nonce = secrets.token_hex(16)  # no blame: a run is not set aside because this machine is slow
            claim = Claim(run=_RUN, nonce=nonce, owner="C", ttl_ms=self.ttl_ms, blame=False)
            sent_s, answer = time.monotonic(), await asked(store, claim)
            self.counts["waited"] += answer.why is Why.GRACE
            if answer.ok and answer.run is not None:
                self._land("C", answer.run.token, sent_s)
                if await self._ended(store, answer.run, drawn):
                    return

    async def _ended(self, store: Store, run: Run, drawn: random.Random) -> bool:
        now_s = time.monotonic()
        self.counts["taken"] += 1
        for holder in self.holders:
            left_ms = (holder.trusts_until_s - now_s) * 1000
            if left_ms > 5:  # the width of the clocks' ticks: leases are counted in whole milliseconds
                self.wrong.append(f"C was let in while {holder.name} could trust its lease for {left_ms:.0f} ms more")
        await asyncio.sleep(drawn.uniform(0, self.ttl_ms / 3000))
        mine = Holder(name="C", grant=build.grant_of(run), run=run, trusts_until_s=now_s)
        for status in (None, Status.COMPLETED):
            change, sent_s = step(mine, status), time.monotonic()
            if not (await asked(store, change)).ok:
                return False
            told(mine, change)
            self._land("C", mine.grant.token, sent_s, change)
        return True


async def judge(story: Story, pair: Link) -> Verdicts:
    """Hold what everybody was told against what the new primary stores."""
    found = Verdicts(counts=story.counts, wrong=story.wrong)
    async with story.store(pair.replica.url) as store:
        run, rows = await store.load(_RUN), await store.tail(_RUN, limit=1000)
    if run is None or run.status is not Status.COMPLETED:
        found.wrong.append("the run was not ended by who took it over")
        return found
    grants, commits = [one for one in story.landed if not one.commit], [one for one in story.landed if one.commit]
    found.wrong += [*unsound(run, rows), *out_of_order(grants, commits), *gone(rows, commits)]
    lost, taken = [one.grant.token for one in story.holders], [one.token for one in story.landed if one.who == "C"]
    if lost and taken and max(lost) >= max(taken):
        found.wrong.append(f"the token {max(taken)} does not rise above {max(lost)}, which was lost")
    return found


async def begun(story: Story, pair: Link) -> Story:
    """Begin a story until it has begun as it should: again where this machine stood still for longer than a lease."""
    while True:
        try:
            await story.begin(pair)
        except Stalled:
            await pair.follow()
            attempt = story.attempt + 1
            story = replace(story, attempt=attempt)
            story.counts["stalled"] = attempt - 1
        else:
            return story


async def asked(store: Store, change: Change) -> Answer:
    """Return the answer to a change, asked until there is one; the same request each time."""
    while True:
        try:
            return await store.commit(change)
        except (StoreUnavailable, OutcomeUnknown):
            await asyncio.sleep(0.02)
        except TenureError as error:
            message = f"{type(change).__name__}: {error}"
            raise RuntimeError(message) from error


def step(holder: Holder, status: Status | None = None, **more: Any) -> Commit:
    """Return the holder's next commit."""
    run, value = holder.run, f"{holder.name} {holder.run.last_seq + 1}"
    events = [journal.event(journal.CHECKPOINT, value=value)]
    return build.commit(holder.grant, run.last_seq + 1, run.head, events, step=1, status=status, **more)


def told(holder: Holder, change: Commit) -> None:
    """Note that a commit was acknowledged."""
    holder.run = replace(holder.run, last_seq=change.row.seq, head=change.row.digest)
