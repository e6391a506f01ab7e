"""A step whose effects are in the store's own database: they land with the record of them, or neither does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tenure.codec import to_json_value
from tenure.core import journal
from tenure.errors import NotAllowed
from tenure.store import Store, Transactional

if TYPE_CHECKING:
    from tenure.lease import Lease


@asynccontextmanager
async def begin(lease: Lease, store: Store, name: str, value: Any, *, scope: str) -> AsyncIterator[Any]:
    """Yield the driver's connection in a transaction, which the lease's next commit ends.

    With a name that commit is a record of it, without one it ends a step, as `checkpoint` does. A `value` that can be
    called is called at the end. RolledBack: nothing of it is there, do the block again. LeaseLost: somebody else does.
    Nothing of ours is locked before the end, so a block that holds its own rows for long keeps no other run waiting.
    """
    if not isinstance(store, Transactional):
        message = f"{store.url} has no transactions of others; use postgresql://, or a step with an effect of its own"
        raise NotAllowed(message, run=lease.run)
    lease.check()
    async with store.transaction() as guarded:
        yield guarded.connection
        content = {"value": to_json_value(value() if callable(value) else value)}
        if name:
            event = journal.event(journal.RECORD, scope=scope, name=name, **content)
        else:
            event = journal.event(journal.CHECKPOINT, **content)
        await lease.commit([event], step=0 if name else 1, through=guarded.commit)
