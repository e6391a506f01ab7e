"""The reader for machines without hiredis reads as hiredis does, wherever the bytes are cut."""

from __future__ import annotations

import random

import hiredis
import pytest
from redis.exceptions import InvalidResponse

from tenure.stores._redis_reader import NOTHING, PlainReader, Reader, Reply


class Said(Exception):
    """What a server said."""


def both() -> tuple[Reader, Reader]:
    theirs = hiredis.Reader(protocolError=InvalidResponse, replyError=Said, notEnoughData=NOTHING)
    return PlainReader(Said), theirs


def reply_of(rng: random.Random, depth: int = 3) -> bytes:
    kind = rng.choice("+-:$$**" if depth else "+-:$")
    if kind in "+-":
        return f"{kind}{rng.choice(('OK', 'ERR what', 'NOSCRIPT No matching script', ''))}\r\n".encode()
    if kind == ":":
        return b":%d\r\n" % rng.choice((0, -1, 7, 1 << 62))
    if rng.random() < 0.1:
        return f"{kind}-1\r\n".encode()
    if kind == "$":
        data = rng.choice((b"", b"\r\n", b"$3\r\nabc\r\n", "ü".encode() * 9, bytes(range(256)) * 40))
        return b"$%d\r\n%b\r\n" % (len(data), data)
    parts = [reply_of(rng, depth - 1) for _ in range(rng.randrange(4))]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def read(reader: Reader, data: bytes, cuts: list[int]) -> list[Reply]:
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        reader.feed(data[begin:end])
        while (reply := reader.gets()) is not NOTHING:
            found.append(shown(reply))
    return found


def shown(reply: Reply) -> Reply:
    if isinstance(reply, list):
        return [shown(one) for one in reply]
    return ("said", str(reply)) if isinstance(reply, Said) else reply


@pytest.mark.parametrize("seed", range(40))
def test_it_reads_what_hiredis_reads_however_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    replies = [reply_of(rng) for _ in range(rng.randrange(1, 9))]
    data = b"".join(replies)
    cuts = sorted(rng.sample(range(len(data) + 1), min(len(data), rng.randrange(12))))
    ours, theirs = both()
    found = read(ours, data, cuts)
    assert len(found) == len(replies)
    assert found == read(theirs, data, cuts)


@pytest.mark.parametrize("data", [b"?what\r\n", b"HTTP/1.1 400 Bad Request\r\n", b":one\r\n", b"*x\r\n"])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    ours, theirs = both()
    for reader in (ours, theirs):
        reader.feed(data)
        with pytest.raises(InvalidResponse):
            reader.gets()


def test_what_was_read_of_a_reply_is_not_read_again_when_the_rest_comes() -> None:
    """Else a large reply, which comes in many pieces, would take time that grows with its square."""
    made: list[str] = []

    def said(text: str) -> Said:
        made.append(text)
        return Said(text)

    reader = PlainReader(said)
    data = b"*2\r\n" + b"*50\r\n%b" % (b"-ERR no\r\n" * 50) * 2
    (found,) = read(reader, data, list(range(1, len(data))))
    assert [len(part) for part in found] == [50, 50]
    assert len(made) == 100
