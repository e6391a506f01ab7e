"""Many claims in one call: each on its own terms, each decided alone, however the scripts share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stores.redis_kit import claim, opened
from tenure.core import build
from tenure.core.run import Answer, Due, End, How, Run, Status, Verdict, Why
from tenure.errors import CorruptRecord, InvalidId
from tenure.stores._redis_line import pack


def _landed(answer: object) -> Run:
    assert isinstance(answer, Answer)
    assert answer.verdict is Verdict.LANDED
    assert answer.run is not None
    return answer.run


async def test_claims_of_one_call_keep_their_own_terms(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        names = [f"r{number:02d}" for number in range(45)]
        await store.commit_many(
            [
                build.create(run=name, kind="even" if at % 2 == 0 else "odd", value=at, tags={"at": f'"{at}"'})
                for at, name in enumerate(names)
            ]
        )
        changes = [
            replace(
                claim(name, ttl_ms=10_000 + at % 3),
                owner=f'own"er-{at % 2}',
                kinds=("even",) if at % 5 else None,
                code_version=f"v{at % 4}",
            )
            for at, name in enumerate(names)
        ]
        for at, answer in enumerate(await store.commit_many(changes)):
            if at % 2 and at % 5:
                assert isinstance(answer, Answer)
                assert (answer.verdict, answer.why) == (Verdict.REFUSED, Why.DECLINED)
                continue
            run, asked = _landed(answer), changes[at]
            assert (run.owner, run.nonce, run.code_version) == (asked.owner, asked.nonce, asked.code_version)
            assert run.lease_until_ms - run.updated_ms == run.granted_ttl_ms == asked.ttl_ms
            assert (run.grants[-1].owner, run.grants[-1].token, run.ordinal) == (asked.owner, run.token, 1)
            assert run == await store.load(run.id)


async def test_of_claims_of_the_same_run_in_one_call_one_lands(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        first, second = claim("r1"), claim("r1")
        answers = await store.commit_many([first, second, first])
        run = _landed(answers[0])
        assert [(a.verdict, a.why) for a in answers if isinstance(a, Answer)] == [
            (Verdict.LANDED, None),
            (Verdict.REFUSED, Why.HELD),
            (Verdict.ALREADY, None),
        ]
        assert await store.entries("k") == ([("r1", f"r1 {run.token} 0 k")], "")
        assert [found.id for found in (await store.find()).runs] == ["r1"]


async def test_a_run_that_was_held_before_is_taken_with_all_it_has(redis_url: str, namespace: str) -> None:
    async with opened(redis_url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1, due=Due(ms=0), priority=-3))
        run = _landed(await store.commit(claim("r1")))
        await store.commit(End(run="r1", how=How.YIELD, token=run.token, nonce=run.nonce, reason="later", by="me"))
        again = _landed(await store.commit(claim("r1")))
        assert (again.status, again.ordinal, again.priority, again.attempt) == (Status.RUNNING, 2, -3, 1)
        assert again.grants[0].reason == "later"
        assert again == await store.load("r1")


@pytest.mark.parametrize("name", ["owner", "code_version"])
async def test_a_name_that_could_not_be_read_back_takes_no_lease(redis8_url: str, namespace: str, name: str) -> None:
    """A record comes back as one text with a NUL between its values."""
    async with opened(redis8_url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1))
        with pytest.raises(InvalidId):
            await store.commit(replace(claim("r1"), **{name: "a\0b"}))  # type: ignore[arg-type]
        assert (await store.commit(claim("r1"))).verdict is Verdict.LANDED


@pytest.mark.parametrize("field", ["requests", "tags"])
@pytest.mark.parametrize("value", ["1", "[]", '"x"', "null"])
async def test_i26_a_record_that_cannot_be_read_costs_no_other_claim_of_its_call(
    redis8_url: str, namespace: str, field: str, value: str
) -> None:
    async with opened(redis8_url, namespace=namespace) as store:
        names = ["r1", "r2", "r3"]
        await store.commit_many([build.create(run=name, kind="k", value=1) for name in names])
        await store._opened().asked(pack("HSET", store._keys.run("r2"), field, value))
        first, broken, last = await store.commit_many([claim(name) for name in names])
        assert (_landed(first).id, _landed(last).id) == ("r1", "r3")
        assert isinstance(broken, Answer)
        assert broken.run is None
        with pytest.raises(CorruptRecord):
            await store.load("r2")
