"""Requests and decisions as values: how they are named, what binds them, and what an inbox says about them."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.core import approvals, build, canonical
from tenure.core.approvals import Asked, Decision, Standing, about, content_digest, read, request_id
from tenure.core.run import Ask, Item, Request
from tenure.errors import InvalidContent

SHOWN = Request(digest="d" * 64, expires_ms=1000)


def item(ask: Ask, value: Any, *, name: str = "ask:pay") -> Item:
    post = build.post(run="r1", item=name, name=name, ask=ask, value=value)
    return Item(seq=1, id=name, name=name, ask=ask, digest=post.digest, body=post.body, at_ms=1)


def test_m_ap09_ids_are_made_of_what_is_asked_and_a_key_cannot_pass_for_a_number() -> None:
    assert [request_id("ask", "pay", n) for n in (1, 2, 10)] == ["ask:pay", "ask#2:pay", "ask#10:pay"]
    assert {about(request_id("ask", "pay", n)) for n in (1, 2, 10)} == {("ask", "pay")}
    assert about(request_id("ask", "pay#2", 1)) == ("ask", "pay#2")
    assert about(request_id("approve", "a:b/c", 3)) == ("approve", "a:b/c")
    asked = Asked()
    assert (asked.latest("ask", "pay"), asked.following("ask", "pay")) == ("", "ask:pay")
    for request in ("ask:pay", "ask:pay", "ask:pay#2", "ask#2:pay"):
        asked.add({"request": request})
    assert (asked.latest("ask", "pay"), asked.following("ask", "pay")) == ("ask#2:pay", "ask#3:pay")
    assert Asked.from_json(asked.to_json()) == asked


def test_m_ap09_the_digest_covers_the_content_whatever_the_order_of_its_keys() -> None:
    assert content_digest({"a": 1, "b": [1, 2]}) == content_digest({"b": [1, 2], "a": 1})
    assert content_digest({"a": 1}) != content_digest({"a": 1.5})
    assert content_digest({"a": 1}) == canonical.digest(b'{"a":1}')


@pytest.mark.parametrize(
    "content", [float("nan"), {1: 2}, {"a": object()}, "\ud800"], ids=["nan", "key", "object", "surrogate"]
)
def test_m_ap10_content_is_json_and_nothing_else(content: Any) -> None:
    with pytest.raises(InvalidContent):
        content_digest(content)


@pytest.mark.parametrize(
    "items, now_ms, digest, standing",
    [
        ([], 999, None, Standing.OPEN),
        ([], 1000, None, Standing.EXPIRED),
        ([], 1000, "other", Standing.CHANGED),
        ([(Ask.DECIDE, {"how": "approve"})], 9999, None, Standing.DECIDED),
        ([(Ask.DECIDE, {"how": "approve"})], 1, "other", Standing.VOID),
        ([(Ask.DECIDE, {"how": "approve"}), (Ask.REVOKE, {})], 1, None, Standing.VOID),
        ([(Ask.REVOKE, {})], 1, None, Standing.VOID),
        ([(Ask.DECIDE, {"how": "result", "result": 1})], 1, None, Standing.VOID),
        ([(Ask.DECIDE, True)], 1, None, Standing.VOID),
        ([(Ask.SIGNAL, {"how": "approve"})], 1, None, Standing.OPEN),
    ],
)
def test_b133_i15_how_a_request_stands(
    items: list[tuple[Ask, Any]], now_ms: int, digest: str | None, standing: Standing
) -> None:
    posted = [item(ask, value) for ask, value in items]
    strange = item(Ask.DECIDE, {"how": "approve"}, name="ask:other")
    reading = read("ask:pay", SHOWN, [strange, *posted], now_ms=now_ms, digest=digest)
    assert reading.standing is standing
    assert (reading.decision is not None) == (standing is Standing.DECIDED)
    assert strange not in reading.items


def test_a_decision_is_read_back_as_it_was_written() -> None:
    decision = Decision(request="ask:pay", digest="d", approved=False, by="ann", reason="no", expired=True)
    assert Decision.from_json(decision.to_json()) == decision
    assert approvals.decision_of(item(Ask.DECIDE, {"how": "reject", "by": "ann", "reason": "no"}), SHOWN) == Decision(
        request="ask:pay", digest=SHOWN.digest, approved=False, by="ann", reason="no"
    )
