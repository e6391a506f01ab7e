"""Dying inside a write: with a part of the request sent, or between two instructions of the transaction."""

from __future__ import annotations

import os
from asyncio import selector_events
from collections.abc import Callable, Sequence
from typing import Any

from tenure.core.run import Answer, Change, Claim, Commit, Create
from tenure.errors import NotAllowed, TenureError

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
    if store.url.startswith("postgres"):
        return _in_the_statement(_key(change), min(1.0, inside / 0.6), die)
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
    events: Any = selector_events  # typeshed does not know what every connection writes to
    transport_class = events._SelectorSocketTransport  # noqa: SLF001 - same
    plain = transport_class.write

    def write(transport: Any, data: Any) -> None:
        if key not in data:
            plain(transport, data)
            return
        os.write(transport.get_extra_info("socket").fileno(), data[: round(len(data) * share)])
        die()

    transport_class.write = write
    return lambda: False


def _in_the_statement(key: bytes, share: float, die: Callable[[], object]) -> Callable[[], bool]:
    from tenure.stores._postgres_line import Line

    plain = Line._send  # noqa: SLF001 - where a statement leaves

    def send(line: Line) -> None:
        meets = not line._flying and any(_names(slot.change, key) for slot in line._waiting)  # noqa: SLF001 - same
        if meets and share < 1:
            # The driver sends a statement whole, so the first part of one is put in its place.
            parse = b"P" + (200).to_bytes(4) + b"\0SELECT ".ljust(196, b"x")
            os.write(line._fd, parse[: 1 + round(len(parse) * share * 0.99)])  # noqa: SLF001 - same
            die()
        plain(line)
        if meets:
            die()

    Line._send = send  # type: ignore[assignment, method-assign]  # noqa: SLF001 - same
    return lambda: False


def _names(change: Change, key: bytes) -> bool:
    return isinstance(change, Claim | Create | Commit) and _key(change) == key


def _between_instructions(doomed: Change, left: int, die: Callable[[], object]) -> Callable[[], bool]:
    from tenure.stores._sqlite_write import Transaction

    decide, steps = Transaction.decide, Transaction.steps
    met = False

    def tick() -> int:
        nonlocal left
        left -= 1
        if left <= 0:
            die()
        return 0

    def meet(transaction: Transaction, changes: Sequence[Change]) -> None:
        nonlocal met
        if any(change is doomed for change in changes):
            met = True
            transaction.connection.set_progress_handler(tick, 1)

    def decide_it(transaction: Transaction, /, change: Change) -> Answer:
        meet(transaction, [change])
        return decide(transaction, change)

    def decide_all(transaction: Transaction, /, changes: Sequence[Commit]) -> list[Answer | TenureError]:
        meet(transaction, changes)
        return steps(transaction, changes)

    Transaction.decide, Transaction.steps = decide_it, decide_all  # type: ignore[assignment, method-assign]
    return lambda: met
