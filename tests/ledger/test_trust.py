"""What a worker believes of its lease: never more than the store can hold it to."""

from tenure.clock import ManualClock
from tenure.core.run import Grant
from tenure.trust import Trust, margin_ms


async def test_i05_an_answer_gives_no_more_trust_than_one_ttl() -> None:
    # A store clock set back stretches the lease until `repair` cuts it to now + ttl and lets somebody in after that.
    clock = ManualClock()
    grant = Grant(run="r", token=1, nonce="n", epoch="e", ttl_ms=10_000)
    most_ms = grant.ttl_ms - margin_ms(grant.ttl_ms)
    trust = Trust(grant, clock, sent_ns=clock.boot_ns(), left_ms=3_610_000, on_change=None)
    assert trust.remaining_ms == most_ms
    clock.advance(ms=1_000)
    trust.believe(clock.boot_ns(), 3_609_000)
    assert trust.remaining_ms == most_ms
    clock.advance(ms=most_ms)
    assert not trust.live
