"""New run ids: UUIDv7, so that ids sort by time of submission."""

from __future__ import annotations

import secrets
from uuid import UUID

from tenure.clock import Clock


def new_run_id(clock: Clock, /) -> str:
    """Return a UUIDv7 (RFC 9562): 48 bits of milliseconds, the rest random."""
    value = (clock.now_ms() & (1 << 48) - 1) << 80 | secrets.randbits(76)
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(UUID(int=value & ~(0x3 << 62) | 0x2 << 62))
