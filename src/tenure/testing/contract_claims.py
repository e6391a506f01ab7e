"""The contract of creations and claims: one run of an id, one live grant, tokens that rise, crashes that count."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import anyio
import pytest

from tenure.core import build
from tenure.core.run import Answer, Change, Due, GrantLine, How, Status, Verdict, Why
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, again, claim, end, grant_of, nonce, suspend, write

TERMINAL = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]


class ClaimContract(StoreCase):
    """Create and claim: I2, I3, I4, I7, I11, I12, I22."""

    async def test_i12_a_created_run_is_queued_and_due(self, store: Store) -> None:
        tags = {"t": "é \x85\u2028"}
        change = build.create(
            run="r1", kind="k", value={"a": [1, "\x00"]}, code_version="v1", priority=-3, tags=tags, parent="p"
        )
        change = again(change, blobs={"d" * 64: b"\x00input"})
        answer = await store.commit(change)
        assert answer.verdict is Verdict.LANDED
        run = await store.load("r1")
        assert run is not None
        assert run == answer.run
        now_ms = answer.now_us // 1000
        assert (run.status, run.version, run.attempt, run.crashes) == (Status.QUEUED, 1, 1, 0)
        assert (run.due_ms, run.created_ms, run.updated_ms) == (now_ms, now_ms, now_ms)
        assert (run.nonce, run.owner, run.lease_until_ms, run.grants) == ("", "", 0, ())
        assert (run.last_seq, run.base_seq, run.head) == (1, 1, change.row.digest if change.row else "")
        assert (run.code_version, run.priority, run.tags, run.parent) == ("v1", -3, tags, "p")
        assert run.input_digest == change.input_digest
        assert verify_run(run, await store.tail("r1")).ok
        assert await store.blob("r1", "d" * 64) == b"\x00input"
        assert [hint.run for hint in await store.due(["k"])] == ["r1"]

    async def test_i07_the_same_creation_again_shows_the_run_as_it_is(self, store: Store) -> None:
        change = build.create(run="r1", kind="k", value=1)
        await store.commit(change)
        answer = await self.stands(store, change)
        assert answer.run is not None
        grant, run = await self.claim(store)
        assert (await self.stands(store, again(change, tags={"other": "tag"}, priority=9))).run is not None
        run = await self.lands(store, write(grant, run, status=Status.COMPLETED))
        answer = await self.stands(store, change)
        assert answer.run == replace(run, touch=run.touch + 1)
        assert answer.run.tags == {}

    @pytest.mark.parametrize("other", [{"kind": "k", "value": 2}, {"kind": "k2", "value": 1}])
    async def test_i07_other_input_under_the_same_id_is_a_conflict(self, store: Store, other: dict[str, Any]) -> None:
        await self.create(store, value=1)
        change = again(build.create(run="r1", **other), blobs={"e" * 64: b"other"})
        await self.refuses(store, change, Why.CONFLICT)

    async def test_i12_a_run_may_be_due_later_or_not_at_all(self, store: Store) -> None:
        await self.create(store, "later", kind="later", due=Due(ms=600_000))
        await self.create(store, "never", kind="never", due=None)
        run = await store.load("later")
        assert run is not None
        assert run.due_ms == run.created_ms + 600_000
        assert await store.due(["later", "never"]) == []
        assert await store.next_due_ms(["later", "never"]) == run.due_ms
        await self.refuses(store, claim("later"), Why.NOT_DUE)
        await self.refuses(store, claim("never"), Why.NOT_DUE)

    @pytest.mark.parametrize("same", [True, False])
    async def test_i07_eight_submits_at_once_create_one_run(self, store: Store, other_store: Store, same: bool) -> None:
        changes = [build.create(run="r1", kind="k", value=1 if same else number) for number in range(8)]
        answers = await self.race(store, other_store, changes)
        rest = (Verdict.ALREADY, None) if same else (Verdict.REFUSED, Why.CONFLICT)
        assert sorted((a.verdict, a.why) for a in answers) == sorted([(Verdict.LANDED, None), *[rest] * 7])
        assert len(await store.tail("r1")) == 1

    async def test_i04_sixteen_claims_at_once_give_one_grant(self, store: Store, other_store: Store) -> None:
        await self.create(store)
        answers = await self.race(store, other_store, [claim(owner=f"w{n}") for n in range(16)])
        assert sorted((a.verdict, a.why) for a in answers) == [
            (Verdict.LANDED, None),
            *[(Verdict.REFUSED, Why.HELD)] * 15,
        ]
        run = await store.load("r1")
        assert run is not None
        assert (run.attempt, run.ordinal, run.version) == (1, 1, 2)

    async def test_i04_two_processes_claiming_at_once_give_one_grant(self, store: Store) -> None:
        url = self.ability("address")(store)
        for number in range(3):
            await self.create(store, f"r{number}")
        command = [sys.executable, "-m", "tenure.testing.racer", url, store.namespace, "8", "r0", "r1", "r2"]

        def both() -> list[dict[str, int]]:
            racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == b"ready\n"
            return [json.loads(racer.communicate(b"go\n", timeout=30)[0]) for racer in racers]

        first, second = await anyio.to_thread.run_sync(both)
        for number in range(3):
            run = await store.load(f"r{number}")
            assert run is not None
            assert first.get(run.id, 0) + second.get(run.id, 0) == 1
            assert (run.status, run.ordinal) == (Status.RUNNING, 1)

    async def test_i02_a_claim_gives_a_grant_by_the_store_s_clock(self, store: Store) -> None:
        created = await self.create(store)
        change = claim(owner="host-1/é", ttl_ms=7_000, code_version="v2", token=0)
        answer = await store.commit(change)
        assert (answer.verdict, answer.left_ms) == (Verdict.LANDED, 7_000)
        run, now_ms = await store.load("r1"), answer.now_us // 1000
        assert run is not None
        assert created.run is not None
        line = GrantLine(ordinal=1, token=run.token, owner="host-1/é", from_ms=now_ms)
        assert run == answer.run
        assert run == replace(
            created.run, status=Status.RUNNING, version=2, token=answer.now_us, nonce=change.nonce, owner="host-1/é",
            granted_ttl_ms=7_000, lease_until_ms=now_ms + 7_000, code_version="v2", updated_ms=now_ms, grants=(line,),
        )  # fmt: skip
        assert created.now_us <= run.token < 2**53
        assert await store.due(["k"]) == []

    async def test_i07_the_same_claim_again_gives_what_is_left_of_the_same_grant(self, store: Store) -> None:
        await self.create(store)
        change = claim(ttl_ms=60_000)
        first = await store.commit(change)
        await self.pass_ms(5)
        answer = await self.stands(store, change)
        assert answer.run is not None
        assert first.run is not None
        assert answer.run.token == first.run.token
        assert answer.left_ms == answer.run.lease_until_ms - answer.now_us // 1000 < 60_000

    async def test_i07_a_claim_whose_grant_is_dead_is_lost_and_not_granted_again(self, store: Store) -> None:
        await self.create(store)
        change = claim(ttl_ms=self.short_ms)
        await self.lands(store, change)
        await self.pass_ms(self.short_ms)
        assert (await self.refuses(store, change, Why.LOST)).left_ms == 0

    async def test_i03_a_late_claim_makes_no_grant_that_nobody_holds(self, store: Store) -> None:
        await self.create(store)
        late = claim(token=0)
        grant, _ = await self.claim(store)
        await self.refuses(store, late, Why.HELD)
        await self.lands(store, end(grant, How.YIELD))
        await self.refuses(store, late, Why.MOVED)

    async def test_i04_a_claim_of_a_held_run_is_told_who_and_how_long(self, store: Store) -> None:
        _, run = await self.begin(store, ttl_ms=60_000)
        answer = await self.refuses(store, claim(owner="w", ttl_ms=1), Why.HELD)
        assert answer.run is not None
        assert (answer.run.owner, answer.run.lease_until_ms, answer.left_ms) == ("w", run.lease_until_ms, 0)
        assert await store.next_due_ms(["k"]) == run.lease_until_ms, "found once, an early entry is put right"

    async def test_claims_are_refused_by_the_first_rule_that_they_break(self, store: Store) -> None:
        await self.refuses(store, claim("nowhere"), Why.ABSENT)
        await self.create(store, code_version="v1")
        await store.raise_ttl(120_000)
        wrong: dict[str, Any] = {"ttl_ms": 120_001, "token": 5, "kinds": ("k2",), "code_versions": ("v2",), "schema": 0}
        await self.refuses(store, claim(**wrong), Why.TTL)
        del wrong["ttl_ms"]
        await self.refuses(store, claim(**wrong), Why.MOVED)
        mistakes: list[dict[str, Any]] = [
            {"kinds": ("k2",)},
            {"code_versions": ("v2", "v3")},
            {"schema": 0},
            {"kinds": ()},
        ]
        for mistake in mistakes:
            await self.refuses(store, claim(**mistake), Why.DECLINED)
        await self.lands(store, claim(ttl_ms=120_000, kinds=("x", "k"), code_versions=("v1",), token=0))

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_i13_what_has_ended_is_not_claimed(self, store: Store, status: Status) -> None:
        grant, run = await self.begin(store)
        after = await self.lands(store, write(grant, run, status=status, due=Due(ms=0)))
        assert after.due_ms is None
        await self.refuses(store, claim(), Why.CLOSED)

    async def test_i12_a_suspended_run_is_claimed_when_it_is_due_and_not_before(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, suspend(grant, run, "go"))
        await self.refuses(store, claim(), Why.SUSPENDED)
        assert await store.next_due_ms(["k"]) is None
        grant, run = await self.begin(store, "r2", kind="k2")
        await self.lands(store, suspend(grant, run, "go", due=Due(ms=600_000)))
        await self.refuses(store, claim("r2"), Why.SUSPENDED)
        grant, run = await self.begin(store, "r3", kind="k3")
        await self.lands(store, suspend(grant, run, "go", due=Due(ms=self.short_ms)))
        await self.pass_ms(self.short_ms)
        assert [hint.run for hint in await store.due(["k", "k2", "k3"])] == ["r3"]
        _, claimed = await self.claim(store, "r3")
        assert (claimed.wants, claimed.attempt, claimed.crashes) == ((), 1, 0)

    async def test_i11_a_dead_owner_s_run_is_claimed_when_its_lease_has_run_out(self, store: Store) -> None:
        former, _ = await self.begin(store, ttl_ms=self.short_ms)
        await self.pass_ms(self.short_ms)
        (hint,) = await store.due(["k"])
        assert (hint.run, hint.token) == ("r1", former.token)
        grant, run = await self.claim(store, token=hint.token)
        assert (run.attempt, run.crashes, run.ordinal) == (2, 1, 2)
        assert grant.token > former.token
        assert (run.grants[0].ended, run.grants[0].until_ms) == ("expired", run.grants[0].from_ms + self.short_ms)

    async def test_i11_a_run_that_is_handed_back_is_claimed_at_once(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, write(grant, run, status=Status.QUEUED, failures=1))
        assert run.due_ms == run.updated_ms
        _, run = await self.claim(store)
        assert (run.attempt, run.crashes, run.failures) == (1, 0, 1)

    async def test_i22_the_third_takeover_quarantines_instead(self, store: Store) -> None:
        await self.create(store)
        token = 0
        for crashes in range(3):
            change = claim(ttl_ms=self.short_ms // 2)
            run = await self.lands(store, change)
            assert (run.status, run.crashes, run.attempt) == (Status.RUNNING, crashes, crashes + 1)
            await self.pass_ms(self.short_ms // 2)
            token = run.token
        last = claim()
        answer = await store.commit(last)
        aside = await store.load("r1")
        assert (answer.verdict, answer.left_ms, answer.run) == (Verdict.LANDED, 0, aside)
        assert aside is not None
        run = aside
        assert (run.status, run.crashes, run.attempt, run.nonce) == (Status.QUARANTINED, 3, 3, "")
        assert (run.owner, run.due_ms) == ("", None)
        assert run.token > token
        assert run.lease_until_ms <= answer.now_us // 1000
        assert await store.next_due_ms(["k"]) is None
        await self.refuses(store, last, Why.QUARANTINED)
        await self.refuses(store, claim(), Why.QUARANTINED)

    async def test_i22_only_a_takeover_with_blame_counts_and_a_step_clears_it(self, store: Store) -> None:
        short: dict[str, Any] = {"ttl_ms": self.short_ms // 2}
        await self.create(store)
        await self.lands(store, claim(**short))
        await self.pass_ms(self.short_ms // 2)
        run = await self.lands(store, claim(blame=False, alone=False, **short))
        assert (run.attempt, run.crashes) == (2, 0)
        await self.pass_ms(self.short_ms // 2)
        await self.refuses(store, claim(alone=False), Why.CROWDED)
        run = await self.lands(store, claim(max_crashes=1, blame=False, **short))
        await self.pass_ms(self.short_ms // 2)
        run = await self.lands(store, claim(max_crashes=0))
        assert (run.attempt, run.crashes) == (4, 1)
        run = await self.lands(store, write(grant_of(run), run))
        assert run.crashes == 1
        run = await self.lands(store, write(grant_of(run), run, step=1))
        assert run.crashes == 0

    async def test_i02_tokens_rise_through_everything_that_ends_a_grant(self, store: Store) -> None:
        grant, run = await self.begin(store)
        tokens, nonces = [grant.token], {grant.nonce}
        for how in (How.YIELD, How.FORFEIT, How.EVICT, How.QUARANTINE):
            run = await self.lands(store, end(grant, how))
            tokens.append(run.token)
            if how is How.QUARANTINE:
                run = await self.lands(store, end(grant, How.RELEASE, token=run.token))
                tokens.append(run.token)
            grant, run = await self.claim(store)
            tokens.append(grant.token)
            nonces.add(grant.nonce)
        run = await self.lands(store, end(grant, How.CANCEL))
        tokens.append(run.token)
        assert tokens == sorted(set(tokens))
        assert len(nonces) == 5

    async def race(self, store: Store, other_store: Store, changes: list[Any]) -> list[Answer]:
        """Commit all changes at once through two handles."""
        answers: list[Answer] = []

        async def one(at: Store, change: Change) -> None:
            answers.append(await at.commit(change))

        async with anyio.create_task_group() as tasks:
            for number, change in enumerate(changes):
                tasks.start_soon(one, other_store if number % 2 else store, change)
        return answers

    async def test_i03_a_nonce_is_granted_once(self, store: Store) -> None:
        await self.create(store)
        same = nonce()
        grant = grant_of(await self.lands(store, claim(nonce=same)))
        await self.lands(store, end(grant, How.YIELD))
        await self.claim(store)
        answer = await self.refuses(store, claim(nonce=same, token=grant.token), Why.HELD)
        assert answer.left_ms == 0
