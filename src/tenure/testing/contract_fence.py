"""The contract of commits and renewals: the fence in the write, the sequence, the same request again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from tenure.core import canonical, journal
from tenure.core.run import Answer, Change, Grant, How, Outcome, Renew, Request, Run, Status, Verdict, Why
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.contract_case import StoreCase, claim, end, grant_of, nonce, signal, suspend, write

WRONG_GRANTS = ["token after", "token before", "nonce", "no nonce", "epoch", "former grant"]
NEAR_2_53 = [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 15947634569000323, 0.1, 10**40]
TEXTS = ["NUL \x00 inside", "six characters \\u0000", "\U0001f980 é é \u202e ", '"quoted"\n\r\t\\', "$1 {} %s %.0f"]


class FenceContract(StoreCase):
    """Commit and renew: I1, I6, I7, I8, I17, I18, I26, I27."""

    async def test_i08_a_commit_lands_whole(self, store: Store) -> None:
        grant, run = await self.begin(store)
        requests = {"q": Request(digest="d", expires_ms=5)}
        change = write(
            grant, run, step=2, failures=2, requests=requests, wants=("q",),
            tags={"a": "é"}, outcome=Outcome(code="c", message="m", result="r", by="b"), blobs=[b"\x00\xff", b""],
        )  # fmt: skip
        await self.pass_ms(3)
        after = await self.lands(store, change)
        assert after.updated_ms > run.updated_ms
        (row,) = await store.tail("r1", after=1)
        assert (replace(row, at_ms=0), row.at_ms) == (change.row, after.updated_ms)
        assert after == replace(
            run, version=run.version + 1, last_seq=2, head=change.row.digest, step=2, failures=2,
            requests=requests, wants=("q",), tags={"a": "é"}, outcome=change.outcome,
            lease_until_ms=after.updated_ms + grant.ttl_ms, updated_ms=after.updated_ms,
        )  # fmt: skip
        for data in (b"\x00\xff", b""):
            assert await store.blob("r1", canonical.digest(data)) == data

    async def test_i08_a_commit_that_leaves_things_out_leaves_them_alone(self, store: Store) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(
            store, write(grant, run, failures=2, tags={"a": "b"}, requests={"q": Request(digest="d")})
        )
        after = await self.lands(store, write(grant, run))
        assert (after.failures, after.tags, after.requests, after.step) == (2, {"a": "b"}, run.requests, 0)
        cleared = await self.lands(store, write(grant, after, failures=0, tags={}, requests={}, wants=()))
        assert (cleared.failures, cleared.tags, cleared.requests, cleared.wants) == (0, {}, {}, ())

    @pytest.mark.parametrize("wrong", WRONG_GRANTS)
    @pytest.mark.parametrize("verb", ["commit", "renew"])
    async def test_i01_only_the_recorded_grant_writes(self, store: Store, verb: str, wrong: str) -> None:
        former, run = await self.begin(store)
        if wrong == "former grant":
            await self.lands(store, end(former, How.YIELD))
            _, run = await self.claim(store)  # by the same owner name
        grant = {
            "token after": replace(former, token=former.token + 1),
            "token before": replace(former, token=former.token - 1),
            "nonce": replace(former, nonce=nonce()),
            "no nonce": replace(former, nonce=""),
            "epoch": replace(former, epoch=former.epoch + "x"),
            "former grant": former,
        }[wrong]
        change = write(grant, run, blobs=[b"stale"]) if verb == "commit" else Renew(grant=grant)
        answer = await self.refuses(store, change, Why.LOST)
        assert answer.left_ms == 0
        await self.lands(store, write(grant_of(run), run))

    @pytest.mark.parametrize("verb", ["commit", "renew"])
    async def test_i01_an_expired_lease_is_dead_even_if_nobody_took_over(self, store: Store, verb: str) -> None:
        grant, run = await self.begin(store, ttl_ms=self.short_ms)
        await self.pass_ms(self.short_ms)
        change = write(grant, run, blobs=[b"late"]) if verb == "commit" else Renew(grant=grant)
        assert (await self.refuses(store, change, Why.EXPIRED)).left_ms == 0

    async def test_i01_a_lease_is_dead_in_the_very_millisecond_in_which_it_ends(self, store: Store) -> None:
        for attempt in range(50):
            grant, run = await self.begin(store, f"r{attempt}", ttl_ms=self.short_ms // 4)
            probe = write(grant, replace(run, last_seq=7))  # refused either way; the reason tells what was found
            if hasattr(self, "advance_ms"):
                await self.pass_ms(self.short_ms // 4 - 1)
                assert (await store.commit(probe)).why is Why.SEQUENCE
                await self.pass_ms(1)
            last = False
            while not last:
                answers = [a for a in await store.commit_many([probe] * 20) if isinstance(a, Answer)]
                assert len(answers) == 20
                for answer in answers:
                    alive = run.lease_until_ms > answer.now_us // 1000
                    assert answer.why is (Why.SEQUENCE if alive else Why.EXPIRED)
                last = answers[-1].why is Why.EXPIRED
                if any(answer.now_us // 1000 == run.lease_until_ms for answer in answers):
                    return
        pytest.fail("no probe ever fell into the millisecond in which a lease ends")

    async def test_i01_a_renewal_extends_the_lease_and_nothing_else(self, store: Store) -> None:
        grant, run = await self.begin(store, ttl_ms=5_000)
        before = await self.kept(store)
        answer = await store.commit(Renew(grant=replace(grant, ttl_ms=9_000)))
        assert (answer.verdict, answer.left_ms) == (Verdict.LANDED, 9_000)
        after = await self.kept(store)
        assert after.due_ms == before.due_ms, "renewals do not move the index"
        found = await store.load("r1")
        assert found == replace(run, lease_until_ms=answer.now_us // 1000 + 9_000)
        assert answer.run in (None, found)

    async def test_i01_the_same_renewal_twice_in_one_call_extends_the_lease_twice(self, store: Store) -> None:
        grant, run = await self.begin(store, ttl_ms=5_000)
        renewal = Renew(grant=replace(grant, ttl_ms=9_000))
        answers = [answer for answer in await store.commit_many([renewal, renewal]) if isinstance(answer, Answer)]
        assert [(answer.verdict, answer.why, answer.left_ms) for answer in answers] == [
            (Verdict.LANDED, None, 9_000)
        ] * 2
        found = await store.load("r1")
        assert found == replace(run, lease_until_ms=answers[1].now_us // 1000 + 9_000)

    @pytest.mark.parametrize(
        "status,why",
        [
            (Status.SUSPENDED, Why.SUSPENDED),
            (Status.QUEUED, Why.STATUS),
            (Status.COMPLETED, Why.CLOSED),
            (Status.FAILED, Why.CLOSED),
            (Status.CANCELLED, Why.CLOSED),
        ],
    )
    async def test_i01_nothing_is_written_after_the_commit_that_ended_the_lease(
        self, store: Store, status: Status, why: Why
    ) -> None:
        grant, run = await self.begin(store)
        after = await self.lands(store, suspend(grant, run, "go", status=status))
        assert (after.status, after.owner) == (status, "")
        assert after.lease_until_ms <= after.updated_ms
        await self.refuses(store, write(grant, after, blobs=[b"late"]), why)
        await self.refuses(store, Renew(grant=grant), why)

    async def test_i01_what_has_no_record_is_absent(self, store: Store) -> None:
        grant, run = Grant(run="r1", token=1, nonce=nonce(), epoch="", ttl_ms=1000), Run(id="r1", kind="k")
        await self.refuses(store, write(grant, run, blobs=[b"x"]), Why.ABSENT)
        await self.refuses(store, Renew(grant=grant), Why.ABSENT)
        assert await store.load("r1") is None

    @pytest.mark.parametrize("wrong", ["gap", "repeat", "zero", "prev", "no prev"])
    async def test_i06_only_the_next_commit_lands(self, store: Store, wrong: str) -> None:
        grant, run = await self.begin(store)
        run = await self.lands(store, write(grant, run, "first"))
        known = {
            "gap": replace(run, last_seq=run.last_seq + 1),
            "repeat": replace(run, last_seq=run.last_seq - 1),
            "zero": replace(run, last_seq=-1),
            "prev": replace(run, head="0" * 64),
            "no prev": replace(run, head=""),
        }[wrong]
        await self.refuses(store, write(grant, known, "other", blobs=[b"other"]), Why.SEQUENCE)

    async def test_i06_commits_are_numbered_without_gap_over_all_attempts(self, store: Store) -> None:
        _, run = await self.begin(store)
        for attempt in range(3):
            for value in range(4):
                run = await self.lands(store, write(grant_of(run), run, [attempt, value], step=1))
            await self.lands(store, end(grant_of(run), How.YIELD))
            _, run = await self.claim(store)
        rows = await store.tail("r1")
        assert [row.seq for row in rows] == list(range(1, 14))
        assert verify_run(run, rows).failures == ()
        assert journal.fold(rows).last == [2, 3]

    async def test_i06_eight_writers_of_one_grant_land_one_commit(self, store: Store, other_store: Store) -> None:
        grant, run = await self.begin(store)
        answers: list[Answer] = []

        async def one(number: int) -> None:
            at = store if number % 2 else other_store
            answers.append(await at.commit(write(grant, run, number)))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(one, number)
        assert sorted((a.verdict, a.why) for a in answers) == [
            (Verdict.LANDED, None),
            *[(Verdict.REFUSED, Why.SEQUENCE)] * 7,
        ]
        assert len(await store.tail("r1")) == 2

    async def test_i07_the_same_commit_again_is_already_there(self, store: Store) -> None:
        grant, run = await self.begin(store)
        change = write(grant, run, step=1, blobs=[b"once"])
        after = await self.lands(store, change)
        answer = await self.stands(store, change)
        assert answer.run == replace(after, touch=after.touch + 1)
        assert 0 < answer.left_ms <= grant.ttl_ms
        await self.lands(store, write(grant, after))
        await self.stands(store, change)

    async def test_i07_already_is_judged_before_liveness_and_whoever_holds_the_run(self, store: Store) -> None:
        grant, run = await self.begin(store)
        change = write(grant, run)
        await self.lands(store, change)
        await self.run_out(store, grant)
        assert (await self.stands(store, change)).left_ms == 0
        successor, run = await self.claim(store)
        answer = await self.stands(store, change)
        assert answer.left_ms == 0, "the lease is the successor's"
        found = await store.load("r1")
        assert found is not None
        await self.lands(store, write(successor, found, status=Status.COMPLETED))
        await self.stands(store, change)

    async def test_i07_a_commit_that_ended_the_lease_is_already_there_too(self, store: Store) -> None:
        grant, run = await self.begin(store)
        change = write(grant, run, status=Status.COMPLETED, outcome=Outcome(result="d"), blobs=[b"result"])
        await self.lands(store, change)
        assert (await self.stands(store, change)).left_ms == 0

    async def test_the_order_of_judgement_is_grant_status_liveness_sequence_inbox(self, store: Store) -> None:
        grant, run = await self.begin(store)
        await self.lands(store, signal())
        ahead, stale = replace(run, last_seq=9), replace(grant, nonce=nonce())
        await self.refuses(store, suspend(grant, ahead, "go"), Why.SEQUENCE)
        await self.refuses(store, suspend(grant, run, "go"), Why.INBOX)
        await self.run_out(store, grant)
        await self.refuses(store, suspend(grant, ahead, "go"), Why.EXPIRED)
        await self.refuses(store, suspend(stale, ahead, "go"), Why.LOST)
        grant, run = await self.claim(store)
        await self.lands(store, write(grant, run, status=Status.COMPLETED))
        await self.refuses(store, suspend(grant, ahead, "go"), Why.CLOSED)

    async def test_i08_each_of_many_changes_is_decided_alone(self, store: Store) -> None:
        held = {f"r{n}": await self.begin(store, f"r{n}") for n in range(6)}
        changes = [write(*held[run]) for run in ("r3", "r1", "r5")]
        stale = write(replace(held["r0"][0], token=1), held["r0"][1])
        asked: list[Change] = [changes[0], stale, claim("r2"), changes[1], claim("nowhere"), changes[2], changes[0]]
        answers = await store.commit_many(asked)
        assert all(isinstance(answer, Answer) for answer in answers)
        found: list[Any] = [(a.verdict, a.why) for a in answers if isinstance(a, Answer)]
        landed, lost = (Verdict.LANDED, None), (Verdict.REFUSED, Why.LOST)
        held_, absent = (Verdict.REFUSED, Why.HELD), (Verdict.REFUSED, Why.ABSENT)
        assert found == [landed, lost, held_, landed, absent, landed, (Verdict.ALREADY, None)]
        assert [len(await store.tail(run)) for run in held] == [1, 2, 1, 2, 1, 2]

    async def test_i18_a_takeover_through_another_handle_is_seen_at_once(
        self, store: Store, other_store: Store
    ) -> None:
        grant, run = await self.begin(store)
        await other_store.commit(end(grant, How.YIELD))
        await self.claim(other_store)
        await self.refuses(store, write(grant, run), Why.LOST)
        await self.refuses(store, Renew(grant=grant), Why.LOST)

    async def test_i26_content_comes_back_as_it_was_written(self, store: Store) -> None:
        _, run = await self.begin(store, value={"in": TEXTS})
        for value in (*NEAR_2_53, *TEXTS, {"lc": 1, "type": "constructor"}, [[], {}, None, True]):
            run = await self.lands(store, write(grant_of(run), run, value, step=1))
            (row,) = await store.tail("r1", after=run.last_seq - 1)
            assert journal.events_of(row)[0]["value"] == value
            assert journal.chain("r1", row.seq, row.token, row.grant, await self._head(store, row.seq), row.body) == (
                row.digest
            )
        assert journal.fold(await store.tail("r1", limit=1)).input == {"in": TEXTS}

    @pytest.mark.parametrize("size", [60_000, 70_000, 3_000_000])
    async def test_i26_large_content_comes_back_whole_and_stays(self, store: Store, size: int) -> None:
        grant, run = await self.begin(store)
        text, data = "x" * size, bytes(range(256)) * (size // 256)
        change = write(grant, run, text, blobs=[data])
        await self.lands(store, change)
        await self.stands(store, change)
        (row,) = await store.tail("r1", after=1)
        assert row.body == change.row.body
        assert await store.blob("r1", canonical.digest(data)) == data
        await self.refuses(store, write(replace(grant, token=5), run, text + "y", blobs=[data + b"y"]), Why.LOST)

    async def test_i27_what_a_step_writes_does_not_depend_on_how_long_the_run_is(self, store: Store) -> None:
        _, run = await self.begin(store)
        sizes = []
        for _ in range(60):
            run = await self.lands(store, write(grant_of(run), run, "y" * 200, step=1))
            (row,) = await store.tail("r1", after=run.last_seq - 1)
            raw = await store.raw("r1")
            sizes.append((len(row.body), sum(map(len, raw.values()))))
        assert {body for body, _ in sizes} == {sizes[0][0]}
        assert sizes[-1][1] - sizes[0][1] < 20, "only the digits of counters grow"
        assert sizes[-1][1] < 2048

    async def _head(self, store: Store, seq: int) -> str:
        (before,) = await store.tail("r1", after=seq - 2, limit=1)
        return before.digest
