"""What a test is told of effects: one line each in a file that survives the death of the process."""

from __future__ import annotations

import os

from tenure.testing.models import CallLog

_VARIABLE = "TENURE_EFFECTS"


def note_effect(name: str, /, *, key: str = "") -> None:
    """Note that an effect on the outside world took place; put it where the effect is, in the fake of a test.

    `key` is the idempotency key that the outside system was given: effects with the same key count once. Outside of
    `crash_everywhere` nothing is written.
    """
    if path := os.environ.get(_VARIABLE):
        CallLog(path).write("effect", name=name, key=key)


def noting_to(path: str, /) -> None:
    """Send the notes of this process, and of those it starts, to a file."""
    os.environ[_VARIABLE] = path
