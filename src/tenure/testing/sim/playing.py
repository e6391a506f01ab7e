"""Plays a story: the loop, the seeds and the silence around it, and the end of its world."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import secrets
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from anyio._backends._asyncio import _task_states

from tenure.testing.sim.history import Cast
from tenure.testing.sim.loop import SimLoop
from tenure.testing.sim.notes import Played
from tenure.testing.sim.story import Story

try:
    import sniffio
except ImportError:  # without it anyio asks asyncio, which knows
    _told: Any = SimpleNamespace()
else:
    _told = sniffio.thread_local


def play(story: Story, /) -> Played:
    """Play a story on a loop of its own and return what it left; the same story leaves the same."""
    with seeded(story.seed), quiet_logs():
        loop = SimLoop()
        try:
            # anyio asks sniffio at every call which library runs; it is told, so that it need not find out.
            _told.name = "asyncio"
            cast = Cast(loop, story)
            loop.run_until_complete(cast.play())
            return cast.gather()
        finally:
            _told.name = None
            bury(loop)


def bury(loop: SimLoop) -> None:
    """End every task where it stands, as the end of the world would, and close the loop.

    Their `finally` blocks run here, where no loop runs and nothing can be sent, and not when memory is collected.
    """
    for task in loop.tasks:
        # anyio forgets a task when it ends, and what it knows of one that never does holds its whole world.
        _task_states.pop(task, None)
        if task.done():
            continue
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it was meant to be left
        with contextlib.suppress(BaseException):
            task.get_coro().close()
    loop.close()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw what the code draws from `random` and `secrets` from the seed."""
    drawn = random.Random(seed)  # noqa: S311 - a seed, not a secret
    before, token_hex, randbits = random.getstate(), secrets.token_hex, secrets.randbits
    random.seed(seed)
    secrets.token_hex = lambda nbytes=None: f"{drawn.getrandbits(8 * (nbytes or 16)):0{2 * (nbytes or 16)}x}"
    secrets.randbits = lambda k: drawn.getrandbits(k)  # noqa: PLW0108 - typed as what it stands for
    try:
        yield
    finally:
        random.setstate(before)
        secrets.token_hex, secrets.randbits = token_hex, randbits


@contextlib.contextmanager
def collected_after() -> Iterator[None]:
    """Collect cycles when it is over and not meanwhile.

    Hardly any are made, looking for them costs a third of the time, and when they are found should decide nothing.
    """
    found = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if found:
            gc.enable()


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Let nothing be said: what would be worth a warning is what is simulated."""
    found = logging.getLogger("tenure")
    level = found.level
    found.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        found.setLevel(level)
