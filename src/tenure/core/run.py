"""The values of the guarded write: the run record, the grant, the changes that can be asked for, and the answer.

Milliseconds are integers of the store's clock; tokens and `now_us` are microseconds. Nothing here decides anything:
the law is in `rules.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

# Who speaks of records speaks in these words: they are had from here.
from tenure.core.words import Ask as Ask  # noqa: PLC0414
from tenure.core.words import How as How  # noqa: PLC0414
from tenure.core.words import Status as Status  # noqa: PLC0414
from tenure.core.words import Verdict as Verdict  # noqa: PLC0414
from tenure.core.words import Why as Why  # noqa: PLC0414

SCHEMA = 2
"""The newest schema of records and rows that this version reads; a newer one is refused by name.

2: the run begins with a restated state (a fork), which who reads up to 1 would take for a run at its start.
"""

FIRST_SCHEMA = 1
"""The schema of every run that needs no later one, so that older workers of a fleet go on serving it."""

LEADER_ID = "_leader"


T = TypeVar("T")


def _made(type_: type[T], values: dict[str, Any], /) -> T:
    """Return a value with all of these fields, in a fifth of the time of its `__init__`, which sets one by one."""
    found = object.__new__(type_)
    object.__setattr__(found, "__dict__", values)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right to write one run: what every commit and renewal carries and the store compares."""

    run: str
    token: int
    nonce: str = field(repr=False)
    epoch: str
    ttl_ms: int
    owner: str = ""

    @property
    def mark(self) -> str:
        """Return what a row keeps of the grant: the first 16 hex digits of the SHA-256 of the nonce."""
        return grant_mark(self.nonce)


@lru_cache(maxsize=1024)  # each commit asks for that of its grant
def grant_mark(nonce: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of a nonce; empty for no nonce."""
    return hashlib.sha256(nonce.encode()).hexdigest()[:16] if nonce else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An open question of a run; `expires_ms` None never expires."""

    digest: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: `result` is the digest of the result's blob, `code` and `message` say what went wrong."""

    code: str = ""
    message: str = ""
    result: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLine:
    """One line of the grant log; `ended` is empty while the grant is the current one."""

    ordinal: int
    token: int
    owner: str
    from_ms: int
    until_ms: int = 0
    ended: str = ""
    step: int = 0
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One commit of the journal; `at_ms` is the store's and stands outside the digest, 0 until it is written."""

    seq: int
    token: int
    grant: str
    digest: str
    body: bytes
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One inbox item; a consumed one keeps its id, name, ask and digest, and its body is empty."""

    seq: int
    id: str
    name: str
    ask: Ask
    digest: str
    body: bytes
    at_ms: int
    consumed: bool = False


@dataclass(frozen=True, kw_only=True)  # without slots: `after` copies the fields of a record in one go
class Run:
    """The record of one run; payloads live in the journal, the inbox and blobs."""

    id: str
    kind: str
    schema: int = FIRST_SCHEMA
    code_version: str = ""
    status: Status = Status.QUEUED
    version: int = 1
    attempt: int = 1
    crashes: int = 0
    failures: int = 0
    token: int = 0
    nonce: str = field(default="", repr=False)
    epoch: str = ""
    owner: str = ""
    granted_ttl_ms: int = 0
    lease_until_ms: int = 0
    step: int = 0
    last_seq: int = 0
    head: str = ""
    base_seq: int = 0
    inbox_seq: int = 0
    requests: Mapping[str, Request] = field(default_factory=dict)
    wants: tuple[str, ...] = ()
    parent: str = ""
    cancel_by_ms: int | None = None
    due_ms: int | None = None
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    input_digest: str = ""
    outcome: Outcome | None = None
    touch: int = 0
    created_ms: int = 0
    updated_ms: int = 0
    grants: tuple[GrantLine, ...] = ()

    @property
    def ordinal(self) -> int:
        """Return the number of the latest grant, which people are shown as #n; 0 before the first."""
        return self.grants[-1].ordinal if self.grants else 0

    def after(self, **changes: Any) -> Run:
        """Return the record with other values in some fields; TypeError for a name that is no field.

        What `dataclasses.replace` does, in a fifth of the time: every commit makes one, at its store and at its holder.
        """
        mine = vars(self)
        all_of_it = {**mine, **changes}
        if len(all_of_it) != len(mine):
            message = f"a record has no field {', '.join(changes.keys() - mine.keys())}"
            raise TypeError(message)
        return _made(Run, all_of_it)

    @classmethod
    def of(cls, fields: dict[str, Any], /) -> Run:
        """Return the record with these fields, which have to be all that there are; the dictionary becomes its own."""
        return _made(cls, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """When a run may be claimed: an instant of the store's clock, or a time from the deciding step on."""

    ms: int = 0
    relative: bool = True

    def at(self, now_ms: int) -> int:
        """Return the instant, given the store's now."""
        return now_ms + self.ms if self.relative else self.ms


NOW = Due()


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Queue a new run; `row` is commit 1 (none for our own ids), `due` None waits for a post."""

    run: str
    kind: str
    input_digest: str
    row: Row | None
    code_version: str = ""
    schema: int = FIRST_SCHEMA
    due: Due | None = NOW
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str = ""
    blobs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Take the lease of a run that is due; None in `token`, `kinds` or `code_versions` asks for no such match.

    One that names the token it was made for lands at most once, however often and late it arrives: tokens only rise.
    `alone` offers an empty process; `blame` counts a takeover as a crash; `max_crashes` 0 never quarantines.
    """

    run: str
    nonce: str = field(repr=False)
    owner: str
    ttl_ms: int
    token: int | None = None
    kinds: tuple[str, ...] | None = None
    code_versions: tuple[str, ...] | None = None
    code_version: str = ""
    schema: int = SCHEMA
    alone: bool = True
    blame: bool = True
    max_crashes: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Extend a live lease to now + the grant's ttl."""

    grant: Grant

    @property
    def run(self) -> str:
        """Return the id of the run."""
        return self.grant.run


@dataclass(frozen=True, kw_only=True)  # without slots, as `Run`: nearly all are `plain`
class Commit:
    """Append one row under the grant, with everything that becomes true with it.

    `status` None stays running (and extends the lease); anything else ends the lease in the same step. None in
    `requests`, `wants`, `tags`, `failures` leaves the record's as they are. `inbox_seq` is what the holder has read:
    a suspension and a commit that consumes a decision carry it. `step` counts the steps that end here.
    """

    grant: Grant
    row: Row
    prev: str
    status: Status | None = None
    step: int = 0
    base: bool = False
    failures: int | None = None
    consume: tuple[str, ...] = ()
    inbox_seq: int | None = None
    requests: Mapping[str, Request] | None = None
    wants: tuple[str, ...] | None = None
    tags: Mapping[str, str] | None = None
    due: Due | None = None
    outcome: Outcome | None = None
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Return the id of the run."""
        return self.grant.run

    @classmethod
    def plain(cls, *, grant: Grant, row: Row, prev: str, step: int) -> Commit:
        """Return a commit that says no more than its row and how many steps it ends."""
        return _made(cls, {**_PLAIN, "grant": grant, "row": row, "prev": prev, "step": step})

    @property
    def is_plain(self) -> bool:
        """Return whether it says no more than that, as nearly all do."""
        return (
            (self.status is None and self.failures is None and self.inbox_seq is None and self.requests is None)
            and (self.wants is None and self.tags is None and self.outcome is None)
            and not (self.base or self.consume or self.blobs)
        )


_PLAIN = {found.name: found.default for found in fields(Commit)} | {"blobs": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reattach:
    """Continue a live grant of a former store history under a new nonce.

    (`seq`, `head`) is what the holder was last told; `flying` is the digest of its one commit in flight, or empty.
    """

    grant: Grant
    nonce: str = field(repr=False)
    seq: int
    head: str
    flying: str = ""

    @property
    def run(self) -> str:
        """Return the id of the run."""
        return self.grant.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Say something to a run without a grant; for a decision or revocation `name` is the request's id.

    `request` is the digest of the content that was decided on; `grace_ms` is the time left to a cancelled run.
    """

    run: str
    item: str
    name: str
    ask: Ask
    digest: str
    body: bytes
    request: str = ""
    grace_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End the grant of a run from outside; `token` is the one seen, `nonce` that of the grant (forfeit, yield, ...)."""

    run: str
    how: How
    token: int = 0
    nonce: str = field(default="", repr=False)
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove every trace of a run whose status is terminal; its token raises the store's floor."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Bring near what a clock set back has put out of reach, and put the index entry where the record says.

    `stray` is an entry of the due index as found, which is removed if it is not the record's own.
    """

    run: str
    stray: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Bring in a whole run that another store holds, without whoever held it there; its key is (id, digest).

    `digest` covers all that is brought in. `salt` becomes the store's own: the same for all runs that come together, so
    that the holders of other runs have to show once that they may go on.
    """

    record: Run
    rows: tuple[Row, ...]
    items: tuple[Item, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    digest: str
    salt: str

    @property
    def run(self) -> str:
        """Return the id of the run."""
        return self.record.id


Change = Create | Claim | Renew | Commit | Reattach | Post | End | Delete | Repair | Import


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the store knows in the deciding step, beside the run.

    `lossy`: after a history change an acknowledged grant may be missing, so strangers wait. `boot`: the prefix that
    epochs of this boot have, where another boot means that every former holder is dead; empty where it does not.
    """

    now_us: int
    epoch: str = ""
    since_ms: int = 0
    lossy: bool = False
    max_ttl_ms: int = 0
    floor: int = 0
    boot: str = ""

    @property
    def now_ms(self) -> int:
        """Return the store's now in milliseconds."""
        return self.now_us // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the store holds in the deciding step of the things that a change names.

    `row`: the digest of the row at the change's seq, or empty. `item`: the inbox item of the change's item id.
    `due`: the index entry, None if there is none.
    """

    run: Run | None = None
    row: str = ""
    item: Item | None = None
    due: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The store's word on one change: the run after it, or as found in the deciding step.

    `left_ms` is what is left at `now_us` of the grant that the request names; 0 if the record no longer holds it.
    A store may leave `run` None on a landed commit or renewal: the holder knows the run and computes it.
    """

    verdict: Verdict
    now_us: int
    run: Run | None = None
    why: Why | None = None
    left_ms: int = 0
    item: Item | None = None

    @property
    def ok(self) -> bool:
        """Return whether what was asked for is so: landed now, or already."""
        return self.verdict in _OK


_OK = (Verdict.LANDED, Verdict.ALREADY)
