"""How a whole run stands in one value, what a deletion leaves of it, and the one value that all runs stand on."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from tenure.codec import pack_item, pack_row, pack_run, unpack_item, unpack_row, unpack_run
from tenure.errors import CorruptRecord, StoreTooNew
from tenure.stores.memory import Shelf

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grave:
    """What is left of a deleted run, so that its id never gets a token again that it had: a few bytes, for ever."""

    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the runs of a namespace have in common: the longest lease, the highest token of what is gone, the salt."""

    max_ttl_ms: int = 0
    floor: int = 0
    salt: str = ""


def pack_shelf(shelf: Shelf | Grave, /) -> bytes:
    """Return the value of a run, or of what a deletion leaves."""
    if isinstance(shelf, Grave):
        return _packed({"floor": shelf.floor})
    return _packed(
        {
            "record": pack_run(shelf.run),
            "rows": [_text(pack_row(row, row.at_ms)) for row in shelf.rows],
            "items": {item.id: _text(pack_item(item)) for item in shelf.items.values()},
            "blobs": {digest: _text(data) for digest, data in shelf.blobs.items()},
        }
    )


def unpack_shelf(run_id: str, value: bytes, /) -> Shelf | Grave:
    """Return what `pack_shelf` wrote; CorruptRecord or StoreTooNew for anything else."""
    found = _unpacked(value, f"run {run_id}")
    try:
        if "floor" in found:
            return Grave(floor=int(found["floor"]))
        return Shelf(
            run=unpack_run(found["record"]),
            rows=[unpack_row(seq, _bytes(row)) for seq, row in enumerate(found["rows"], 1)],
            items={item_id: unpack_item(item_id, _bytes(item)) for item_id, item in found["items"].items()},
            blobs={digest: _bytes(data) for digest, data in found["blobs"].items()},
        )
    except (KeyError, ValueError, TypeError, AttributeError, binascii.Error):
        message = f"the value of run {run_id} cannot be read; see `tenure show --raw`"
        raise CorruptRecord(message, run_id=run_id) from None


def pack_ground(ground: Ground, /) -> bytes:
    """Return the value of the ground."""
    return _packed({"max_ttl_ms": ground.max_ttl_ms, "floor": ground.floor, "salt": ground.salt})


def unpack_ground(value: bytes, /) -> Ground:
    """Return what `pack_ground` wrote."""
    found = _unpacked(value, "the namespace")
    try:
        return Ground(max_ttl_ms=int(found["max_ttl_ms"]), floor=int(found["floor"]), salt=str(found["salt"]))
    except (KeyError, ValueError, TypeError):
        message = "what the runs of this namespace stand on cannot be read; restore the store"
        raise CorruptRecord(message) from None


def _packed(content: dict[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **content}, separators=(",", ":")).encode()


def _unpacked(value: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
        written = int(found["format"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        message = f"the value of {what} cannot be read; restore the store, or delete the value if nothing is lost by it"
        raise CorruptRecord(message) from None
    if written > FORMAT:
        message = f"the value of {what} has format {written} and this version reads up to {FORMAT}; upgrade this worker"
        raise StoreTooNew(message)
    return dict(found)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
