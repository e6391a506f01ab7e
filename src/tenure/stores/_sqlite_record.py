"""The stored form of a record in the SQLite store: canonical JSON of the text fields that every store has."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict

from tenure import encoding
from tenure.codec import pack_run, unpack_run
from tenure.core import canonical
from tenure.core.run import Run
from tenure.errors import CorruptRecord, InvalidContent
from tenure.store import Beat, Refused

_REMEMBERED = 512


class Records:
    """Records by their stored bytes: what is found as it was written need not be parsed again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, Run]] = OrderedDict()

    def read(self, run_id: str, data: bytes) -> Run:
        """Return the record of stored bytes; CorruptRecord, StoreTooNew."""
        kept = self._kept.get(run_id)
        if kept is not None and kept[0] == data:
            return kept[1]
        return read_record(run_id, data)

    def keep(self, run: Run, data: bytes) -> None:
        """Remember a record that is about to be written."""
        self._kept[run.id] = (data, run)
        self._kept.move_to_end(run.id)
        if len(self._kept) > _REMEMBERED:
            self._kept.popitem(last=False)


def read_record(run_id: str, data: bytes | str) -> Run:
    """Return the record of stored bytes; CorruptRecord for what is no record, or another run's."""
    try:
        fields = canonical.decode(data.encode() if isinstance(data, str) else data)
    except InvalidContent:
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        message = f"the record of run {run_id} is not a JSON object of texts; see `tenure show --raw`"
        raise CorruptRecord(message, run_id=run_id)
    run = unpack_run(fields)
    if run.id != run_id:
        message = f"the record of run {run_id} names another run; see `tenure show --raw`"
        raise CorruptRecord(message, run_id=run_id)
    return run


def write_record(run: Run) -> bytes:
    """Return the bytes of a record: canonical JSON of its text fields."""
    return encoding.texts(pack_run(run))


def hint_text(value: Beat | Refused) -> str:
    """Return the text of a hint."""
    return canonical.encode({k: list(v) if isinstance(v, tuple) else v for k, v in asdict(value).items()}).decode()
