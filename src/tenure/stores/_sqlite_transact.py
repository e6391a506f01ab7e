"""The transactions of the SQLite writer: what is done in one, what is done again one by one, what a failure is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from tenure.core.run import Change, Commit, Delete, Import
from tenure.errors import OutcomeUnknown, TenureError
from tenure.store import payload_bytes
from tenure.stores._group import BatchFailed
from tenure.stores._sqlite_desk import Tell
from tenure.stores._sqlite_open import Place, patiently
from tenure.stores._sqlite_record import Records
from tenure.stores._sqlite_sql import translated
from tenure.stores._sqlite_write import Transaction

Work = Change | Callable[[Transaction], Any]

LONG_BYTES = 1 << 20
"""Works of more than this take long: of 2 MB and more a part leaves the cache of SQLite before the COMMIT."""


def transact(
    connection: sqlite3.Connection, place: Place, records: Records, works: Sequence[Work], tell: Tell
) -> list[Any]:
    """Do works in one transaction and return an answer to each; BatchFailed if it failed as a whole and left nothing.

    An answer that is an error of ours had written nothing. `tell` is called before the file or the disk is waited for,
    and before works that take long.
    """
    try:
        patiently(place, lambda: connection.execute("BEGIN IMMEDIATE"), tell)
    except sqlite3.Error as error:
        # The file was never ours: asking one by one would only wait again.
        return [translated(error, place.path)] * len(works)
    committing = False
    try:
        if _take_long(works):
            tell()
        transaction = Transaction(connection, place, records)
        answers = _answered(works, transaction)
        committing = True
        tell()
        connection.execute("COMMIT")
        return answers
    except Exception as error:
        _roll_back(connection)
        raise BatchFailed(_uncommitted(error, place) if committing else translated(error, place.path)) from error


def _answered(works: Sequence[Work], transaction: Transaction) -> list[Any]:
    answers: list[Any] = []
    steps: dict[str, Commit] = {}  # those in a row that are decided together: each finds what the one before has left
    for work in works:
        step = work if isinstance(work, Commit) and work.is_plain else None
        if steps and (step is None or step.run in steps):
            answers += transaction.steps(list(steps.values()))
            steps.clear()
        if step is not None:
            steps[step.run] = step
        else:
            answers.append(_done(work, transaction))
    return answers + transaction.steps(list(steps.values())) if steps else answers


def _take_long(works: Sequence[Work]) -> bool:
    changes = [work for work in works if not callable(work)]
    size = sum(map(payload_bytes, changes))
    return size > LONG_BYTES or any(isinstance(change, Import | Delete) for change in changes)


def _done(work: Work, transaction: Transaction) -> Any:
    before = transaction.connection.total_changes
    try:
        return work(transaction) if callable(work) else transaction.decide(work)
    except TenureError as error:
        if transaction.connection.total_changes != before:
            raise  # half of it is written: the whole transaction goes
        return error


def _uncommitted(error: Exception, place: Place) -> Exception:
    # A COMMIT that could not flush may stand in the log all the same, where the next open finds it.
    if (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_IOERR"):
        message = f"{place.path} could not be flushed ({error}); send the same request again, or look"
        return OutcomeUnknown(message)
    return translated(error, place.path)


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:  # a failed COMMIT has rolled back by itself
        return
