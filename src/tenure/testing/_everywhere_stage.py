"""The other end of `crash_everywhere`: imports a kind, opens nothing, and forks a process for each death.

Reads the place of the kind, then one order a line (`name`, `boundary`), and answers each with how its run ended.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from tenure.active import ActiveRun
from tenure.app import App, Kind
from tenure.clock import ManualClock
from tenure.core import build, journal
from tenure.core.run import How, Status
from tenure.errors import RunCancelled, RunFailed, RunNotFound, RunQuarantined, RunSuspended
from tenure.handle import Handle
from tenure.steps import Call
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.boundary import Boundary, BoundaryStore
from tenure.testing.everywhere import DIED
from tenure.testing.inline import Inline
from tenure.testing.models import CallLog
from tenure.testing.noting import noting_to

RUN = "run"
ALARM_S = 120


def _note_steps(active: ActiveRun[Any], log: CallLog) -> None:
    """Let the steps of a call write a line before each call of their functions."""
    steps, plain = active.steps, active.steps._recorded  # noqa: SLF001 - the seam below the replay

    async def recorded(call: Call) -> Any:
        async def made() -> Any:
            log.write("call", name=call.name, attempt=active.attempt)
            return await call.made()

        return await plain(dataclasses.replace(call, made=made))

    steps._recorded = recorded  # type: ignore[method-assign]  # noqa: SLF001 - same


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is played: the kind, the app around it, its input, and where the files are."""

    app: App
    kind: Kind[Any, Any]
    input: Any
    folder: Path
    approve: bool = False
    signals: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def subject(told: dict[str, Any]) -> Subject:
    """Return the subject of the first order."""
    sys.path[:] = told["path"]
    held = getattr(_module(told["module"], told["file"]), told["attribute"])
    if isinstance(held, App):
        app, kind = held, held.kinds[told["kind"]]
    else:
        app, kind = App(), held
        app.kinds[kind.name] = kind
    said = {"approve": told["approve"], "signals": told["signals"]}
    return Subject(app=app, kind=kind, input=told["input"], folder=Path(told["folder"]), **said)


def _module(name: str, file: str | None) -> ModuleType:
    if name != "__main__":
        try:
            found = importlib.import_module(name)
        except ImportError:
            pass  # a test runner may import files under names of its own
        else:
            if file is None or getattr(found, "__file__", None) == file:
                return found
    if file is None:
        message = f"module {name} has no file"
        raise ImportError(message)
    alias = name if name != "__main__" else "__crashed_main__"
    spec = importlib.util.spec_from_file_location(alias, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module


async def _live(what: Subject, store: Store, clock: ManualClock, log: CallLog) -> None:
    """Begin the run, or go on with it, and end it."""
    async with Inline(what.app, store=store, clock=clock) as inline:
        inline.began = lambda active: _note_steps(active, log)
        _note_agents(what.app, log)
        # Submitted as the JSON that it was given as: the same bytes in each process.
        await inline.ledger.submit(what.kind.name, what.input, id=RUN)
        handle: Handle[Any] = inline.ledger.handle(RUN)
        while True:
            try:
                await inline.result(handle)
            except (RunFailed, RunCancelled, RunQuarantined):
                return  # how it ended is told by its record
            except RunSuspended:
                if not await _say(what, handle):
                    raise
            else:
                return


async def _say(what: Subject, handle: Handle[Any]) -> bool:
    """Say what the run waits for, as far as that is known here; return whether anything was said."""
    run = await handle.load()
    wanted = [name for name in run.wants if name in what.signals]
    for name in wanted:
        await handle.signal(name, what.signals[name], id=f"{name}:{run.inbox_seq}")
    requests = await handle.requests() if what.approve else []
    for request in requests:
        await handle.decide(request, "approve", by="crash_everywhere")
    return bool(wanted or requests)


def _note_agents(app: App, log: CallLog) -> None:
    from tenure.testing._noted_agent import note_calls

    for kind in app.kinds.values():
        if kind.agent is not None:
            note_calls(kind.agent, log)


async def _die(what: Subject, url: str, boundary: str, log: CallLog, answer: Path) -> None:
    clock = ManualClock()
    point = Boundary.parse(boundary) if boundary else None
    inner = open_store(url, clock=clock)
    store = BoundaryStore(inner, point, run_id=RUN, blow=lambda: os._exit(DIED))
    async with store:
        await _live(what, store, clock, log)
    answer.write_text(json.dumps(store.seen))  # noqa: ASYNC240 - the loop has nothing else to do


async def _recover(what: Subject, url: str, log: CallLog, answer: Path) -> None:
    clock = ManualClock()  # a file's time never goes back: it goes on from where the process before it was
    async with open_store(url, clock=clock) as store:
        # The process has ended for certain, so its leases are ended as a supervisor does it.
        for run in (await store.find()).runs:
            if run.status is Status.RUNNING:
                end = build.end(run=run.id, how=How.FORFEIT, token=run.token, nonce=run.nonce, reason="crashed")
                await store.commit(end)
        await _live(what, store, clock, log)
        run_ = await store.load(RUN)
        if run_ is None:
            raise RunNotFound("the run was never submitted", run_id=RUN)
        landed, attempt = dict[str, int](), 0
        for row in await store.tail(RUN, limit=10_000):
            for event in journal.events_of(row):
                if event["type"] == journal.ATTEMPT_START:
                    attempt = event["attempt"]
                elif event["type"] in ("assistant/message", journal.RECORD):
                    landed.setdefault(event["name"], attempt)
        outcome = run_.outcome
        said = "" if outcome is None else outcome.result or f"{outcome.code} {outcome.message}"
        told = {"status": run_.status.value, "outcome": said, "landed": landed}
    answer.write_text(json.dumps(told))  # noqa: ASYNC240 - the loop has nothing else to do


def _forked(call: Callable[..., Any], *args: Any) -> int:
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        signal.alarm(ALARM_S)
        anyio.run(call, *args)
        code = 0
    except BaseException:  # noqa: BLE001 - the code tells, and nothing of the stage may run on in here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def play(what: Subject, name: str, boundary: str) -> dict[str, Any]:
    """Return how the run ended that died at the boundary, and what it did."""
    url = f"sqlite:////{str(what.folder / name).lstrip('/')}.db"
    log, seen, end = CallLog(what.folder / f"{name}.log"), what.folder / f"{name}.seen", what.folder / f"{name}.end"
    noting_to(str(log.path))
    code = _forked(_die, what, url, boundary, log, seen)
    if code not in (0, DIED):
        return {"code": code}
    if (ended := _forked(_recover, what, url, log, end)) != 0:
        return {"code": ended}
    found = {"code": code, "lines": log.read(), "seen": json.loads(seen.read_text()) if seen.exists() else []}
    return {**found, **json.loads(end.read_text())}


def main() -> None:
    """Serve orders until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked decides what is broken off
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a handler prints is no answer
    what = subject(json.loads(sys.stdin.readline()))
    for name in ("anyio._backends._asyncio", "tenure.stores.sqlite", "tenure.testing._noted_agent"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        order = json.loads(line)
        answers.write(json.dumps(play(what, order["name"], order["boundary"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
