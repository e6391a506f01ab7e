"""The words of records, changes and answers: where a run stands, what was decided and why, how a grant ends."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a run stands; `rules.NEXT` says what may follow."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    QUARANTINED = "quarantined"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """What the store decided about a change."""

    LANDED = "landed"
    ALREADY = "already"
    REFUSED = "refused"
    HISTORY = "history"


class Why(StrEnum):
    """The first rule that a refused change broke."""

    ABSENT = "absent"
    CONFLICT = "conflict"
    CLOSED = "closed"
    QUARANTINED = "quarantined"
    SUSPENDED = "suspended"
    STATUS = "status"
    LOST = "lost"
    EXPIRED = "expired"
    HELD = "held"
    NOT_DUE = "not_due"
    GRACE = "grace"
    HISTORY = "history"
    MOVED = "moved"
    DECLINED = "declined"
    CROWDED = "crowded"
    TTL = "ttl"
    SEQUENCE = "sequence"
    INBOX = "inbox"
    REQUEST_CLOSED = "request_closed"
    STALE = "stale"
    HISTORY_LOST = "history_lost"
    CORRUPT = "corrupt"
    STAGED = "staged"


class How(StrEnum):
    """The ways in which `end` ends a grant."""

    CANCEL = "cancel"
    EVICT = "evict"
    FORFEIT = "forfeit"
    YIELD = "yield"
    QUARANTINE = "quarantine"
    RELEASE = "release"


class Ask(StrEnum):
    """What a posted item says."""

    DECIDE = "decide"
    REVOKE = "revoke"
    SIGNAL = "signal"
    CANCEL = "cancel"
