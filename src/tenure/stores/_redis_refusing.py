"""Shards that answer reads and take no claims: a full memory, too few replicas, a disk that cannot be written."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.core.run import Answer
from tenure.errors import OutcomeUnknown, StoreUnavailable, TenureError
from tenure.store import Hint

_LOG = logging.getLogger("tenure.stores.redis")

PROBE_S = 5.0
"""How often one run of such a shard is tried; longer than a worker pauses after a look that came to nothing."""


@dataclass(slots=True)
class Refusing:
    """Which shards took no claim the last time, and what they said.

    All that is due there stays due. Whoever tried it first at each look would never come to the runs of other shards.
    """

    said: dict[int, TenureError] = field(default_factory=dict)
    probe_at_s: float = 0.0

    def note(self, number: int, answers: Sequence[Answer | TenureError], /) -> None:
        """Take in what a shard answered to claims."""
        refused = [answer for answer in answers if isinstance(answer, StoreUnavailable | OutcomeUnknown)]
        known = self.said.pop(number, None)
        if len(refused) < len(answers):
            if known is not None:
                self.probe_at_s = 0.0  # what kept one is likely to be over for the others
            return
        if known is None:
            _LOG.warning("shard %d takes no claim, the others go on: %s", number, refused[0])
        self.said[number] = refused[0]
        self.probe_at_s = time.monotonic() + PROBE_S

    def claimable(self, found: dict[int, list[Hint]], /) -> list[Hint]:
        """Return the hints of all shards without those of these, but for one from time to time.

        What a shard said is raised where nothing else is due.
        """
        hints = [hint for number, some in found.items() if number not in self.said for hint in some]
        left_out = [number for number in self.said if found.get(number)]
        if not left_out:
            return hints
        if time.monotonic() >= self.probe_at_s:
            return [*hints, found[left_out[0]][0]]
        if not hints:
            raise self.said[left_out[0]]
        return hints
