"""Statements that a session of the server keeps ready, so that it parses and plans them once.

A pooler may give each statement to another session. A name is a digest of what it stands for, so whatever a session has
under it is the same statement; one that does not know it says so and has done nothing, and then none is kept any more.
"""

from __future__ import annotations

import hashlib

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tenure.stores._postgres_speech import Call

_UNKNOWN, _THERE = b"26000", b"42P05"
_FORMATS = {1: (0,), 2: (0, 1)}
"""Which parameters are binary, by how many there are."""


class Ready:
    """What one connection may call by name."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._names: dict[bytes, bytes] = {}
        self._keeps = True
        self._sent = Call(b"", (), ())
        self._naming = False

    def send(self, call: Call) -> None:
        """Send a statement, or first the request to keep it ready; psycopg.Error if the connection is gone."""
        self._sent = call
        self._naming = False
        if not self._keeps:
            self._pgconn.send_query_params(call.statement, call.values, call.types, _FORMATS[len(call.values)], 1)
        elif name := self._names.get(call.statement):
            self._pgconn.send_query_prepared(name, call.values, _FORMATS[len(call.values)], 1)
        else:
            self._naming = True
            self._pgconn.send_prepare(_name(call.statement), call.statement, call.types)

    def again(self, result: PGresult | None) -> bool:
        """Return whether what a result answers was not the statement itself, which was now sent once more."""
        state = None if result is None else result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        if self._naming:
            if state == _THERE or (result is not None and result.status == ExecStatus.COMMAND_OK):
                self._names[self._sent.statement] = _name(self._sent.statement)
            else:
                self._keeps = False
        elif state == _UNKNOWN:
            self._keeps = False
        else:
            return False
        self.send(self._sent)
        return True


def _name(statement: bytes) -> bytes:
    return b"tenure_" + hashlib.sha256(statement).hexdigest()[:32].encode()
