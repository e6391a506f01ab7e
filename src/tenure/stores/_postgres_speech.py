"""How a store speaks to its server: the statements of changes, their parameters, and what a failed one said."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from tenure.core.run import Change, Commit, Import, Renew
from tenure.errors import OutcomeUnknown
from tenure.store import payload_bytes
from tenure.stores._postgres_change import json_text, packed
from tenure.stores._postgres_connect import Address, said_by_server

LIMIT_BYTES = 16 * 2**20
"""How many bytes of payload one statement takes, unless a single change has more."""
_JSONB, _BYTEAS, _BYTEA = 3802, 1001, 17


class Call(NamedTuple):
    """A statement with its parameters: the first as text, what follows in binary."""

    statement: bytes
    types: tuple[int, ...]
    values: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True)
class Speech:
    """How a store speaks to its server: the statements, and what `look_1` has to be told."""

    change: bytes
    step: bytes
    renew: bytes
    known: Callable[[], dict[str, Any]]
    beat_sync: str
    """What a renewal waits for: never for standbys."""
    _said: tuple[dict[str, Any], str] = field(default_factory=lambda: ({}, "{"))
    """What was said last of what is known, and as text: it is the same nearly always."""

    def call(self, changes: Sequence[Change], /, *, whole: bool = False) -> Call:
        """Return the statement of changes; `whole` is the one that says why a change does not land."""
        bodies: list[bytes] = []
        objects = ",".join([packed(change, bodies) for change in changes])
        first = changes[0]
        if isinstance(first, Renew):
            return Call(self.renew, (_JSONB,), (self._told(f'"grants":[{objects}]', sync=self.beat_sync),))
        if len(changes) == 1 and isinstance(first, Commit) and first.is_plain and not whole:
            return Call(self.step, (_JSONB, _BYTEA), (self._told(f'"step":{objects}'), bodies[0]))
        apart = ',"apart":1' if len({change.run for change in changes}) == len(changes) else ""
        return Call(self.change, (_JSONB, _BYTEAS), (self._told(f'"changes":[{objects}]{apart}'), byteas(bodies)))

    def _told(self, asked: str, **other: Any) -> bytes:
        known = {**self.known(), **other}
        if known != self._said[0]:
            self._said = known, json_text(known)[:-1]
        return f"{self._said[1]},{asked}}}".encode()


def byteas(bodies: Sequence[bytes], /) -> bytes:
    """Return an array of payloads in PostgreSQL's binary form: as text each byte would be two."""
    if not bodies:
        return struct.pack("!iiI", 0, 0, _BYTEA)
    parts = [struct.pack("!iiIii", 1, 0, _BYTEA, len(bodies), 1)]
    for body in bodies:
        parts += (struct.pack("!i", len(body)), body)
    return b"".join(parts)


class Raw:
    """An array of payloads that is packed already."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class _RawDumper(psycopg.adapt.Dumper):
    format = psycopg.pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        packed: bytes = obj.data
        return packed


psycopg.adapters.register_dumper(Raw, _RawDumper)


def size_of(change: Change, /) -> int:
    """Return about how many bytes a change has."""
    if isinstance(change, Import):
        return LIMIT_BYTES  # alone: whoever comes with it would wait for all of it
    return payload_bytes(change) + 500


def error_of(result: PGresult | None, where: Address, /) -> BaseException:
    """Return what a result means that is none."""
    if result is None:
        return OutcomeUnknown(f"{where.shown} gave no answer; send the same request again")
    field = psycopg.pq.DiagnosticField
    state = (result.error_field(field.SQLSTATE) or b"").decode()
    said = (result.error_field(field.MESSAGE_PRIMARY) or result.error_message or b"").decode(errors="replace")
    if not state or state.startswith(("08", "57P")):
        message = f"the connection to {where.shown} ended before the answer came ({said}); send the same request again"
        return OutcomeUnknown(message)
    return said_by_server(state, said.strip()[:200], where)
