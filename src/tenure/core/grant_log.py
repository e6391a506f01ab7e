"""The grant log of a record: a line for each of its latest grants, who had it and how it ended.

It is evidence; nothing is decided by it but whether an end, or an import, was asked for before.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.core.run import GrantLine, Run

LENGTH = 32
IMPORTED = "imported"
"""How the line of an import has ended; its reason is the digest of what was brought in."""


def begun(run: Run, token: int, owner: str, now_ms: int) -> tuple[GrantLine, ...]:
    """Return the log with a line for a new grant, and without the oldest where it is full."""
    line = GrantLine(ordinal=run.ordinal + 1, token=token, owner=owner, from_ms=now_ms)
    return (*run.grants, line)[-LENGTH:]


def closed(run: Run, now_ms: int, *, ended: str, reason: str = "", by: str = "") -> tuple[GrantLine, ...]:
    """Return the log with its last line ended."""
    if not run.grants:
        return ()
    last = run.grants[-1]
    if last.ended == "":
        until_ms = min(run.lease_until_ms, now_ms)
        last = replace(last, until_ms=until_ms, ended=ended, step=run.step, reason=reason, by=by)
    elif reason or by:
        # The grant had ended before (a quarantined run is released, a queued one cancelled): its evidence stays.
        last = replace(last, reason="; ".join(filter(None, (last.reason, f"{ended}: {reason}"))), by=by or last.by)
    return (*run.grants[:-1], last)


def imported(run: Run, token: int, now_ms: int, digest: str) -> tuple[GrantLine, ...]:
    """Return the log of a run that is brought in: its last grant has ended, and a line of its own names what came."""
    run = replace(run, grants=closed(run, now_ms, ended=IMPORTED))
    run = replace(run, grants=begun(run, token, "", now_ms))
    return closed(run, now_ms, ended=IMPORTED, reason=digest)
