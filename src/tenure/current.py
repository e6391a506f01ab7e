"""The run in whose name code runs: known to whatever it calls, in tasks that it starts and in worker threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tenure.errors import NotAllowed
from tenure.lease import Lease

_current: ContextVar[CurrentRun | None] = ContextVar("tenure_current_run", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRun:
    """The run that is under way here; inside a tool also the call. `deps` is what the app's lifespan yielded."""

    lease: Lease
    call_id: str = ""
    scope: str = ""
    deps: Any = None

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.lease.run.id

    @property
    def kind(self) -> str:
        """Return the run's kind."""
        return self.lease.run.kind

    @property
    def attempt(self) -> int:
        """Return 1 plus how often the run was taken over."""
        return self.lease.run.attempt

    @property
    def token(self) -> int:
        """Return the fencing token as it is now, for outside resources that compare it."""
        return self.lease.token

    @property
    def tags(self) -> Mapping[str, str]:
        """Return the run's tags."""
        return self.lease.run.tags

    def check(self) -> None:
        """Raise LeaseLost if nothing may be started any more."""
        self.lease.check()

    def effect_key(self, key: str = "", /) -> str:
        """Return an idempotency key for outside systems: the same in each attempt, for this call and this `key`."""
        return ":".join(filter(None, (self.id, self.scope, self.call_id, key)))


def current_run() -> CurrentRun:
    """Return the run in whose name this code is called: by a handler, a step or a tool. NotAllowed anywhere else."""
    found = _current.get()
    if found is None:
        message = "there is no run here; call it from a handler, a step or a tool, or pass on what they are given"
        raise NotAllowed(message)
    return found


@contextmanager
def running(found: CurrentRun, /) -> Iterator[None]:
    """Make a run the current one; what the run around it was given is passed on."""
    around = _current.get()
    if around is not None and around.lease is found.lease and found.deps is None:
        found = CurrentRun(lease=found.lease, call_id=found.call_id, scope=found.scope, deps=around.deps)
    token = _current.set(found)
    try:
        yield
    finally:
        _current.reset(token)
