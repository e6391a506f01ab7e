"""A whole run on its way from one store to another: what is carried, its digest, and the change that brings it in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tenure.codec import pack_item, pack_row, pack_run
from tenure.core import canonical, ids, journal
from tenure.core.run import Import, Item, Row, Run
from tenure.errors import CorruptRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All that a store holds of one run, at one moment."""

    record: Run
    rows: Sequence[Row]
    items: Sequence[Item] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def carried(record: Run, /) -> Run:
    """Return what of a record is carried: all but who holds it, and the marks of requests that were made again."""
    return replace(record, nonce="", epoch="", owner="", granted_ttl_ms=0, lease_until_ms=0, touch=0)


def digest(whole: Whole, /) -> str:
    """Return the digest of all that is carried; the digest of the last row stands for what the rows say."""
    found = hashlib.sha256(b"tenure-run-1\n")
    for part in _parts(whole):
        found.update(b"%d\n" % len(part))
        found.update(part)
    return found.hexdigest()


def _parts(whole: Whole) -> Iterator[bytes]:
    yield canonical.encode(pack_run(carried(whole.record)))
    for row in whole.rows:
        yield pack_row(replace(row, body=b""), row.at_ms)
    for item in whole.items:
        yield item.id.encode()
        yield pack_item(item)
    for name in sorted(whole.blobs):
        yield name.encode()


def bring(whole: Whole, /, *, salt: str) -> Import:
    """Return the change that brings in a run; its key is the digest of all that it holds.

    CorruptRecord if the parts are not those of one run that nobody edited, InvalidId for an id that is not a user's and
    for a code version that is none.
    """
    ids.run_id(whole.record.id)
    ids.version(whole.record.code_version)
    check(whole, "export it again, from a store or a backup that has it whole")
    return Import(
        record=carried(whole.record),
        rows=tuple(whole.rows),
        items=tuple(whole.items),
        blobs=dict(whole.blobs),
        digest=digest(whole),
        salt=salt,
    )


def check(whole: Whole, advice: str = "", /) -> None:
    """Raise CorruptRecord unless journal, inbox and blobs are what the record says; `advice` is what to do then."""
    record = whole.record
    show = f"`tenure show {record.id} --raw` prints what is stored; take it from a store or a backup that has it whole"
    # The chain, and not what the events mean: what a reader cannot explain is carried to one who can.
    chain = journal.Verifier(record.id)
    for row in whole.rows:
        chain.add(row)
    broken = [f"{found.code} at commit {found.seq}" for found in chain.end(record).findings]
    if [item.seq for item in whole.items] != list(range(1, record.inbox_seq + 1)):
        broken.append("INBOX")
    broken += [f"BLOB {name[:12]}" for name, data in whole.blobs.items() if canonical.digest(data) != name]
    lacking = set(named_blobs(whole.rows)) - set(whole.blobs) if not broken else ()
    broken += [f"BLOB {name[:12]} missing" for name in sorted(lacking)]
    if broken:
        message = f"run {record.id} is not whole ({', '.join(broken[:3])}); {advice or show}"
        raise CorruptRecord(message, run_id=record.id)


def named_blobs(rows: Sequence[Row], /) -> list[str]:
    """Return the digests of the blobs that these commits keep."""
    effects = (canonical.decode(row.body).get("effects") or {} for row in rows)
    return [name for found in effects for name in found.get("blobs") or ()]
