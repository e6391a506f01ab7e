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
