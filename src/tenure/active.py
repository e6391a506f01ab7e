"""What a handler works with: one call of a run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, TypeVarTuple, cast, overload

import anyio
from anyio.abc import TaskGroup

from tenure.calling import Threads, invoke, readable, returns_of
from tenure.core import canonical, ids
from tenure.core.approvals import Decision, OnExpiry
from tenure.retry import ONCE, Retry
from tenure.steps import Call, Steps
from tenure.waits import Waits

if TYPE_CHECKING:
    from tenure.handle import Handle, KindLike
    from tenure.lease import Lease
    from tenure.ledger import Ledger

In = TypeVar("In")
ChildIn = TypeVar("ChildIn")
Out = TypeVar("Out")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Effect = Literal["repeat", "reconcile", "ask", "fail"]


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry which run, attempt, grant and worker they belong to."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the run's fields beside those of the call."""
        return msg, {**kwargs, "extra": {**(self.extra or {}), **kwargs.get("extra", {})}}


class ActiveRun(Generic[In]):
    """One call of a handler under a lease. `deps` is what the app's lifespan yielded; `tasks` die with the call.

    `agent` is the one whose kind it is, None where a handler was registered.
    """

    tasks: TaskGroup

    def __init__(self, ledger: Ledger, lease: Lease, *, input: In, deps: Any = None, agent: Any = None) -> None:
        self.lease = lease
        self.input = input
        self.deps = deps
        self.agent = agent
        self.threads = Threads()
        self.steps = Steps(lease)
        self.waits = Waits(lease, self.steps)
        run = lease.run
        self.log = RunLog(
            logging.getLogger("tenure.run"),
            {
                "run_id": run.id,
                "kind": run.kind,
                "attempt": run.attempt,
                "ordinal": run.ordinal,
                "worker": ledger.owner,
            },
        )
        self._ledger = ledger

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.lease.run.id

    @property
    def attempt(self) -> int:
        """Return 1 plus how often the run was taken over."""
        return self.lease.run.attempt

    @property
    def token(self) -> int:
        """Return the fencing token, for outside resources that compare it."""
        return self.lease.token

    @property
    def tags(self) -> Mapping[str, str]:
        """Return the run's tags."""
        return self.lease.run.tags

    def check(self) -> None:
        """Raise LeaseLost if nothing may be started any more; steps do it by themselves."""
        self.lease.check()

    def effect_key(self, key: str, /) -> str:
        """Return an idempotency key for outside systems: the same in each attempt of this run."""
        return f"{self.id}:{key}"

    @overload
    async def step(
        self,
        key: str,
        fn: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        retry: Retry | None = None,
        timeout: float | None = None,
        effect: Effect = "repeat",
        returns: type[T],
        guard: Any = None,
    ) -> T: ...

    @overload
    async def step(
        self,
        key: str,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        retry: Retry | None = None,
        timeout: float | None = None,
        effect: Effect = "repeat",
        returns: None = None,
        guard: Any = None,
    ) -> T: ...

    @overload
    async def step(
        self,
        key: str,
        fn: Callable[[*Ts], T],
        /,
        *args: *Ts,
        retry: Retry | None = None,
        timeout: float | None = None,
        effect: Effect = "repeat",
        returns: None = None,
        guard: Any = None,
    ) -> T: ...

    async def step(
        self,
        key: str,
        fn: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        retry: Retry | None = None,
        timeout: float | None = None,
        effect: Effect = "repeat",
        returns: Any = None,
        guard: Any = None,
    ) -> Any:
        """Return what `fn(*args)` returns, called once and recorded under `key`; a recorded key calls nothing.

        A failure is recorded too, after `retry`, and raised as StepFailed. `timeout` (seconds) holds for each try.
        `effect` other than "repeat" announces the call first; a call in doubt is not made again: with "ask" the run
        waits for a person (`tenure resolve`), else StepFailed.
        `guard` is a JSON value: ReplayDrift if the step is replayed with another. A plain `fn` runs in a worker thread.
        """
        self.steps.begin(key, effect, fn)
        call = Call(
            key=key,
            made=partial(self._once, fn, args, timeout),
            retry=retry or ONCE,
            effect=effect,
            type_=returns_of(fn) if returns is None else readable(returns),
            guard=None if guard is None else canonical.digest(canonical.encode(guard)),
        )
        return await self.steps.result(call)

    @overload
    async def submit(self, key: str, kind: KindLike[ChildIn, Out], input: ChildIn, /) -> Handle[Out]: ...

    @overload
    async def submit(self, key: str, kind: str, input: Any, /) -> Handle[Any]: ...

    async def submit(self, key: str, kind: KindLike[Any, Any] | str, input: Any, /) -> Handle[Any]:
        """Submit a child run with the id `{run.id}.{key}`, once over all attempts; it is cancelled with this run."""
        self.steps.use("child", key)
        child_id = ids.run_id(f"{self.id}.{key}")
        self.check()
        # Not `if isinstance`: both overloads of the ledger take what both overloads here let in.
        return await self._ledger.submit(cast("Any", kind), input, id=child_id, parent=self.id)

    async def sleep(self, key: str, until: datetime | float, /) -> None:
        """Wait `until` an instant, or that many seconds from when the run first came here, with the run suspended.

        A run that waits holds no lease, worker or memory. The handler is called again from its first line when the time
        has come, and then the call returns. Of what runs side by side steps in hand end first.
        """
        await self.waits.sleep(key, until)

    @overload
    async def wait_for(
        self, signal: str, /, *, key: str | None = None, timeout: float | None = None, returns: type[T]
    ) -> T: ...

    @overload
    async def wait_for(
        self, signal: str, /, *, key: str | None = None, timeout: float | None = None, returns: None = None
    ) -> Any: ...

    async def wait_for(
        self, signal: str, /, *, key: str | None = None, timeout: float | None = None, returns: Any = None
    ) -> Any:
        """Return what the next signal of this name says, waiting for it with the run suspended.

        Signals are kept until they are waited for, and each is taken once. What was taken is recorded under `key`, by
        default the name; to wait for one name several times give each its own. `timeout` is in seconds from when the
        run first came here; TimeoutError, on replay too, if no signal came by then. `returns` is the value's type.
        """
        type_ = Any if returns is None else readable(returns)
        return await self.waits.signal(signal, signal if key is None else key, timeout, type_)

    async def ask(
        self,
        key: str,
        question: Any,
        /,
        *,
        expires: float | None = None,
        on_expiry: OnExpiry | Literal["ask_again", "reject", "fail"] = "ask_again",
    ) -> Decision:
        """Return what a person decided about the question, a JSON value, waiting for it with the run suspended.

        The decision is bound to the question: one that was made about another does not count, and the run asks anew.
        `expires` is in seconds, by the store's clock. That nobody decided in time denies nothing: `on_expiry` says to
        ask again (the default), to count it as a rejection, or to raise RequestExpired. ReplayDrift if the question is
        another one than was decided about.
        """
        return await self.waits.ask(key, question, expires=expires, on_expiry=on_expiry)

    def drain(self) -> None:
        """Start no step any more: the steps in hand end, then the call is cut and the run handed back."""
        self.steps.draining = True

    async def _once(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> Any:
        self.check()
        with anyio.move_on_after(timeout):
            return await invoke(fn, args, self.threads)
        message = f"it took longer than its timeout of {timeout:g} s"
        raise TimeoutError(message)
