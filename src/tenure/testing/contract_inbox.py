"""The contract of the inbox: what is posted is kept, decided once, consumed once, and never slept over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from tenure.core import build
from tenure.core.run import Answer, Ask, Due, Item, Post, Request, Status, Verdict, Why
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, claim, signal, suspend, write

SHOWN = "d" * 64


def decide(value: Any = True, *, request: str = SHOWN, ask: Ask = Ask.DECIDE, item: str = "q1") -> Post:
    """Return a decision of request q1; its item id is the request's id."""
    return build.post(run="r1", item=item, name="q1", ask=ask, value=value, request=request)


class InboxContract(StoreCase):
    """Posts, suspensions and what consumes them: I7, I15, I26."""

    async def asked(self, store: Store, *, expires_ms: int | None = None) -> tuple[Any, Any]:
        """Begin r1 and open request q1; return the grant and the run."""
        grant, run = await self.begin(store)
        return grant, await self.lands(store, write(grant, run, requests=open_request(expires_ms)))

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.SUSPENDED])
    async def test_i15_a_post_is_kept_for_the_holder(self, store: Store, status: Status) -> None:
        await self.create(store)
        if status is not Status.QUEUED:
            grant, run = await self.claim(store)
            if status is Status.SUSPENDED:
                await self.lands(store, suspend(grant, run, "other"))
        before = await store.load("r1")
        assert before is not None
        change = signal(value={"text": "\x00 é \U0001f980"})
        after = await self.lands(store, change)
        assert after == replace(before, version=before.version + 1, inbox_seq=1, updated_ms=after.updated_ms)
        (item,) = await store.inbox("r1")
        assert item == Item(
            seq=1, id="i1", name="go", ask=Ask.SIGNAL, digest=change.digest, body=change.body, at_ms=after.updated_ms
        )

    async def test_i07_the_same_post_again_is_already_there(self, store: Store) -> None:
        await self.begin(store)
        await self.lands(store, signal(value=1))
        await self.stands(store, signal(value=1))
        answer = await self.refuses(store, signal(value=2), Why.CONFLICT)
        assert answer.item is not None
        assert (answer.item.id, answer.item.seq, answer.item.digest) == ("i1", 1, signal(value=1).digest)
        await self.lands(store, signal(value=2, item="i2"))
        assert [item.seq for item in await store.inbox("r1")] == [1, 2]
        assert [item.id for item in await store.inbox("r1", after=1)] == ["i2"]

    async def test_i15_what_is_wanted_wakes_a_suspended_run(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, suspend(grant, run, "go", "stop"))
        assert (run.wants, run.due_ms, run.status) == (("go", "stop"), None, Status.SUSPENDED)
        run = await self.lands(store, signal(name="other", item="i0"))
        assert run.status is Status.SUSPENDED
        run = await self.lands(store, signal(name="stop"))
        assert (run.status, run.due_ms, run.wants) == (Status.QUEUED, run.updated_ms, ())
        assert [hint.run for hint in await store.due(["k"])] == ["r1"]
        _, run = await self.claim(store)
        assert (run.attempt, run.crashes) == (1, 0)

    async def test_i15_a_name_is_wanted_as_a_whole(self, store: Store) -> None:
        grant, run = await self.begin(store)
        await self.lands(store, suspend(grant, run, 'go"on', "é.*%[a]", "again"))
        for number, name in enumerate(("go", "on", "é.*", "gain", "", '"', "go\\u0022on", "%[a]", ",")):
            run = await self.lands(store, signal(name=name, item=f"i{number}"))
            assert run.status is Status.SUSPENDED
        run = await self.lands(store, signal(name="é.*%[a]", item="last"))
        assert run.status is Status.QUEUED

    async def test_i15_the_first_decision_wins(self, store: Store) -> None:
        await self.asked(store)
        await self.lands(store, decide({"approved": True, "by": "ann"}))
        await self.stands(store, decide({"approved": True, "by": "ann"}))
        for other in ({"approved": True, "by": "bob"}, {"approved": False, "by": "ann"}):
            answer = await self.refuses(store, decide(other), Why.CONFLICT)
            assert answer.item is not None
            assert b"ann" in answer.item.body

    async def test_i15_a_decision_is_bound_to_what_was_shown_and_to_an_open_request(self, store: Store) -> None:
        grant, run = await self.begin(store)
        await self.refuses(store, decide(), Why.REQUEST_CLOSED)
        run = await self.lands(store, write(grant, run, requests=open_request()))
        await self.refuses(store, decide(request="e" * 64), Why.STALE)
        await self.refuses(store, decide(request=""), Why.STALE)
        await self.lands(store, decide())
        revocation = decide(ask=Ask.REVOKE, item="q1.revoked")
        await self.lands(store, revocation)
        found = await store.load("r1")
        assert found is not None
        run = await self.lands(store, write(grant, found, requests={}, consume=("q1", "q1.revoked"), inbox_seq=2))
        await self.refuses(store, decide(ask=Ask.REVOKE, item="again"), Why.REQUEST_CLOSED)
        await self.stands(store, revocation)

    async def test_i15_a_request_that_expired_by_the_store_s_clock_is_closed(self, store: Store) -> None:
        now_ms = (await store.facts()).now_ms
        await self.asked(store, expires_ms=now_ms + 600_000)
        await self.lands(store, decide())
        await self.create(store, "r2")
        grant, run = await self.claim(store, "r2")
        expires_ms = (await store.facts()).now_ms
        await self.lands(store, write(grant, run, requests=open_request(expires_ms)))
        late = build.post(run="r2", item="q1", name="q1", ask=Ask.DECIDE, value=True, request=SHOWN)
        await self.refuses(store, late, Why.REQUEST_CLOSED)

    async def test_i15_a_consumed_item_leaves_its_id_and_digest_behind(self, store: Store) -> None:
        grant, run = await self.asked(store)
        run = await self.lands(store, decide("yes"))
        change = write(grant, run, consume=("q1",), inbox_seq=1, requests={})
        run = await self.lands(store, change)
        (item,) = await store.inbox("r1")
        assert (item.id, item.name, item.ask, item.digest) == ("q1", "q1", Ask.DECIDE, decide("yes").digest)
        assert (item.consumed, item.body) == (True, b"")
        assert run.inbox_seq == 1
        await self.stands(store, decide("yes"))
        answer = await self.refuses(store, decide("no"), Why.CONFLICT)
        assert answer.item is not None
        assert answer.item.consumed
        await self.stands(store, change)
        await self.lands(store, write(grant, run, consume=("q1", "nothing")))

    async def test_i15_a_suspension_that_has_not_read_everything_is_refused(self, store: Store) -> None:
        grant, run = await self.begin(store)
        posted = await self.lands(store, signal())
        answer = await self.refuses(store, suspend(grant, run, "go", blobs=[b"x"]), Why.INBOX)
        assert answer.run is not None
        assert answer.run.inbox_seq == 1
        await self.refuses(store, write(grant, posted, inbox_seq=0, consume=("i1",)), Why.INBOX)
        await self.refuses(store, write(grant, posted, inbox_seq=2), Why.INBOX)
        await self.lands(store, suspend(grant, posted, "go"))

    async def test_i15_a_signal_that_races_with_a_suspension_is_never_slept_over(
        self, store: Store, other_store: Store
    ) -> None:
        outcomes = set()
        for number in range(24):
            name = f"r{number}"
            grant, run = await self.begin(store, name)
            answers: dict[str, Answer] = {}

            async def say(change: Any, at: Store, what: str, answers: dict[str, Answer] = answers) -> None:
                answers[what] = await at.commit(change)

            async with anyio.create_task_group() as tasks:
                # Who comes first is for the store's connections to say: each side has each of them in turn.
                handles = (store, other_store) if number % 4 < 2 else (other_store, store)
                both = [(suspend(grant, run, "go"), handles[0], "suspend"), (signal(name), handles[1], "post")]
                for args in both if number % 2 else reversed(both):
                    tasks.start_soon(say, *args)
            assert answers["post"].verdict is Verdict.LANDED
            after = await store.load(name)
            assert after is not None
            slept = answers["suspend"].verdict is Verdict.LANDED
            assert after.status is (Status.QUEUED if slept else Status.RUNNING)
            assert answers["suspend"].why is (None if slept else Why.INBOX)
            outcomes.add(slept)
        assert outcomes == {True, False}, "the race has to be seen from both sides"

    async def test_i15_eight_posts_at_once_each_have_their_place(self, store: Store, other_store: Store) -> None:
        await self.create(store)
        verdicts = []

        async def one(number: int) -> None:
            at = store if number % 2 else other_store
            verdicts.append((await at.commit(signal(item=f"i{number // 2}", value=number // 2))).verdict)

        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(one, number)
        assert sorted(verdicts) == [Verdict.ALREADY] * 8 + [Verdict.LANDED] * 8
        assert [item.seq for item in await store.inbox("r1")] == list(range(1, 9))
        found = await store.load("r1")
        assert found is not None
        assert found.inbox_seq == 8

    async def test_i15_a_suspension_ends_the_lease_in_the_same_commit(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, suspend(grant, run, "q1", requests=open_request(), due=Due(ms=600_000)))
        assert (run.status, run.owner, run.grants[-1].ended) == (Status.SUSPENDED, "", "suspended")
        assert run.lease_until_ms == run.updated_ms
        assert run.due_ms == run.updated_ms + 600_000
        await self.refuses(store, claim(), Why.SUSPENDED)
        run = await self.lands(store, decide())
        assert run.status is Status.QUEUED
        assert run.requests == open_request(), "a request is open until it is consumed"

    async def test_i15_nobody_is_told_anything_without_a_run(self, store: Store) -> None:
        await self.refuses(store, signal("nowhere"), Why.ABSENT)
        assert await store.inbox("nowhere") == []


def open_request(expires_ms: int | None = None) -> dict[str, Request]:
    """Return the open request q1."""
    return {"q1": Request(digest=SHOWN, expires_ms=expires_ms)}
