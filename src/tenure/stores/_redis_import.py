"""An import on its way into Redis: its parts wait, laid down page by page, until one script makes them the run's.

The script is called first without them. It tells what is already there, and asks for the rest only if it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tenure.codec import pack_item, pack_row, pack_run
from tenure.core import canonical
from tenure.core.run import Import, Status
from tenure.stores._redis_keys import LARGE_BYTES, STAGED_SECONDS, Keys
from tenure.stores._redis_line import Part, pack

PAGE_BYTES = 1024 * 1024
PAGE_ENTRIES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one import, under the waiting keys of one attempt."""

    keys: Keys
    change: Import
    attempt: str

    def _waiting(self, name: str) -> str:
        return self.keys.stage(self.change.run, f"{self.attempt or 'none'}.{name}")

    @property
    def _large(self) -> dict[str, bytes]:
        rows = {str(row.seq): row.body for row in self.change.rows if len(row.body) > LARGE_BYTES}
        return rows | {name: data for name, data in sorted(self.change.blobs.items()) if len(data) > LARGE_BYTES}

    def _rows(self) -> Iterator[bytes]:
        for row in self.change.rows:
            packed = pack_row(row, row.at_ms)
            is_large = len(row.body) > LARGE_BYTES
            yield packed[: -len(row.body) - 1] + b" big\n" if is_large else packed

    def _small(self) -> dict[str, bytes]:
        return {name: data for name, data in self.change.blobs.items() if len(data) <= LARGE_BYTES}

    def pages(self) -> Iterator[list[bytes]]:
        """Yield the commands that lay down the parts, a page at a time."""
        rows = [(data,) for data in self._rows()]
        items = [(item.id, pack_item(item)) for item in self.change.items]
        for command, name, entries in (
            ("RPUSH", "log", rows),
            ("HSET", "inbox", items),
            ("HSET", "blobs", list(self._small().items())),
        ):
            key = self._waiting(name)
            for page in _paged(entries):
                yield [pack(command, key, *page), pack("EXPIRE", key, STAGED_SECONDS)]
        for name, data in self._large.items():
            yield [pack("SET", self._waiting(name), data, "EX", STAGED_SECONDS)]

    def named(self) -> list[str]:
        """Return the keys of the script, from the record on."""
        run, keys, record = self.change.run, self.keys, self.change.record
        status = Status.QUEUED if record.status is Status.RUNNING else record.status
        named = [keys.run(run), keys.log(run), keys.large(run), keys.blobs(run), keys.inbox(run)]
        named += [keys.due(record.kind), keys.kinds, keys.status(status)]
        named += [self._waiting(name) for name in ("log", "inbox", "blobs")]
        return named + [key for name in self._large for key in (self._waiting(name), keys.large(run, name))]

    def args(self) -> list[Part]:
        """Return the arguments of the script, from the id on."""
        change = self.change
        record = canonical.encode(dict(pack_run(change.record)))
        counts = [len(change.rows), len(change.items), len(self._small())]
        return [change.run, record, change.digest, change.salt, *counts, canonical.encode(list(self._large))]


def _paged(entries: Sequence[tuple[Part, ...]]) -> Iterator[list[Part]]:
    page: list[Part] = []
    size = 0
    for count, entry in enumerate(entries, 1):
        page += entry
        size += sum(len(part) for part in entry if isinstance(part, str | bytes))
        if size > PAGE_BYTES or count % PAGE_ENTRIES == 0:
            yield page
            page, size = [], 0
    if page:
        yield page
