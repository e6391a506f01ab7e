"""What was shown is what runs: defaults that are made anew each time are those that a person has seen."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from agent.desk import Desk
from agent.parts import agent_of, call
from tenure import Ledger, RunSuspended, Store, tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def desk(ledger: Ledger, store: Store) -> Desk:
    return Desk(ledger, store)


numbers = itertools.count(1)


class Order(BaseModel):
    """An order whose number is made when it is read."""

    item: str
    number: int = Field(default_factory=lambda: next(numbers))


async def test_m_ap11_a_default_that_is_made_anew_is_bound_as_it_was_shown(desk: Desk) -> None:
    @tool(approval=True)
    async def buy(order: Order) -> str:
        desk.made.append(f"{order.item} {order.number}")
        return "bought"

    calls = tuple(call(f"c{n}", "buy", order={"item": item}) for n, item in enumerate(("tea", "cake"), 1))
    durable = await desk.suspended(agent_of(buy, calls=calls))
    tea, cake = await durable.requests("w1")
    await durable.decide("w1", cake, "approve", by="ann", digest=cake.digest)
    with pytest.raises(RunSuspended):
        await durable.recover("w1")
    (left,) = await durable.requests("w1")
    assert (left.id, left.digest) == (tea.id, tea.digest), "not asked anew because time has passed"
    await durable.decide("w1", left, "approve", by="ann", digest=tea.digest)
    assert await durable.recover("w1") == "done"
    shown = [request.content["read_as"]["order"] for request in (cake, tea)]
    assert desk.made == [f"{order['item']} {order['number']}" for order in shown]


async def test_a_default_that_the_code_has_changed_meanwhile_is_the_one_that_was_shown(desk: Desk) -> None:
    def paying(currency: str) -> Any:
        @tool(approval=True)
        async def pay(amount: int, into: str = currency) -> str:
            desk.made.append(f"{amount} {into}")
            return "paid"

        return agent_of(pay, calls=(call("c1", "pay", amount=3),))

    durable = await desk.suspended(paying("EUR"))
    (request,) = await durable.requests("w1")
    await durable.decide("w1", request, "approve", by="ann")
    later = type(durable)(paying("USD"), desk.ledger)
    assert await later.recover("w1") == "done"
    assert desk.made == ["3 EUR"]


def test_a_call_is_made_with_what_was_shown_only_where_that_says_all_of_it() -> None:
    @tool
    async def login(password: SecretStr, user: str = "me") -> None: ...

    given = {"password": "hunter2"}
    shown = login.plain(given)
    assert shown["password"] == "**********"
    assert not login.stands(given, shown)

    @tool
    async def order(order: Order, more: bool = False) -> None: ...

    asked = {"order": {"item": "tea"}}
    assert order.stands(asked, order.plain(asked))
    assert not order.stands(asked, {"order": {"item": "tea", "number": 1}}), "a parameter came after it was shown"
    assert not order.stands(asked, None)
