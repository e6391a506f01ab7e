"""One run's journal as lines of JSON: to keep it, to move it, and to verify it without any store.

The first line names the run. Each commit is a line with its head, and its body as it is stored; the last line is the
record as it stood when the export ended. A line that was cut off by a death or a full disk is the last one of the file,
and an export that goes on takes it away first; anything else that cannot be read is refused.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tenure.codec import pack_run, unpack_run
from tenure.core import canonical
from tenure.core.run import Row, Run
from tenure.core.verify import ORIGIN, Audit, Verification
from tenure.errors import CorruptRecord, InvalidContent, NotAllowed, RunConflict, StoreTooNew
from tenure.refusals import not_found
from tenure.store import Store, has_commit

FORMAT = 1
"""The format of the lines; a newer one is refused by name."""

TORN = "TORN"
PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of an export: the run's id, a commit, or the record. `end` is where the next one begins, in bytes."""

    end: int
    run: str = ""
    row: Row | None = None
    record: Run | None = None
    torn: bool = False


def read_export(path: str | Path, /) -> Iterator[Line]:
    """Yield the lines of an export; the last one may be torn and says so, any other that cannot be read is refused."""
    with Path(path).open("rb") as file:
        yield from read_lines(file, str(path))


def read_lines(file: BinaryIO, name: str, /) -> Iterator[Line]:
    """Yield the lines of an open export; CorruptRecord names the line that cannot be read."""
    end = 0
    for number, data in enumerate(file, 1):
        whole = data.endswith(b"\n")
        if not whole:
            yield Line(end=end, torn=True)
            return
        end += len(data)
        line = _read(data, end, f"line {number} of {name}")
        if (number == 1) != (line.run != ""):
            message = f"line {number} of {name} is not where an export has it; export the run again"
            raise CorruptRecord(message)
        yield line


def _read(data: bytes, end: int, where: str) -> Line:
    try:
        value = canonical.decode(data)
        if "journal" in value:
            if value["tenure"] > FORMAT:
                message = f"{where} is of format {value['tenure']} and this version reads up to {FORMAT}; upgrade"
                raise StoreTooNew(message)
            return Line(end=end, run=str(value["journal"]))
        if isinstance(value, dict) and value.get("tenure") == "export":
            message = f"{where} begins an export of a store, for `tenure store import`; name one of `journal export`"
            raise NotAllowed(message)
        if "record" in value:
            return Line(end=end, record=unpack_run(value["record"]))
        found = value["commit"]
        if "raw" in found:
            body = base64.b64decode(found["raw"], validate=True)
        else:
            body = canonical.encode(found["body"], depth=canonical.RESTATED_DEPTH + 2)
        row = Row(
            seq=int(found["seq"]),
            token=int(found["token"]),
            grant=str(found["grant"]),
            digest=str(found["digest"]),
            at_ms=int(found["at_ms"]),
            body=body,
        )
        return Line(end=end, row=row)
    except (InvalidContent, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"is nothing that `tenure journal export` writes ({type(error).__name__})"
        message = f"{where} {what}; only the last line of an export may be torn, export again to another file"
        raise CorruptRecord(message) from None


def verify_file(path: str | Path, /) -> Verification:
    """Check an export like `Handle.verify` checks a stored run; a torn or missing end is a failure."""
    audit: Audit | None = None
    record, torn, last = None, False, 0
    for line in read_export(path):
        if line.run:
            audit = Audit(line.run)
        torn = line.torn
        record = line.record or record
        if line.row is not None and audit is not None:
            audit.add(line.row)
            last = line.row.seq
    if audit is None:
        message = f"{path} holds no export; `tenure journal export RUN --file {path}` writes one"
        raise CorruptRecord(message)
    if audit.origin:
        audit.doubt(ORIGIN, 1, detail="what it was forked from is not in this file")
    if torn:
        detail = "the last line is torn; export again to the same file, and it goes on from there"
        audit.fail(TORN, last, detail=detail)
    elif record is None:
        audit.fail(
            "HEAD", last, detail="the record is missing; export again to the same file, and it goes on from there"
        )
    return audit.end(record)


async def export_lines(
    store: Store, run_id: str, /, *, after: Row | None = None
) -> AsyncIterator[tuple[Row | None, bytes]]:
    """Yield commits after one with their lines, read in pages, and at last the line of the record, with None.

    RunConflict if one that was exported is gone.
    """
    last = after
    await _refuse_gone(store, run_id, last)
    while page := await store.tail(run_id, after=last.seq if last is not None else 0, limit=PAGE):
        for last in page:
            yield last, _line({"commit": commit_value(last)})
    # Read after the commits, so that it knows of each of them; those that landed meanwhile are told as well.
    run = await store.load(run_id)
    if run is None:
        raise not_found(run_id)
    seq = last.seq if last is not None else 0
    if run.last_seq > seq:
        for last in await store.tail(run_id, after=seq, limit=run.last_seq - seq):
            yield last, _line({"commit": commit_value(last)})
    await _refuse_gone(store, run_id, last)
    yield None, _line({"record": {**pack_run(run), "nonce": ""}})


async def _refuse_gone(store: Store, run_id: str, last: Row | None) -> None:
    if last is not None and not await has_commit(store, run_id, last.seq, last.digest):
        message = f"the store lost commits of run {run_id} that were exported; export it again, to another file"
        raise RunConflict(message, run_id=run_id)


def first_line(run_id: str, /) -> bytes:
    """Return the line with which an export begins."""
    return _line({"tenure": FORMAT, "journal": run_id})


def commit_value(row: Row, /) -> Mapping[str, Any]:
    """Return a commit as a JSON value from which its bytes come back: the body as JSON, or as base64 if it is none."""
    head = {"seq": row.seq, "token": row.token, "grant": row.grant, "digest": row.digest, "at_ms": row.at_ms}
    try:
        body = canonical.decode(row.body)
        if canonical.encode(body, depth=canonical.RESTATED_DEPTH + 2) == row.body:
            return {**head, "body": body}
    except InvalidContent:
        pass
    return {**head, "raw": base64.b64encode(row.body).decode()}


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


async def export_to(store: Store, run_id: str, path: str | Path, /) -> int:
    """Bring a file up to date with a run's journal and return the number of commits in it.

    A new file is written; one that is an export of this run goes on from its last whole commit, and a torn last line is
    taken away first. The file is flushed to the disk. CorruptRecord if the file is damaged elsewhere or is another
    run's, OSError if it cannot be written: what was written before is whole but for its last line.
    """
    if await store.load(run_id) is None:
        raise not_found(run_id)
    file, last = _opened(Path(path), run_id)
    with file:
        async for row, data in export_lines(store, run_id, after=last):
            file.write(data)
            last = row or last
        file.flush()
        os.fsync(file.fileno())
    return last.seq if last is not None else 0


def _opened(path: Path, run_id: str) -> tuple[BinaryIO, Row | None]:
    """The file, cut to its whole commits and open at its end, and the last of them."""
    last: Row | None = None
    end = 0
    if path.exists():
        for line in read_export(path):
            if line.run not in ("", run_id):
                message = f"{path} is the export of run {line.run}, not of {run_id}; name another file"
                raise CorruptRecord(message)
            if line.row is not None:
                last = line.row
            if line.run or line.row is not None:
                end = line.end  # a record that is out of date, and a torn line, are written over
    if not path.exists():
        path.touch(mode=0o600, exist_ok=False)  # it holds what the run was given and came to
    file = path.open("r+b")
    file.truncate(end)
    file.seek(end)
    if not end:
        file.write(first_line(run_id))
    return file, last
