"""The names of everything that tenure keeps in Redis; a shard shares one hash tag, so a change is one slot's."""

from __future__ import annotations

import zlib
from collections import OrderedDict

from tenure.core.run import Status

SCHEMA = 1
"""The schema of this layout, in `meta`; a newer one is refused by name."""

STATUSES = tuple(Status)
LARGE_BYTES = 64 * 1024
STAGED_SECONDS = 300


def shard_of(run_id: str, shards: int, /) -> int:
    """Return the shard that a run lives in for good."""
    return zlib.crc32(run_id.encode()) % shards


class Keys:
    """`tenure:{<namespace>:<shard>}:<what>[:<run>]`: the braces make the hash tag, and a run never leaves its shard."""

    def __init__(self, namespace: str, shard: int = 0, /) -> None:
        self.shard = shard
        self._at = at = f"tenure:{{{namespace}:{shard}}}:"
        self.meta = f"{at}meta"
        self.history = f"{at}history"
        self.kinds = f"{at}kinds"
        self.beats = f"{at}beats"
        self.refused = f"{at}refused"
        self.channel = f"tenure:{namespace}:wake"

    def run(self, run_id: str, /) -> str:
        """Return the key of a record."""
        return f"{self._at}run:{run_id}"

    def log(self, run_id: str, /) -> str:
        """Return the key of a journal."""
        return f"{self._at}log:{run_id}"

    def inbox(self, run_id: str, /) -> str:
        """Return the key of an inbox."""
        return f"{self._at}inbox:{run_id}"

    def blobs(self, run_id: str, /) -> str:
        """Return the key of the small blobs of a run."""
        return f"{self._at}blobs:{run_id}"

    def large(self, run_id: str, name: str = "", /) -> str:
        """Return the key of a large payload, and without a name that of the set of their names."""
        return f"{self._at}big:{run_id}:{name}" if name else f"{self._at}big:{run_id}"

    def stage(self, run_id: str, digest: str, /) -> str:
        """Return the key under which a large payload waits for its commit."""
        return f"{self._at}stage:{run_id}:{digest}"

    def due(self, kind: str, /) -> str:
        """Return the key of a kind's due index."""
        return f"{self._at}due:{kind}"

    def status(self, status: Status, /) -> str:
        """Return the key of a status' index."""
        return f"{self._at}status:{status.value}"


class KindMemo:
    """Which kind a run has, as seen lately; a wrong guess costs a trip and writes nothing."""

    def __init__(self, length: int = 20_000, /) -> None:
        self._length = length
        self._kinds: OrderedDict[str, str] = OrderedDict()

    def __getitem__(self, run_id: str, /) -> str:
        """Return the kind, empty if it is not known."""
        return self._kinds.get(run_id, "")

    def __setitem__(self, run_id: str, kind: str, /) -> None:
        """Remember the kind, and forget what was learnt first."""
        self._kinds[run_id] = kind
        if len(self._kinds) > self._length:
            self._kinds.popitem(last=False)
