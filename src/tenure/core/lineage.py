"""Where each block that a model sees comes from: the records that it was taken from, and its digest.

A block is one part of a message. Its sources are names of records of the same scope (`start`, `model:3`, `tool:c1`,
`context:4.0`): identity is the name, never the order. A request names only the blocks that are new since the one
before; the chain of digests covers those before them, so what a step writes does not grow with the conversation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.core import canonical
from tenure.core.messages import Message, to_json

START = "start"
MODEL = "model:"
REFUSED = "refused:"
CONTEXT = "context:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of a message as the model sees it; `at` is (message, part), `sources` the names that explain it."""

    at: tuple[int, int]
    role: str
    type: str
    sources: tuple[str, ...]
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value by which a request names the block."""
        return {
            "at": list(self.at),
            "role": self.role,
            "type": self.type,
            "from": list(self.sources),
            "digest": self.digest,
        }


def block_digest(role: str, part: Any, /) -> str:
    """Return the digest of a block: SHA-256 over the canonical bytes of `[role, part]`."""
    return canonical.digest(canonical.again([role, part]))


def chained(before: str, digest: str, /) -> str:
    """Return the digest of blocks up to and with this one."""
    return hashlib.sha256(f"{before}\n{digest}".encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class Lineage:
    """The blocks of a conversation in order; `told` of them have been named by a request or restated."""

    blocks: list[Block] = field(default_factory=list)
    digest: str = ""
    told: int = 0
    messages: int = 0

    def add(self, message: Message, sources: Sequence[Sequence[str]], /) -> None:
        """Take in a message; `sources` has an entry for each of its parts, or one for all of them."""
        value = to_json(message)
        role, parts = str(value["role"]), value["parts"]
        given = list(sources) if len(sources) == len(parts) else [sources[0]] * len(parts)
        for index, (part, names) in enumerate(zip(parts, given, strict=True)):
            found = Block(
                at=(self.messages, index),
                role=role,
                type=str(part["type"]),
                sources=tuple(names),
                digest=block_digest(role, part),
            )
            self.blocks.append(found)
            self.digest = chained(self.digest, found.digest)
        self.messages += 1

    def untold(self) -> list[dict[str, Any]]:
        """Return the blocks that no request has named yet."""
        return [found.to_json() for found in self.blocks[self.told :]]

    def of(self, index: int, /) -> list[tuple[str, ...]]:
        """Return the sources of a message, part by part."""
        return [found.sources for found in self.blocks if found.at[0] == index]

    def by_message(self) -> list[list[Block]]:
        """Return the blocks of each message."""
        found: list[list[Block]] = [[] for _ in range(self.messages)]
        for block in self.blocks:
            found[block.at[0]].append(block)
        return found


def unexplained(lineage: Lineage, messages: Iterable[Message], /) -> Block | tuple[int, int] | None:
    """Return the first block of the messages that the lineage does not explain, None if it explains them all.

    Digests are computed anew: a value that was changed where it stands is found.
    """
    known = iter(lineage.blocks)
    for number, message in enumerate(messages):
        value = to_json(message)
        for index, part in enumerate(value["parts"]):
            block = next(known, None)
            if block is None:
                return number, index
            if block.at != (number, index) or block.digest != block_digest(str(value["role"]), part):
                return block
    return next(known, None)
