"""Whole runs as lines of JSON, to keep them elsewhere or to move them into another store.

A file begins with a line about itself. Each run is a `run` line (its record), a line for each row, item and blob in the
form in which stores keep them, and an `end` line with the digest of all of it. The last line counts the runs, so that a
file that was cut off is known as such.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from tenure.carry import Whole, carried, check, digest
from tenure.codec import pack_item, pack_row, pack_run, unpack_item, unpack_row, unpack_run
from tenure.core import canonical
from tenure.core.run import SCHEMA, Item, Row, Run
from tenure.core.text import count
from tenure.errors import CorruptRecord, InvalidContent, NotAllowed, StoreTooNew, StoreUnavailable, TenureError
from tenure.store import Store, has_commit

T = TypeVar("T")

FORMAT = 1
PAGE = 200
TRIES = 20
"""How often a run is read again that moves while it is read."""


async def whole(store: Store, run_id: str, /) -> Whole | None:
    """Return all of a run as it was at one moment, None if it is gone; CorruptRecord if it is not whole.

    A journal grows, so a record and the rows up to its last one fit. An inbox item that was consumed after the record
    was read does not: then the record is read again, and of the rows what is new.
    """
    rows: list[Row] = []
    for attempt in range(TRIES):
        record = await store.load(run_id)
        if record is None:
            return None
        try:
            found = await _read(store, record, rows)
        except CorruptRecord:
            if attempt == TRIES - 1 or await store.load(run_id) == record:
                raise
            # It was deleted while it was read, or a failover took its last commits, and it is not damaged.
            rows = []
            continue
        if found is not None:
            return found
        await anyio.sleep(0.001 * attempt)
    message = f"run {run_id} moved {TRIES} times while it was read; try again, or drain its worker first"
    raise StoreUnavailable(message, run_id=run_id)


async def _read(store: Store, record: Run, rows: list[Row]) -> Whole | None:
    """Return what belongs to a record, adding to the rows that were read before; None if it has moved on."""
    if rows and not await has_commit(store, record.id, rows[-1].seq, rows[-1].digest):
        rows.clear()  # another run has the id by now, or a failover took the last of them
    while len(rows) < record.last_seq:
        left = min(PAGE, record.last_seq - len(rows))
        page = await store.tail(record.id, after=len(rows), limit=left)
        rows += page
        if not page:
            break
    effects = list(_effects(rows))
    items = [item for item in await store.inbox(record.id) if item.seq <= record.inbox_seq] if record.inbox_seq else []
    taken = {item_id for found in effects for item_id in found.get("consume", ())}
    if any(item.consumed and item.id not in taken for item in items):
        return None
    blobs = {name: await _blob(store, record, name) for found in effects for name in found.get("blobs", ())}
    whole = Whole(record=record, rows=rows, items=items, blobs=blobs)
    check(whole)
    return whole


def _effects(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            effects = canonical.decode(row.body)["effects"]
        except (InvalidContent, KeyError, TypeError):
            continue  # `check` names it
        if isinstance(effects, dict):
            yield effects


async def _blob(store: Store, record: Run, name: str) -> bytes:
    data = await store.blob(record.id, name)
    if data is None:
        message = f"blob {name[:12]} of run {record.id} is gone; take the run from a backup that has it"
        raise CorruptRecord(message, run_id=record.id)
    return data


class Writer:
    """Makes the lines of a file, in order: `head`, `run` for each run, `end`."""

    def __init__(self) -> None:
        self.runs = 0
        self._all = hashlib.sha256()

    def head(self, *, namespace: str, at_ms: int) -> bytes:
        """Return the first line."""
        return _line({"tenure": "export", "format": FORMAT, "schema": SCHEMA, "namespace": namespace, "at_ms": at_ms})

    def run(self, found: Whole, /) -> Iterator[bytes]:
        """Yield the lines of a run."""
        name = digest(found)
        yield _line({"run": pack_run(carried(found.record))})
        for row in found.rows:
            yield _line({"row": row.seq, **_data(pack_row(row, row.at_ms))})
        for item in found.items:
            yield _line({"item": item.id, **_data(pack_item(item))})
        for blob, data in found.blobs.items():
            yield _line({"blob": blob, **_data(data)})
        yield _line({"end": found.record.id, "digest": name})
        self.runs += 1
        self._all.update(name.encode())

    def end(self) -> bytes:
        """Return the last line."""
        return _line({"tenure": "end", "runs": self.runs, "digest": self._all.hexdigest()})


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _data(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


@dataclass(slots=True)
class _Open:
    """A run of which not all lines were read yet."""

    record: Run
    rows: list[Row] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)


class Reader:
    """Reads the lines of a file; yields each run when its last line was read, or what is wrong with it.

    A run whose digest is not that of its lines is yielded as CorruptRecord, and reading goes on. What is no export, is
    of a later format or ends in the middle raises.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._number = 0
        self._open: _Open | None = None
        self._begun = self._ended = False
        self._all = hashlib.sha256()

    async def read(self, lines: AsyncIterator[bytes], /) -> AsyncIterator[Whole | CorruptRecord]:
        """Yield every run of the file."""
        async for line in lines:
            self._number += 1
            if not line.endswith(b"\n"):
                raise self._cut(f"in line {self._number}")
            found = self._take(self._parsed(line))
            if found is not None:
                yield found
        if not self._ended:
            raise self._cut(f"after line {self._number}")

    def _cut(self, where: str) -> TenureError:
        if not self._begun:
            message = "the file is no export: its first line is not there; name a file that `tenure store export` wrote"
            return NotAllowed(message)
        message = (
            f"the file ends {where}, in the middle; what is before it is whole ({self._whole}), and asking again with "
            "a whole file takes up where this one stopped"
        )
        return CorruptRecord(message)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not self._begun:
            if not isinstance(value, dict) or value.get("tenure") != "export":
                message = "the first line is not that of an export; name a file that `tenure store export` wrote"
                raise NotAllowed(message)
            if value.get("format") != FORMAT or value.get("schema", 0) > SCHEMA:
                message = f"the export is of format {value.get('format')}, schema {value.get('schema')}; upgrade tenure"
                raise StoreTooNew(message)
            self._begun = True
            return {}
        if not isinstance(value, dict) or self._ended:
            message = f"line {self._number} is none of an export; what is before it is whole ({self._whole})"
            raise CorruptRecord(message)
        return value

    def _take(self, value: dict[str, Any]) -> Whole | CorruptRecord | None:
        try:
            return self._taken(value)
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            message = f"line {self._number} is none of an export; what is before it is whole ({self._whole})"
            raise CorruptRecord(message) from None

    def _taken(self, value: dict[str, Any]) -> Whole | CorruptRecord | None:
        if "run" in value:
            if self._open is not None:
                raise ValueError(value["run"])
            self._open = _Open(_unpacked(unpack_run, value["run"]))
        elif "row" in value:
            self._opened.rows.append(_unpacked(unpack_row, value["row"], _bytes(value)))
        elif "item" in value:
            self._opened.items.append(_unpacked(unpack_item, value["item"], _bytes(value)))
        elif "blob" in value:
            self._opened.blobs[value["blob"]] = _bytes(value)
        elif "end" in value:
            return self._closed(value)
        elif value:
            if self._open is not None or (value["runs"], value["digest"]) != (self.runs, self._all.hexdigest()):
                message = (
                    f"the file holds {self.runs} of {count(value['runs'], 'run')}, lines are missing; export it again"
                )
                raise CorruptRecord(message)
            self._ended = True
        return None

    @property
    def _whole(self) -> str:
        return count(self.runs, "run")

    @property
    def _opened(self) -> _Open:
        if self._open is None:
            raise ValueError(self._number)
        return self._open

    def _closed(self, value: dict[str, Any]) -> Whole | CorruptRecord:
        run, self._open = self._opened, None
        self.runs += 1
        self._all.update(value["digest"].encode())
        found = Whole(record=run.record, rows=run.rows, items=run.items, blobs=run.blobs)
        if value["end"] != run.record.id or digest(found) != value["digest"]:
            message = f"run {run.record.id} in the file is not what was exported (its digest differs); export it again"
            return CorruptRecord(message, run_id=run.record.id)
        return found


def _unpacked(unpack: Callable[..., T], *stored: Any) -> T:
    try:
        return unpack(*stored)
    except CorruptRecord as error:
        raise ValueError(error.code) from None  # what it advises is for who has the run in a store


def _bytes(value: dict[str, Any]) -> bytes:
    if "base64" in value:
        return base64.b64decode(value["base64"], validate=True)
    data: bytes = value["text"].encode()
    return data
