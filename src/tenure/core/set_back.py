"""What a store clock that was set back leaves out of reach, and how a repair brings it near again.

The clock stands before instants that it has shown already. A lease may then have more left than it was granted for, and
what was due at its last change may not be due. The next repair says from when on both count anew.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.core.run import Run, Status

BACK_OFF_MS = (0, 1_000, 4_000, 16_000, 60_000)


def stretched(run: Run, now_ms: int) -> bool:
    """Return whether a lease has more left than it was granted for."""
    return run.status is Status.RUNNING and run.lease_until_ms - now_ms > run.granted_ttl_ms


def postponed(run: Run, now_ms: int) -> bool:
    """Return whether a run is not due that has been due before: `updated_ms` is the latest it has shown since it waits.

    So a post and a repair, which leave a run to wait as it does, never set that back.
    """
    if run.due_ms is None or run.due_ms <= now_ms:
        return False
    if run.status is Status.RUNNING:
        # It was due when it was claimed; one that was handed back as a crash waits for the longest back-off at most.
        return run.due_ms - now_ms > (0 if run.nonce else BACK_OFF_MS[-1])
    return run.due_ms <= run.updated_ms


def out_of_reach(run: Run, now_ms: int) -> bool:
    """Return whether there is something to repair."""
    return stretched(run, now_ms) or postponed(run, now_ms)


def brought_near(run: Run, found: Run, now_ms: int) -> Run:
    """Return the run after a repair of what was found."""
    if stretched(found, now_ms):
        run = replace(run, lease_until_ms=now_ms + run.granted_ttl_ms)
    return replace(run, due_ms=now_ms) if postponed(found, now_ms) else run
