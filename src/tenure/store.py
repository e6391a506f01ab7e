"""The port: what a store must offer. One guarded write, reads that decide nothing, and hints that may be lost.

A store decides each change and applies it in one atomic step by the rules of `core/rules.py`; everything else here is
reading. Who implements it runs the contract of `tenure.testing` against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, runtime_checkable

from tenure.core.run import Answer, Change, Commit, Facts, Item, Row, Run, Status
from tenure.errors import TenureError

SLOW_BYTES_S = 256 * 1024
"""A road that carries less than this in a second may be taken for broken: so much longer a large request is awaited."""


def payload_bytes(change: Change, /) -> int:
    """Return how many bytes of payload a change carries, the large part of a request."""
    body = getattr(change, "body", b"") if (row := getattr(change, "row", None)) is None else row.body
    return len(body) + sum(map(len, getattr(change, "blobs", {}).values()))


async def has_commit(store: Store, run_id: str, seq: int, digest: str, /) -> bool:
    """Return whether the journal of a run has this commit: it may not have landed, or a failover may have taken it."""
    return [row.digest for row in await store.tail(run_id, after=seq - 1, limit=1)] == [digest]


class Durability(StrEnum):
    """What an acknowledged change survives: nothing; process death; power loss; failover; both."""

    MEMORY = "memory"
    LOCAL = "local"
    DISK = "disk"
    REPLICATED = "replicated"
    REPLICATED_DISK = "replicated-disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A run that may be due; the claim carries `token` as it was found here, and decides."""

    run: str
    kind: str
    due_ms: int
    token: int
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which runs to find; empty fields do not narrow. `tags` filter what the others find."""

    status: tuple[Status, ...] = ()
    kind: str = ""
    owner: str = ""
    wants: str = ""
    parent: str = ""
    created_from_ms: int = 0
    created_until_ms: int | None = None
    tags: dict[str, str] = field(default_factory=dict)


ALL = Where()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of runs, newest first; `cursor` None ends the listing. `corrupt`: ids whose record cannot be read."""

    runs: tuple[Run, ...]
    cursor: str | None = None
    corrupt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A worker's own row: a hint for people, expiring, by which nothing decides."""

    name: str
    host: str
    pid: int
    kinds: tuple[str, ...]
    version: str = ""
    slots: int = 0
    busy: int = 0
    lag_ms: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One refused write, as told by who was refused; the list is bounded and best effort."""

    run: str
    owner: str
    token: int
    what: str
    why: str
    current_token: int = 0
    at_ms: int = 0


class Grade(StrEnum):
    """How much a finding matters: nothing to do; mind it; fix it."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a store says about itself; `fix` is the line that mends it, empty where nothing is to mend."""

    name: str
    level: Grade
    text: str
    fix: str = ""


@runtime_checkable
class Diagnosable(Protocol):
    """An ability that a store may offer beside the port: to say how it is set."""

    async def diagnose(self) -> list[Finding]:
        """Return version, level and settings as findings; never raises for a setting that is merely unsafe."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """An ability that a store may offer beside the port: to begin another history, when a backup was put back."""

    async def new_history(self) -> None:
        """Change the salt, so that every grant of before is one of a former history; strangers wait where they must."""
        ...


class Guarded(Protocol):
    """A transaction of others, with the connection on which their statements go."""

    @property
    def connection(self) -> Any:
        """Return the driver's connection, in a transaction that the block must not end."""
        ...

    async def commit(self, change: Commit, /) -> Answer:
        """Decide the change as the last statement, and commit if it lands; asked again, look what became of it.

        RolledBack if nothing of the transaction is there.
        """
        ...


@runtime_checkable
class Transactional(Protocol):
    """An ability that a store may offer beside the port: effects in its own database that land with a commit."""

    def transaction(self) -> AbstractAsyncContextManager[Guarded]:
        """Begin a transaction; what is not committed when the block ends is rolled back."""
        ...


@runtime_checkable
class Migratable(Protocol):
    """An ability that a store may offer beside the port, unopened: to bring its schema to what this version knows."""

    async def missing(self) -> list[str]:
        """Return the migrations that are missing, in order; StoreTooNew if a newer version made the schema."""
        ...

    async def migrate(self) -> list[str]:
        """Apply what is missing and return it."""
        ...


class Store(Protocol):
    """A run store. `async with` connects and checks; a store opened before a fork refuses to work in the child.

    Every method raises StoreUnavailable when the store cannot be reached, StoreUnsafe when it may not be used. Reads of
    content that cannot be decoded raise CorruptRecord. All methods are cancellation points; a cancelled change may have
    landed, and the same request again tells.
    """

    @property
    def url(self) -> str:
        """Return the URL without its password."""
        ...

    @property
    def namespace(self) -> str:
        """Return the namespace."""
        ...

    @property
    def level(self) -> Durability:
        """Return the durability level that acknowledgements have."""
        ...

    async def __aenter__(self) -> Self:
        """Connect and check."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Close what was opened."""
        ...

    def beside(self) -> Store:
        """Return another, unopened store object for the same data with connections of its own (heartbeats use one)."""
        ...

    async def commit(self, change: Change, /) -> Answer:
        """Decide one change and apply it in the same atomic step; OutcomeUnknown if the level was not reached."""
        ...

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Decide each change alone, in one round trip where the store can; answers stand in the order asked.

        An entry is an exception where that change alone has no answer.
        """
        ...

    async def raise_ttl(self, ttl_ms: int, /) -> None:
        """Make the store's `max_ttl_ms` at least this; a claim with a longer ttl is refused."""
        ...

    async def facts(self) -> Facts:
        """Return what the store knows now."""
        ...

    async def load(self, run_id: str, /) -> Run | None:
        """Return the record, None if there is none."""
        ...

    async def raw(self, run_id: str, /) -> dict[str, str]:
        """Return the record's stored fields unread, empty if there is none: for people who look at damage."""
        ...

    async def tail(self, run_id: str, /, *, after: int = 0, limit: int = 100) -> list[Row]:
        """Return up to `limit` rows with seq > `after`, in order."""
        ...

    async def inbox(self, run_id: str, /, *, after: int = 0) -> list[Item]:
        """Return the inbox items with seq > `after`, in order, consumed ones included."""
        ...

    async def blob(self, run_id: str, digest: str, /) -> bytes | None:
        """Return a blob of the run."""
        ...

    async def due(self, kinds: Sequence[str], /, *, limit: int = 100) -> list[Hint]:
        """Return runs of these kinds that the index says are due by the store's clock, the longest due first."""
        ...

    async def next_due_ms(self, kinds: Sequence[str], /) -> int | None:
        """Return the earliest instant in the due index of these kinds, past or to come; None if it is empty."""
        ...

    async def kinds(self) -> list[str]:
        """Return every kind that has an entry in the due index."""
        ...

    async def entries(self, kind: str, /, *, cursor: str = "", limit: int = 1000) -> tuple[list[tuple[str, str]], str]:
        """Return a page of (run id, raw index entry) of a kind's due index, and the next cursor ('' at the end)."""
        ...

    async def find(self, where: Where = ALL, /, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Return runs, newest first; runs with ids of our own are left out."""
        ...

    async def beat(self, row: Beat, /, *, ttl_ms: int) -> None:
        """Write a worker's row; best effort."""
        ...

    async def beats(self) -> list[Beat]:
        """Return the rows of workers seen lately."""
        ...

    async def tell_refused(self, line: Refused, /) -> None:
        """Add to the bounded list of refused writes; best effort."""
        ...

    async def refused(self, *, limit: int = 100) -> list[Refused]:
        """Return the latest refused writes, newest first."""
        ...

    async def wake(self, topic: str, /) -> None:
        """Wake who waits for the topic; best effort."""
        ...

    async def woken(self, topics: Sequence[str], /, *, timeout: float) -> bool:
        """Wait until one of the topics is woken or `timeout` seconds pass; True if woken. May wake for nothing."""
        ...
