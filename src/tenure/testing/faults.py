"""A store that goes wrong on order: lost requests, lost replies, silence and delay, around any real store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import anyio

from tenure.core.run import Answer, Change
from tenure.errors import OutcomeUnknown, StoreUnavailable, TenureError
from tenure.store import Store


class Fault(StrEnum):
    """What happens to one call: it never arrives, is not served, its reply is lost, both hang, or it is late."""

    REQUEST_LOST = "request_lost"
    NOT_SERVED = "not_served"
    REPLY_LOST = "reply_lost"
    SILENCE = "silence"
    DELAY = "delay"


@dataclass(slots=True, kw_only=True)
class Order:
    """A fault for the next `times` changes that `match` says yes to; `seconds` is the delay before and after it."""

    fault: Fault
    times: int = 1
    match: Callable[[Change], bool] = lambda _: True
    seconds: float = 0.0


class FaultStore:
    """Wraps a store; changes meet the faults in `orders`, reads meet `down`. Counts what was sent.

    The heartbeat's store (`beside`) meets the same orders, so a test says by `match` whom a fault is for.
    """

    def __init__(self, store: Store, *, shared: FaultStore | None = None) -> None:
        self.inner = store
        self.orders: list[Order] = [] if shared is None else shared.orders
        self.sent: list[Change] = [] if shared is None else shared.sent
        self.down = False
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        """Return the inner store's attribute; reads fail while the store is down."""
        if (self._shared or self).down and name in {"load", "tail", "inbox", "blob", "due", "find", "facts"}:
            raise StoreUnavailable("the store is down; it was ordered so")
        return getattr(self.inner, name)

    async def __aenter__(self) -> Self:
        """Open the inner store."""
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the inner store."""
        await self.inner.__aexit__(*exc)

    def beside(self) -> FaultStore:
        """Return a store beside, under the same orders."""
        return FaultStore(self.inner.beside(), shared=self._shared or self)

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change, or go wrong."""
        (answer,) = await self.commit_many([change])
        if isinstance(answer, TenureError):
            raise answer
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide changes one by one; each meets its own fault."""
        return [await self._one(change) for change in changes]

    async def _one(self, change: Change) -> Answer | TenureError:
        self.sent.append(change)
        if (self._shared or self).down:
            return StoreUnavailable("the store is down; it was ordered so")
        order = next((o for o in self.orders if o.times > 0 and o.match(change)), None)
        if order is None:
            return await self.inner.commit(change)
        order.times -= 1
        if order.fault is Fault.REQUEST_LOST:
            return OutcomeUnknown("the request was lost; it was ordered so")
        if order.fault is Fault.NOT_SERVED:
            return StoreUnavailable("the store takes no writes; it was ordered so")
        if order.fault is Fault.SILENCE:
            await anyio.sleep_forever()
        await anyio.sleep(order.seconds)
        answer = await self.inner.commit(change)
        await anyio.sleep(order.seconds)
        return answer if order.fault is Fault.DELAY else OutcomeUnknown("the reply was lost; it was ordered so")
