"""Short words for telling a scenario on the port alone."""

from collections.abc import Mapping
from typing import Any

import anyio

from tenure.core import build
from tenure.core.run import Grant, Item, Row, Run, Why
from tenure.store import Store
from tenure.testing.contract_case import claim, grant_of

SHORT_MS = 60


async def created(store: Store, run: str = "r1", value: Any = None) -> Run:
    answer = await store.commit(build.create(run=run, kind="k", value=value))
    assert answer.ok
    assert answer.run is not None
    return answer.run


async def claimed(store: Store, run: str = "r1", **more: Any) -> tuple[Grant, Run]:
    answer = await store.commit(claim(run, **more))
    assert answer.ok, answer.why
    assert answer.run is not None
    return grant_of(answer.run), answer.run


async def why(store: Store, change: Any) -> Why | None:
    return (await store.commit(change)).why


async def kept(store: Store, run: str = "r1") -> tuple[Mapping[str, str], list[Row], list[Item], int | None]:
    """All that reads can see of the one run of its kind."""
    return await store.raw(run), await store.tail(run), await store.inbox(run), await store.next_due_ms(["k"])


async def until_over(run: Run, store: Store) -> None:
    """Wait until the run's lease has run out by the store's clock."""
    while (left_ms := run.lease_until_ms - (await store.facts()).now_ms) > -1:  # noqa: ASYNC110 - time is waited for
        await anyio.sleep((left_ms + 1) / 1000)
