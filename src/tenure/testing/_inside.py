"""Dying inside a write: with a part of the request sent, or between two instructions of the transaction."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from tenure.core.run import Answer, Change, Claim, Commit, Create
from tenure.errors import NotAllowed

INSTRUCTIONS = 160
"""Instructions of SQLite's machine that the longest write takes with its COMMIT; the shortest takes two thirds."""


def die_inside(store: Any, change: Change, inside: float, die: Callable[[], object]) -> Callable[[], bool]:
    """See to it that this process dies in the middle of the next write of `change`, as far into it as `inside` says.

    On a server: when that part of the request has left; all of it from 0.6 on, so that the reply is on its way. In a
    file: after that many instructions of the transaction. A write that ends before that returns; whether it went this
    way at all, what is returned here tells.
    """
    if hasattr(store, "space"):
        message = "a write of memory:// is one step of one process; there is no inside to die in"
        raise NotAllowed(message)
    if store.url.startswith("sqlite:"):
        return _between_instructions(change, round(1 + inside * INSTRUCTIONS), die)
    return _in_the_request(_key(change), min(1.0, inside / 0.6), die)


def _key(change: Change) -> bytes:
    match change:
        case Claim():
            return change.nonce.encode()
        case Create() | Commit() if change.row is not None:
            return change.row.digest.encode()
        case _:
            message = f"{type(change).__name__} has no inside to die in"
            raise NotAllowed(message)


def _in_the_request(key: bytes, share: float, die: Callable[[], object]) -> Callable[[], bool]:
    plain = asyncio.StreamWriter.write

    def write(writer: asyncio.StreamWriter, data: Any) -> None:
        if key not in data:
            plain(writer, data)
            return
        os.write(writer.get_extra_info("socket").fileno(), data[: round(len(data) * share)])
        die()

    asyncio.StreamWriter.write = write  # type: ignore[assignment, method-assign]
    return lambda: False


def _between_instructions(doomed: Change, left: int, die: Callable[[], object]) -> Callable[[], bool]:
    from tenure.stores._sqlite_write import Transaction

    plain = Transaction.decide
    met = False

    def tick() -> int:
        nonlocal left
        left -= 1
        if left <= 0:
            die()
        return 0

    def decide(transaction: Transaction, /, change: Change) -> Answer:
        nonlocal met
        if change is doomed:
            met = True
            transaction.connection.set_progress_handler(tick, 1)
        return plain(transaction, change)

    Transaction.decide = decide  # type: ignore[assignment, method-assign]
    return lambda: met
