"""Cases of the law that generated sequences on real clocks do not come to."""

import pytest

from tenure.core import build, rules
from tenure.core.run import Ask, Change, Claim, Create, Facts, Found, Grant, How, Repair, Run, Status
from tenure.errors import NotAllowed

AHEAD = Facts(now_us=7_200_000_000)
BACK = Facts(now_us=3_600_000_000)


def after(change: Change, run: Run | None, facts: Facts) -> Run:
    answer = rules.decide(change, Found(run=run), facts)
    assert answer.ok, answer.why
    assert answer.run is not None
    return answer.run


def claim(nonce: str) -> Claim:
    return Claim(run="r1", nonce=nonce, owner="w", ttl_ms=30_000)


def held() -> tuple[Grant, Run]:
    create: Create = build.create(run="r1", kind="k", value=1)
    run = after(claim("a"), after(create, None, AHEAD), AHEAD)
    return Grant(run="r1", token=run.token, nonce="a", epoch="", ttl_ms=30_000), run


def test_i11_a_lease_that_was_ended_holds_nobody_up_when_the_store_clock_is_set_back() -> None:
    grant, run = held()
    suspend = build.commit(grant, 2, run.head, [], status=Status.SUSPENDED, wants=["go"], inbox_seq=0)
    run = after(suspend, run, AHEAD)
    run = after(build.post(run="r1", item="i1", name="go", ask=Ask.SIGNAL), run, BACK)
    assert after(claim("b"), run, BACK).nonce == "b"


@pytest.mark.parametrize(
    "leaves", [build.post(run="r1", item="i1", name="go", ask=Ask.SIGNAL), Repair(run="r1", stray="r1")]
)
def test_i11_what_leaves_a_run_to_wait_does_not_hide_that_it_was_due_when_the_clock_is_set_back(leaves: Change) -> None:
    queued = after(build.create(run="r1", kind="k", value=1), None, AHEAD)
    repaired = after(Repair(run="r1"), after(leaves, queued, BACK), BACK)
    assert after(claim("a"), repaired, BACK).nonce == "a"


@pytest.mark.parametrize("status", [Status.RUNNING, Status.QUARANTINED])
def test_a_commit_ends_a_lease_only_in_a_status_that_follows(status: Status) -> None:
    grant, run = held()
    with pytest.raises(NotAllowed, match="leave the status out"):
        build.commit(grant, 2, run.head, [], status=status)


@pytest.mark.parametrize("how", [How.EVICT, How.YIELD])
def test_i02_tokens_rise_whatever_the_clock_does(how: How) -> None:
    grant, run = held()
    ended = after(build.end(run="r1", how=how, token=grant.token, nonce=grant.nonce), run, BACK)
    assert ended.token == grant.token + 1
    assert after(claim("b"), ended, AHEAD).token > ended.token
