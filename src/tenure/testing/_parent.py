"""Processes that do not outlive the one that made them."""

from __future__ import annotations

import ctypes
import shutil
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """See to it that this process is killed when the thread that made it ends, frozen or not."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def dying_with_parent(command: Sequence[str], /, *, user: Sequence[str] = ()) -> list[str]:
    """Return the command of a process that is killed when the thread that starts it ends; `user` are options."""
    # setpriv sets the parent-death signal and becomes the command (same pid); preexec_fn is not safe beside threads.
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    # One call for both: the kernel forgets the signal when the user changes after it.
    return [setpriv, *user, "--pdeathsig", "KILL", "--", *command] if setpriv else [*command]
