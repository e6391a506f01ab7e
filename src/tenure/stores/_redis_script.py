"""The scripts as the server gets them: text, hash, and a call with its keys, arguments and large payloads."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files

from tenure.core.run import Change
from tenure.stores._redis_keys import STAGED_SECONDS
from tenure.stores._redis_line import Part, pack, pack_large

NAMES = ("probe", "commit", "renew", "claim", "create", "rest", "delete", "import")
_INCLUDE = re.compile(r"^-- include ([a-z]+\.lua)$", re.MULTILINE)


@lru_cache
def script(name: str, /) -> tuple[str, str]:
    """Return the text of a script, with what it includes, and its SHA-1."""
    folder = files(__package__) / "lua"

    def included(line: re.Match[str]) -> str:
        return (folder / line[1]).read_text(encoding="utf-8")

    text = _INCLUDE.sub(included, (folder / f"{name}.lua").read_text(encoding="utf-8"))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def load(name: str, /) -> bytes:
    """Return the packed command that puts a script into the server's cache."""
    return pack("SCRIPT", "LOAD", script(name)[0])


@dataclass(slots=True, kw_only=True)
class Call:
    """One script call: which changes (by index) it decides, and the large payloads to lay down before it."""

    script: str
    keys: list[str]
    args: list[Part]
    changes: list[tuple[int, Change]] = field(default_factory=list)
    staged: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Return whether the answer waits for replicas; a renewal never does."""
        return self.script != "renew"

    def packed(self) -> list[bytes]:
        """Return the commands: payloads first, the script last."""
        asked = pack("EVALSHA", script(self.script)[1], len(self.keys), *self.keys, *self.args)
        if not self.staged:
            return [asked]
        return [*(pack_large("SET", key, data, "EX", STAGED_SECONDS) for key, data in self.staged), asked]
