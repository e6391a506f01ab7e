"""What all stores must agree on beside the law: which runs a search finds, and which changes move the due index."""

from __future__ import annotations

from tenure.core.run import Change, Commit, Renew, Run
from tenure.errors import NotAllowed
from tenure.store import Where

REFUSED_LENGTH = 1000
"""How many lines the list of refused writes keeps."""


def matches(run: Run, where: Where) -> bool:
    """Return whether a run is one of those asked for; runs with ids of our own never are."""
    until = where.created_until_ms
    return (
        not run.id.startswith("_")
        and (not where.status or run.status in where.status)
        and where.kind in ("", run.kind)
        and where.owner in ("", run.owner)
        and where.parent in ("", run.parent)
        and (not where.wants or where.wants in run.wants)
        and run.created_ms >= where.created_from_ms
        and (until is None or run.created_ms < until)
        and all(run.tags.get(name) == value for name, value in where.tags.items())
    )


def moves_index(change: Change, before: Run, run: Run) -> bool:
    """Return whether a landed change moves the index entry: renewals and plain commits leave it, early, where it is."""
    return not isinstance(change, Renew) and not (isinstance(change, Commit) and run.status is before.status)


def cursor_of(created_ms: int, run_id: str) -> str:
    """Return the cursor that continues a listing, newest first, after this run."""
    return f"{created_ms:015d}.{run_id}"


def after_cursor(cursor: str) -> tuple[int, str]:
    """Return the creation time and id that a cursor names; NotAllowed for what is no cursor."""
    head, _, run_id = cursor.partition(".")
    if not head.isdecimal():
        message = "the cursor is none that `find` returned; start again without one"
        raise NotAllowed(message)
    return int(head), run_id
