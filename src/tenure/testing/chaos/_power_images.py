"""What a power loss may leave of files: everything that was flushed, and of the rest whatever the disk had got to.

Of what was written to a file since its last flush any part may be there, in any order, torn at the size of a sector or
a page; where a file had grown, what was never written may read as zeros or as what lay there before. A file that was
made or removed may be there or not until its folder is flushed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.testing.chaos._sqlite_tape import Event

HARMS = ("nothing of it", "all of it", "its beginning", "some of it", "torn by 512", "torn by 4096", "torn, garbage")


@dataclass(slots=True, kw_only=True)
class _File:
    flushed: bytes = b""
    lasting: bool = False
    """Whether its name survives, too."""
    pending: list[Event] = field(default_factory=list)

    def flush(self) -> None:
        content = bytearray(self.flushed)
        for event in self.pending:
            _apply(content, event)
        self.flushed, self.lasting, self.pending = bytes(content), True, []


def image(events: Sequence[Event], drawn: random.Random, /) -> tuple[str, dict[str, bytes]]:
    """Return what is left of the files after these events, and in which way what was not flushed is harmed."""
    files: dict[str, _File] = {}
    removed: dict[str, _File] = {}
    for event in events:
        match event.what:
            case "sync":
                files.setdefault(event.name, _File()).flush()
            case "sync folder":
                removed.clear()
            case "delete":
                if (gone := files.pop(event.name, None)) is not None and gone.lasting:
                    removed[event.name] = gone
            case _:
                files.setdefault(event.name, _File()).pending.append(event)
    harm = drawn.choice(HARMS)
    left = {name: _harmed(file, harm, drawn) for name, file in files.items() if file.lasting or drawn.random() < 0.7}
    for name, file in removed.items():
        if drawn.random() < 0.5 and not (name in files and files[name].lasting):
            left[name] = _harmed(file, harm, drawn)
    return harm, left


def _harmed(file: _File, harm: str, drawn: random.Random) -> bytes:
    content, pending = bytearray(file.flushed), file.pending
    if harm == "nothing of it":
        pending = []
    elif harm == "its beginning":
        pending = pending[: drawn.randrange(len(pending) + 1)]
    elif harm != "all of it":
        pending = [event for event in pending if drawn.random() < 0.7]
    if harm.startswith("torn"):
        block = drawn.choice((512, 4096)) if harm == "torn, garbage" else int(harm.rpartition(" ")[2])
        pending = [piece for event in pending for piece in _torn(event, block, drawn)]
    for event in pending:
        begin = len(content)
        _apply(content, event)
        if harm == "torn, garbage" and event.what == "write" and event.offset > begin:
            content[begin : event.offset] = drawn.randbytes(event.offset - begin)
    return bytes(content)


def _torn(event: Event, block: int, drawn: random.Random) -> list[Event]:
    if event.what != "write":
        return [event]
    pieces, at, end = list[Event](), event.offset, event.offset + len(event.data)
    while at < end:
        until = min(end, (at // block + 1) * block)
        if drawn.random() < 0.7:
            data = event.data[at - event.offset : until - event.offset]
            pieces.append(Event(what="write", name=event.name, offset=at, data=data))
        at = until
    return pieces


def _apply(content: bytearray, event: Event) -> None:
    if event.what == "truncate":
        del content[event.offset :]
        content.extend(bytes(event.offset - len(content)))
        return
    content.extend(bytes(max(0, event.offset - len(content))))
    content[event.offset : event.offset + len(event.data)] = event.data
